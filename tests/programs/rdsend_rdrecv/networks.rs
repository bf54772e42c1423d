//! Streams between hosts that share several networks: which of them carry the data, and what happens when one is lost.

use std::time::{Duration, Instant};

use crate::{
    measuring::checks::{lacks_firewall, lacks_shaping, rule},
    support::programs::{End, Running, eventually, hosts::Network, key, limit},
};

/// The length of the input: many chunks for each rail.
const BYTES: u64 = 32 << 20;

/// Two hosts with a second network, 10.78.0.0/24.
fn hosts() -> Option<Network> {
    let network = Network::new(2)?;
    network.join("net1", [("h1", "10.78.0.1/24"), ("h2", "10.78.0.2/24")]);
    Some(network)
}

/// Sends a file from h2 to h1 at 10.77.0.1 with these options for both ends. Returns both ends, which say what carried
/// the stream, and the number of bytes that arrived at h1 over the second network. The pools are small, so that no rail
/// gets far ahead of the others.
#[track_caller]
fn transfer(network: &Network, options: &str) -> ([End; 2], u64) {
    let options = format!(
        "{} -v --transport tcp --chunk 64K --depth 4 {options}",
        key()
    );
    let carried = || -> u64 {
        let count = network.on("h1", "cat /sys/class/net/net1/statistics/rx_bytes");
        count.trim().parse().expect("a number of bytes")
    };
    let before = carried();
    let line = format!("rdrecv 5000 {options} | sha256sum");
    let receiver = network.ssh("h1", &line).start();
    let input = format!("head -c {BYTES} /dev/urandom >sent");
    let line = format!("{input}; rdsend 10.77.0.1 5000 {options} <sent");
    let sender = network.ssh("h2", &line).start();
    let ends = [sender.end(), receiver.end()];
    for end in &ends {
        end.exits(0);
    }
    let digest = network.on("h2", "sha256sum <sent");
    assert_eq!(String::from_utf8_lossy(&ends[1].stdout), digest);
    (ends, carried() - before)
}

#[test]
fn rails_that_the_user_asks_for_use_all_networks_of_both_hosts() {
    let Some(network) = hosts() else {
        return;
    };
    let (ends, carried) = transfer(&network, "--rails 4");
    // Two of the four rails.
    assert!(carried > BYTES / 5 && carried < BYTES * 4 / 5, "{carried}");
    let addresses = ["10.77.0.1 and 10.78.0.1", "10.77.0.2 and 10.78.0.2"];
    for (end, addresses) in ends.iter().zip(addresses) {
        let expected = format!("; rails to {addresses}), 4 rails,");
        assert!(end.stderr.contains(&expected), "{}", end.stderr);
    }
}

#[test]
fn data_stays_on_the_network_that_the_user_named_unless_he_asks_for_rails() {
    let Some(network) = hosts() else {
        return;
    };
    for options in ["", "--rails 1"] {
        let (ends, carried) = transfer(&network, options);
        assert!(carried < BYTES / 100, "{carried}");
        assert!(!ends[0].stderr.contains("rails to"), "{}", ends[0].stderr);
    }
}

#[test]
fn a_network_that_carries_nothing_is_left_out() {
    let Some(network) = hosts() else {
        return;
    };
    if lacks_firewall(&network) {
        return;
    }
    rule(&network, "h1", "iifname net1 drop");
    let (ends, _) = transfer(&network, "--rails 4");
    for end in ends {
        let said = end.exits(0);
        assert!(
            said.contains(", 4 rails,") && !said.contains("rails to"),
            "{said}"
        );
    }
}

/// The length of the input of a stream that loses a network: some two seconds over both.
const LONG: u64 = 96 << 20;

/// How a network between h1 and h2 is cut.
#[derive(Clone, Copy)]
enum Cut {
    /// No packet arrives any more.
    Silent,
    /// The interface of h1 is down.
    Down,
    /// Each packet of the second network is answered with a reset.
    Reset,
    /// No packet of the stream arrives any more over the first network.
    FirstSilent,
    /// Each packet of the stream over the first network is answered with a reset.
    FirstReset,
    /// No packet of the stream arrives any more, over either network.
    Both,
}

impl Cut {
    #[track_caller]
    fn apply(self, network: &Network) {
        match self {
            Self::Down => _ = network.on("h1", "ip link set net1 down"),
            Self::Silent => {
                for host in ["h1", "h2"] {
                    rule(network, host, "iifname net1 drop");
                }
            }
            Self::Reset => {
                let reset = "iifname net1 meta l4proto tcp reject with tcp reset";
                rule(network, "h1", reset);
            }
            Self::FirstSilent => {
                rule(network, "h1", "iifname eth0 tcp dport 5000 drop");
                rule(network, "h2", "iifname eth0 tcp sport 5000 drop");
            }
            Self::FirstReset => {
                let reset = "iifname eth0 tcp dport 5000 reject with tcp reset";
                rule(network, "h1", reset);
            }
            Self::Both => {
                rule(network, "h1", "tcp dport 5000 drop");
                rule(network, "h2", "tcp sport 5000 drop");
            }
        }
    }
}

/// Begins to send from h2 to h1, over two networks of 200 Mbit/s each, and cuts one of them when some of the bytes have
/// arrived. Returns both ends, the time since the cut, and the digest of what was sent. None if it cannot be tried here.
#[track_caller]
fn interrupted(
    cut: Cut,
    options: &str,
    [source, sink]: [&str; 2],
) -> Option<([End; 2], Instant, String)> {
    let network = slow_hosts()?;
    let [sender, receiver] = start(&network, options, [source, sink]);
    until_some_has_arrived(&network);
    cut.apply(&network);
    let since = Instant::now();
    let ends = [sender.end(), receiver.end()];
    let digest = network.on("h2", "sha256sum <sent");
    Some((ends, since, digest))
}

