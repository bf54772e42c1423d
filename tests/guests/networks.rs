//! Streams between guests that share two networks, with an RDMA device in each: which devices carry a stream, and what
//! happens when one network dies.

use std::fs;

use crate::support::programs::{End, eventually, hosts::Network, key};

/// The number of bytes of a stream: many chunks for each rail.
const BYTES: u64 = 16 << 20;

/// A second network, 10.78.0.0/24, of the guests h1 and h2, with the device rxe1 in each, until this value is dropped.
struct SecondNetwork<'a>(&'a Network);

const GUESTS: [(&str, u32); 2] = [("h1", 1), ("h2", 2)];

impl<'a> SecondNetwork<'a> {
    fn new(network: &'a Network) -> Self {
        let made = Self(network);
        for (host, number) in GUESTS {
            // A soft-RoCE device needs an interface with a hardware address of its own. Both interfaces are in one
            // Ethernet network, where Linux answers for an address with the hardware address of any of them; the packets
            // of rxe1 would arrive at rxe0.
            let lines = format!(
                "set -e; modprobe macvlan
                sysctl -q net.ipv4.conf.all.arp_ignore=1 net.ipv4.conf.all.arp_announce=2
                eth=$(basename $(dirname $(grep -l 52:54:00:77 /sys/class/net/*/address)))
                ip link add net1 link $eth type macvlan mode bridge
                ip addr add 10.78.0.{number}/24 dev net1; ip link set net1 mtu 9000 up
                rdma link add rxe1 type rxe netdev net1"
            );
            network.ssh(host, &lines).start().end().exits(0);
            let gids = "grep -qs :ffff: /sys/class/infiniband/rxe1/ports/1/gids/*";
            eventually("an IPv4 GID", || {
                let end = network.ssh(host, gids).start().end();
                (end.code() == 0).then_some(())
            });
        }
        // The port refuses, so both guests know each other's hardware address: an emulated processor may take longer to
        // find it than a queue pair has to carry its first frame.
        let line = "bash -c '</dev/tcp/10.78.0.2/9' 2>&1 | grep refused";
        network.ssh("h1", line).start().end().exits(0);
        made
    }

    /// Lets no packet of the first or the second network arrive any more; the ports stay active.
    fn cut(&self, network: usize) {
        for ((host, _), (_, other)) in GUESTS.into_iter().zip(GUESTS.into_iter().rev()) {
            let address = format!("10.{}.0.{other}", 77 + network);
            let line = format!(
                "dev=$(ip route get {address} | sed -n 's/.* dev \\([^ ]*\\) .*/\\1/p')
                ip neigh replace {address} lladdr 02:00:00:00:00:01 dev $dev"
            );
            self.0.ssh(host, &line).start().end().exits(0);
        }
    }

    /// Returns how many bytes h2 has received over the second network.
    fn received(&self) -> u64 {
        let line = "cat /sys/class/net/net1/statistics/rx_bytes";
        let end = self.0.ssh("h2", line).start().end();
        let count = String::from_utf8_lossy(&end.stdout);
        count.trim().parse().expect("a number of bytes")
    }

    /// Sends a file from h1 to h2 over two rails, with the control connection over the first network, and calls `midway`
    /// when a part has been read. Checks the bytes, and returns the ends of the receiver and the sender.
    fn transfer(&self, midway: impl FnOnce()) -> [End; 2] {
        let network = self.0;
        for name in ["midway", "go"] {
            let _ = fs::remove_file(network.file("h2", name));
        }
        // An emulated processor needs a long timeout.
        let options = format!(
            "{} -v --transport rdma --rails 2 --chunk 64K --depth 4 --timeout 60",
            key()
        );
        // The pools and the pipe hold a tenth of the file, so every rail has more to carry after the pause.
        let line = format!(
            "rdrecv 5000 {options} | {{ head -c 1M; touch midway; until [ -e go ]; do sleep 0.1; done; cat; }} | sha256sum"
        );
        let receiver = network.ssh("h2", &line).start();
        let line = format!(
            "head -c {BYTES} /dev/urandom >sent && rdsend 10.77.0.2 5000 {options} --connect-timeout 60 <sent \
            && sha256sum <sent"
        );
        let sender = network.ssh("h1", &line).start();
        let there = network.file("h2", "midway");
        eventually("a part of the bytes", || {
            let over = there.exists() || !receiver.runs() || !sender.runs();
            over.then_some(())
        });
        midway();
        network.write("h2", "go", b"");
        let ends = [receiver.end(), sender.end()];
        println!("{}{}", ends[0].stderr, ends[1].stderr);
        for end in &ends {
            end.exits(0);
        }
        assert_eq!(ends[0].stdout, ends[1].stdout);
        ends
    }
}

impl Drop for SecondNetwork<'_> {
    fn drop(&mut self) {
        // The device goes with its interface.
        let line = "ip link del net1; ip neigh flush all nud permanent";
        for (host, _) in GUESTS {
            self.0.ssh(host, line).start().end();
        }
    }
}

#[test]
fn two_rails_use_the_devices_of_two_networks() {
    let Some(network) = Network::of_guests() else {
        return;
    };
    let second = SecondNetwork::new(&network);
    let before = second.received();
    let ends = second.transfer(|| ());
    for end in ends {
        let text = end.exits(0);
        assert!(
            text.contains("rxe0 port 1") && text.contains(" and rxe1 port 1"),
            "{text}"
        );
        assert!(text.contains(", 2 rails,"), "{text}");
    }
    let share = second.received() - before;
    assert!(share > BYTES / 5 && share < BYTES * 4 / 5, "{share}");
}

#[test]
fn a_stream_goes_on_over_one_of_two_networks_when_the_other_dies() {
    let Some(network) = Network::of_guests() else {
        return;
    };
    for (lost, left) in [(1, 0), (0, 1)] {
        let second = SecondNetwork::new(&network);
        for end in second.transfer(|| second.cut(lost)) {
            let text = end.exits(0);
            let lost = format!("the link over rxe{lost} port 1");
            let (_, after) = text.split_once(&lost).expect(text);
            let says = format!("is lost, and its rail goes on over rxe{left} port 1");
            assert!(
                after
                    .lines()
                    .next()
                    .is_some_and(|line| line.contains(&says)),
                "{text}"
            );
        }
    }
}
