//! Streams between two ends that share two networks, each with an RDMA device at either end: which devices carry a
//! stream, and what happens when one network dies.

use std::{fs, io::Read, process::Command, thread};

use crate::{
    absence::with,
    support::programs::{End, Place, Sight, eventually, ip, key, random_bytes},
    turn,
};

/// The length of the input: many chunks for each rail.
const BYTES: usize = 16 << 20;

/// The number of bytes that arrive before a network dies.
const PART: usize = 1 << 20;

/// Two networks on this machine, until this value is dropped. Network N joins the interfaces aN and bN, of the devices
/// rxeaN and rxebN. The namespaces a and b have interfaces with the same names and addresses: two ends in one namespace
/// would reach each other without a network, and a device serves all namespaces.
struct Networks;

/// The program at this path, in a namespace. The devices stay those of the machine, so /sys does too.
macro_rules! within {
    ($namespace:literal, $path:expr) => {
        concat!("nsenter --net=/run/netns/", $namespace, " ", $path)
    };
}

impl Networks {
    fn new() -> Self {
        // A packet has an address of this machine as its source.
        let set = |interface: &str, name: &str, value: &str| {
            let path = format!("/proc/sys/net/ipv4/conf/{interface}/{name}");
            fs::write(path, value).expect("a setting of the kernel");
        };
        set("all", "rp_filter", "0");
        for end in ["a", "b"] {
            ip(&format!("netns add {end}"));
        }
        for network in [0, 1] {
            ip(&format!(
                "link add a{network} type veth peer name b{network}"
            ));
            ip(&format!(
                "-n a link add a{network} type veth peer name b{network} netns b"
            ));
            for (end, number) in [("a", 1), ("b", 2)] {
                let interface = format!("{end}{network}");
                set(&interface, "accept_local", "1");
                set(&interface, "rp_filter", "0");
                let address = format!("10.{}.0.{number}/24", 96 + network);
                for namespace in ["", &format!("-n {end} ")] {
                    ip(&format!("{namespace}addr add {address} dev {interface}"));
                    ip(&format!("{namespace}link set {interface} mtu 9000 up"));
                }
            }
        }
        let networks = Self;
        for (network, end) in [(0, "a"), (0, "b"), (1, "a"), (1, "b")] {
            let peer = if end == "a" { "b" } else { "a" };
            let path = format!("/sys/class/net/{peer}{network}/address");
            let hardware = fs::read_to_string(path).expect("an address");
            set_neighbour("", network, end, hardware.trim());
            let (device, interface) = (format!("rxe{end}{network}"), format!("{end}{network}"));
            let add = ["link", "add", &device, "type", "rxe", "netdev", &interface];
            let status = Command::new("rdma").args(add).status();
            assert!(status.is_ok_and(|status| status.success()), "{device}");
            let gids = format!("/sys/class/infiniband/{device}/ports/1/gids");
            let is_ipv4 = |gid: String| gid.contains(":ffff:");
            eventually("an IPv4 GID", || {
                let read = |index| fs::read_to_string(format!("{gids}/{index}"));
                (0..8)
                    .any(|index| read(index).is_ok_and(is_ipv4))
                    .then_some(())
            });
        }
        networks
    }
}

impl Drop for Networks {
    fn drop(&mut self) {
        // The other interface and both devices go with it.
        ip("link del a0");
        ip("link del a1");
        ip("netns del a");
        ip("netns del b");
    }
}

/// Sets the hardware address to which this end of a network sends, in a namespace if the option `-n` names one.
fn set_neighbour(namespace: &str, network: usize, end: &str, hardware: &str) {
    let number = if end == "a" { 2 } else { 1 };
    let address = format!("10.{}.0.{number}", 96 + network);
    ip(&format!(
        "{namespace}neigh replace {address} lladdr {hardware} dev {end}{network}"
    ));
}

/// Lets no packet arrive any more; the ports stay active.
fn cut(network: usize) {
    for end in ["a", "b"] {
        for namespace in ["", &format!("-n {end} ")] {
            set_neighbour(namespace, network, end, "02:00:00:00:00:01");
        }
    }
}

/// Returns how many bytes the sender has sent over each network.
fn sent() -> [u64; 2] {
    [0, 1].map(|network| {
        let path = format!("/sys/class/net/b{network}/statistics/tx_bytes");
        let text = fs::read_to_string(path).expect("a count");
        text.trim().parse().expect("a number of bytes")
    })
}