/// Two hosts with two networks, over each of which h2 sends 200 Mbit/s, and a file on h2. None if it cannot be tried
/// here.
fn slow_hosts() -> Option<Network> {
    let network = hosts()?;
    if lacks_firewall(&network) || lacks_shaping(&network) {
        return None;
    }
    for device in ["eth0", "net1"] {
        let shape = "root tbf rate 200mbit burst 100kb limit 200kb";
        network.on("h2", &format!("tc qdisc add dev {device} {shape}"));
    }
    network.on("h2", &format!("head -c {LONG} /dev/urandom >sent"));
    Some(network)
}

/// The options of the streams that lose a network.
const OPTIONS: &str = "-v --transport tcp --chunk 64K --depth 8 --rails 4 --timeout 4";

/// Starts both ends of a stream from h2 to h1.
fn start(network: &Network, options: &str, [source, sink]: [&str; 2]) -> [Running; 2] {
    let options = format!("{} {OPTIONS} {options}", key());
    let receiver = format!("rdrecv 5000 {options} {sink}");
    let receiver = network.ssh("h1", &receiver).start();
    let sender = source.replace("SEND", &format!("rdsend 10.77.0.1 5000 {options}"));
    [network.ssh("h2", &sender).start(), receiver]
}

/// Waits until a part of the bytes has arrived at h1 over the second network.
#[track_caller]
fn until_some_has_arrived(network: &Network) {
    eventually("a part of the bytes to arrive over net1", || {
        let count = network.on("h1", "cat /sys/class/net/net1/statistics/rx_bytes");
        let count: u64 = count.trim().parse().expect("a number of bytes");
        (count > LONG / 8).then_some(())
    });
}

/// A stream that loses one of two networks goes on over the other one, and says so.
#[track_caller]
fn goes_on(cut: Cut, options: &str, ends: [&str; 2]) {
    let Some((ends, _, digest)) = interrupted(cut, options, ends) else {
        return;
    };
    let [lost, left] = match cut {
        Cut::FirstSilent | Cut::FirstReset => [77, 78],
        _ => [78, 77],
    };
    for (end, number) in ends.iter().zip([1, 2]) {
        let said = end.exits(0);
        let expected = format!(
            "the network of 10.{lost}.0.{number} is lost, and the stream goes on over 10.{left}.0.{number}: "
        );
        assert!(said.contains(&expected), "{said}");
    }
    assert_eq!(String::from_utf8_lossy(&ends[1].stdout), digest);
}

const PIPES: [&str; 2] = ["cat sent | SEND", "| sha256sum"];
const FILES: [&str; 2] = ["SEND <sent", "-o received && sha256sum <received"];

#[test]
fn a_network_that_goes_silent_is_replaced_between_files() {
    goes_on(Cut::Silent, "--encrypt always", FILES);
}

#[test]
fn a_network_that_goes_silent_is_replaced_between_pipes() {
    goes_on(Cut::Silent, "--encrypt never", PIPES);
}

#[test]
fn a_network_whose_interface_goes_down_is_replaced() {
    goes_on(Cut::Down, "--encrypt always", PIPES);
}

#[test]
fn a_network_that_resets_connections_is_replaced() {
    goes_on(Cut::Reset, "--encrypt never", FILES);
}

#[test]
fn the_network_of_the_control_connection_goes_silent_between_pipes() {
    goes_on(Cut::FirstSilent, "--encrypt always", PIPES);
}

#[test]
fn the_network_of_the_control_connection_goes_silent_between_files() {
    goes_on(Cut::FirstSilent, "--encrypt never", FILES);
}

#[test]
fn the_network_of_the_control_connection_resets_connections() {
    goes_on(Cut::FirstReset, "--encrypt always", FILES);
}

#[test]
fn the_loss_of_all_networks_ends_both_ends_in_time() {
    let Some((ends, since, _)) = interrupted(Cut::Both, "", FILES) else {
        return;
    };
    // A last message may be under way when the networks are cut.
    assert!(since.elapsed() < limit(Duration::from_secs(8)));
    for end in &ends {
        assert_ne!(end.code(), 0);
        let silent = "received nothing from the other end for 4.0s";
        assert!(end.stderr.contains(silent), "{}", end.stderr);
    }
}

/// A process that dies is no lost network, and is noticed as fast as over one.
#[test]
fn a_peer_that_dies_is_noticed_at_once() {
    let Some(network) = slow_hosts() else {
        return;
    };
    let [sender, receiver] = start(&network, "", PIPES);
    until_some_has_arrived(&network);
    network.process("h1", "rdrecv 5000").kill();
    let since = Instant::now();
    let end = sender.end();
    assert!(since.elapsed() < limit(Duration::from_secs(1)));
    assert_ne!(end.code(), 0);
    let said = &end.stderr;
    assert!(
        said.contains("the other end died") && !said.contains("is lost"),
        "{said}"
    );
    drop(receiver.end());
}

#[test]
fn an_edge_of_a_pipeline_goes_on_over_the_other_network() {
    let Some(network) = slow_hosts() else {
        return;
    };
    let options = OPTIONS.split(' ');
    let stages = ["h2:cat sent", "h1:sha256sum"];
    let pipeline = network.rdpipe(options.chain(stages)).start();
    until_some_has_arrived(&network);
    Cut::Silent.apply(&network);
    let end = pipeline.end();
    end.exits(0);
    let digest = network.on("h2", "sha256sum <sent");
    assert_eq!(String::from_utf8_lossy(&end.stdout), digest);
}
