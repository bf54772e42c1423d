//! Faults of a network of namespaces: slow and lossy links, firewalls, and links that delay.

use crate::support::programs::{hosts::Network, skip};

/// Returns true, and prints the reason, if the machine lacks a program or a part of the kernel that a fault needs.
/// `line` tries it on h1, and undoes it. With `RDPIPE_REQUIRE_HOSTS=1` the test fails instead.
#[track_caller]
fn lacks(network: &Network, what: &str, line: &str) -> bool {
    let tried = network.on("h1", &format!("if {line}; then echo works; fi 2>&1"));
    if tried.contains("works") {
        return false;
    }
    let required = std::env::var("RDPIPE_REQUIRE_HOSTS").is_ok_and(|value| value == "1");
    assert!(!required, "no {what}: {tried}");
    skip(&format!("no {what} to test with: {}", tried.trim()));
    true
}

/// Returns true, and prints the reason, if nftables cannot be used.
#[track_caller]
pub(crate) fn lacks_firewall(network: &Network) -> bool {
    let line = "nft add table inet probe && nft delete table inet probe";
    lacks(network, "firewall", line)
}

/// Returns true, and prints the reason, if no traffic can be slowed down.
#[track_caller]
pub(crate) fn lacks_shaping(network: &Network) -> bool {
    let line = "tc qdisc add dev eth0 root handle 1: htb && \
                tc filter add dev eth0 parent 1: protocol ip u32 match ip dst 10.77.0.9 flowid 1:2 && \
                tc qdisc del dev eth0 root && \
                tc qdisc add dev eth0 root tbf rate 1gbit burst 100kb limit 100kb && \
                tc qdisc del dev eth0 root";
    lacks(network, "traffic control (htb, u32, tbf)", line)
}

/// Sends what `from` sends to the address `to` at 100 Mbit/s.
#[track_caller]
pub(crate) fn slow_down(network: &Network, from: &str, to: &str) {
    let line = format!(
        "tc qdisc add dev eth0 root handle 1: htb default 1 && \
         tc class add dev eth0 parent 1: classid 1:1 htb rate 10gbit && \
         tc class add dev eth0 parent 1: classid 1:2 htb rate 100mbit && \
         tc filter add dev eth0 parent 1: protocol ip u32 match ip dst {to} flowid 1:2"
    );
    network.on(from, &line);
}

/// Delays what `host` sends by a millisecond: with netem, or with a rate at which a packet of 150 bytes takes longer.
#[track_caller]
pub(crate) fn delay(network: &Network, host: &str) {
    network.on(
        host,
        "tc qdisc add dev eth0 root netem delay 20ms || \
         tc qdisc add dev eth0 root tbf rate 50kbit burst 2kb limit 100kb",
    );
}

/// Drops 5 in 100 packets that arrive at `host` from the address `from`.
#[track_caller]
pub(crate) fn drop_some(network: &Network, host: &str, from: &str) {
    rule(
        network,
        host,
        &format!("ip saddr {from} numgen random mod 100 < 5 drop"),
    );
}

/// Drops all packets that arrive at `host` from the address `from`.
#[track_caller]
pub(crate) fn cut(network: &Network, host: &str, from: &str) {
    rule(network, host, &format!("ip saddr {from} drop"));
}

/// Refuses all TCP connections to `host` from the address `from`, apart from those of ssh.
#[track_caller]
pub(crate) fn refuse(network: &Network, host: &str, from: &str) {
    block(network, host, from, "reject with tcp reset");
}

/// Drops the packets that begin a TCP connection to `host` from the address `from`, apart from those of ssh.
#[track_caller]
pub(crate) fn swallow(network: &Network, host: &str, from: &str) {
    block(network, host, from, "drop");
}

#[track_caller]
fn block(network: &Network, host: &str, from: &str, verdict: &str) {
    let begins = "tcp flags & (syn|ack) == syn tcp dport != 22";
    rule(
        network,
        host,
        &format!("ip saddr {from} {begins} {verdict}"),
    );
}

/// Adds a rule for packets that arrive at `host`.
#[track_caller]
fn rule(network: &Network, host: &str, rule: &str) {
    let line = format!(
        "nft add table inet faults && \
         nft 'add chain inet faults arriving {{ type filter hook input priority 0; }}' && \
         nft 'add rule inet faults arriving {rule}'"
    );
    network.on(host, &line);
}
