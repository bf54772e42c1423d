//! Streams between hosts that share several networks: which of them carry the data.

use crate::{
    measuring::checks::{lacks_firewall, rule},
    support::programs::{End, hosts::Network, key},
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