/// Sends [`BYTES`] from the ends b to the ends a, with the control connection over network 0, and calls `midway` when a
/// part has been read. Checks the bytes, and returns the ends of the receiver and the sender.
fn transfer(options: &str, midway: impl FnOnce()) -> [End; 2] {
    let place = Place::new();
    let data = random_bytes(BYTES);
    let input = place.file("in", &data);
    let options = format!(
        "{} -v --transport rdma --chunk 64K --depth 4 {options}",
        key()
    );
    let receiver = within!("a", env!("CARGO_BIN_EXE_rdrecv"));
    let receiver = Sight::Only("rxea0 rxea1").of(receiver, "rdrecv");
    let receiver = with(receiver, &format!("0 {options}"));
    let mut receiver = receiver.start_raw();
    let sender = within!("b", env!("CARGO_BIN_EXE_rdsend"));
    let sender = Sight::Only("rxeb0 rxeb1").of(sender, "rdsend");
    // An emulated processor may need a second attempt.
    let line = format!(
        "10.96.0.1 {} {options} --connect-timeout 60 -i {input}",
        receiver.port()
    );
    let sender = with(sender, &line).start();
    // The pools and the pipe hold a tenth of what is left, so every rail has more to carry after this.
    let mut output = receiver.take_stdout();
    let reader = thread::spawn(move || {
        let mut got = vec![0; PART];
        output.read_exact(&mut got).map(|()| (output, got))
    });
    // The receiver waits for another sender when one fails before there is a stream.
    eventually("a part of the bytes", || {
        (reader.is_finished() || !sender.runs()).then_some(())
    });
    if !sender.runs() {
        sender.end().exits(0);
        unreachable!("the sender ended before the receiver had read all");
    }
    midway();
    let (mut output, mut got) = reader.join().unwrap().expect("a part of the bytes");
    let result = output.read_to_end(&mut got);
    let ends = [receiver.end(), sender.end()];
    println!("{}{}", ends[0].stderr, ends[1].stderr);
    for end in &ends {
        end.exits(0);
    }
    result.expect("all bytes");
    assert!(got == data, "other bytes");
    ends
}

#[test]
fn rails_use_the_devices_of_both_networks() {
    let Some(_turn) = turn() else { return };
    let _networks = Networks::new();
    let before = sent();
    let ends = transfer("--rails 2", || ());
    for (end, name) in ends.iter().zip(["a", "b"]) {
        assert!(
            end.stderr.contains(&format!("RDMA (rxe{name}0 port 1")),
            "{end:?}"
        );
        assert!(
            end.stderr.contains(&format!(" and rxe{name}1 port 1")),
            "{end:?}"
        );
        assert!(end.stderr.contains(", 2 rails,"), "{end:?}");
    }
    for (before, after) in before.into_iter().zip(sent()) {
        let sent = after - before;
        assert!(sent > BYTES as u64 / 5, "{sent} of {BYTES}");
    }
}

#[test]
fn a_stream_goes_on_over_the_other_network_when_one_dies() {
    let Some(_turn) = turn() else { return };
    for (options, lost) in [("--rails 1", 0), ("--rails 2", 0), ("--rails 2", 1)] {
        let _networks = Networks::new();
        let ends = transfer(options, || cut(lost));
        let left = 1 - lost;
        for (end, name) in ends.iter().zip(["a", "b"]) {
            let [lost, left] = [lost, left].map(|number| format!("rxe{name}{number} port 1"));
            let text = end.exits(0);
            let (_, after) = text
                .split_once(&format!("the link over {lost}"))
                .expect(text);
            let says = format!("is lost, and its rail goes on over {left}");
            assert!(after.lines().next().unwrap().contains(&says), "{text}");
        }
        // The end that finds this first moves the control connection; the stream may be over before the other one does.
        // A link alone is replaced before either end finds it.
        let says = |(end, peer): (&End, u8)| {
            let text = format!(
                "the network of 10.96.0.{peer} is lost, and the stream goes on over 10.97.0.{peer}: "
            );
            end.stderr.contains(&text)
        };
        let is_said = ends.iter().zip([2, 1]).any(says);
        assert!(is_said || lost == 1, "{ends:?}");
    }
}
