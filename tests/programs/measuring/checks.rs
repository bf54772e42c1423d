//! What `--check` finds, and how it says to repair that; and faults of a network of namespaces: slow and lossy links,
//! firewalls, and links that delay.

use super::{
    quick,
    reports::{Report, lines},
};
use crate::support::{
    missing_rdma,
    programs::{
        End,
        hosts::{Network, Outcome},
        skip,
    },
};

/// Checks two hosts, and returns the report and how rdperf ended.
#[track_caller]
fn check(network: &Network, options: &[&str]) -> (Report, End) {
    let arguments = [options, &["--check", "--json=-", "h1", "h2"]].concat();
    let end = network.rdperf(arguments).start().end();
    (Report::of(&end), end)
}

#[test]
fn healthy_hosts_need_no_repair() {
    let Some(network) = Network::new(2) else {
        return;
    };
    let end = network
        .rdperf(["--check", "--transport", "tcp", "h1", "h2"])
        .start()
        .end();
    assert_eq!(end.exits(0), "");
    assert_eq!(lines(&end).last().map(String::as_str), Some("All is well."));
    let (report, end) = check(&network, &["--transport", "tcp"]);
    end.exits(0);
    assert_eq!(report.0["exit"], 0);
    assert!(report.repairs().is_empty(), "{:#}", report.0);
    let choice = &report.list("choices")[0];
    assert_eq!(
        (&choice["from"], &choice["to"]),
        (&"h1".into(), &"h2".into())
    );
    assert_eq!(choice["transport"], "TCP");
    assert!(report.list("series").is_empty());
}

#[test]
fn a_blocked_direction_is_named_with_its_remedy() {
    let Some(network) = Network::new(2) else {
        return;
    };
    if lacks_firewall(&network) {
        return;
    }
    refuse(&network, "h2", "10.77.0.1");
    let (report, end) = check(&network, &[]);
    end.exits(1);
    assert_eq!(report.0["exit"], 1);
    assert_eq!(report.subjects("firewall-tcp"), ["h1 to h2"]);
    let remedy = report.remedy("firewall-tcp", "h1 to h2");
    assert!(remedy.starts_with("on h2: "), "{remedy}");
    assert!(
        remedy.contains("firewall-cmd") && remedy.contains("nft"),
        "{remedy}"
    );
    // The ports of -p are those to open.
    let (report, end) = check(&network, &["-p", "7001-7009"]);
    end.exits(1);
    let remedy = report.remedy("firewall-tcp", "h1 to h2");
    assert!(remedy.contains("7001-7009"), "{remedy}");
    // The other direction works, so the pair can be measured: the host that can be reached listens.
    let measured = ["--json=-", "--measure", "connect", "h1", "h2"];
    let end = network.rdperf(quick(&measured)).start().end();
    end.exits(0);
    let report = Report::of(&end);
    let series = &report.list("series")[0];
    assert_eq!(
        (&series["from"], &series["to"]),
        (&"h2".into(), &"h1".into())
    );
}

#[test]
fn hosts_that_do_not_reach_each_other_are_named_in_both_directions() {
    let Some(network) = Network::new(2) else {
        return;
    };
    if lacks_firewall(&network) {
        return;
    }
    swallow(&network, "h2", "10.77.0.1");
    swallow(&network, "h1", "10.77.0.2");
    let (report, end) = check(&network, &[]);
    end.exits(1);
    assert_eq!(report.subjects("firewall-tcp"), ["h1 to h2", "h2 to h1"]);
    for (subject, host) in [("h1 to h2", "on h2: "), ("h2 to h1", "on h1: ")] {
        let remedy = report.remedy("firewall-tcp", subject);
        assert!(remedy.starts_with(host), "{remedy}");
    }
    let end = network.rdperf(["--check", "h1", "h2"]).start().end();
    end.exits(1);
    assert_eq!(
        lines(&end).last().map(String::as_str),
        Some("2 things to repair.")
    );
    // Nothing can be measured, and that is an error.
    let end = network.rdperf(quick(&["h1", "h2"])).start().end();
    end.tells(255, &["h1", "h2"]);
    network.assert_empty(end.at, std::time::Duration::from_secs(5));
}

#[test]
fn an_mtu_that_the_path_does_not_carry_is_named() {
    let Some(network) = Network::new(2) else {
        return;
    };
    network.on("h1", "ip link set dev eth0 mtu 9000");
    let (report, end) = check(&network, &["--transport", "tcp"]);
    end.exits(1);
    assert_eq!(report.repairs(), ["mtu-path"], "{:#}", report.0);
    let remedy = report.remedy("mtu-path", "h1 to h2");
    assert!(
        remedy.contains("on h1: `sudo ip link set dev eth0 mtu 1500`"),
        "{remedy}"
    );
    // The MTU of h2 is right.
    assert!(!remedy.contains("on h2: "), "{remedy}");
    network.on("h1", "ip link set dev eth0 mtu 1500");
    let (report, end) = check(&network, &["--transport", "tcp"]);
    end.exits(0);
    assert!(report.repairs().is_empty(), "{:#}", report.0);
    // A host that receives less than the others send.
    network.on("h2", "ip link set dev eth0 mtu 1300");
    let (report, end) = check(&network, &["--transport", "tcp"]);
    end.exits(1);
    let remedy = report.remedy("mtu-path", "h1 to h2");
    assert!(
        remedy.contains("on h1: `sudo ip link set dev eth0 mtu 1300`"),
        "{remedy}"
    );
}

#[test]
fn a_lack_of_rdma_is_a_note_unless_rdma_is_required() {
    if missing_rdma().is_none() {
        // This machine has RDMA, or should have it.
        return;
    }
    let Some(network) = Network::new(2) else {
        return;
    };
    let (finding, remedy) = if cfg!(feature = "rdma") {
        ("no-rdma", "rdma link add rxe0 type rxe netdev eth0")
    } else {
        ("no-rdma-build", "build it with RDMA: `scripts/install`")
    };
    let (report, end) = check(&network, &[]);
    end.exits(0);
    assert!(report.repairs().is_empty(), "{:#}", report.0);
    assert_eq!(report.subjects(finding), ["h1", "h2"]);
    let (report, end) = check(&network, &["--transport", "rdma"]);
    end.exits(1);
    assert_eq!(report.repairs(), [finding, finding]);
    for host in ["h1", "h2"] {
        let text = report.remedy(finding, host);
        assert!(text.contains(remedy), "{text}");
    }
    // Without --check nothing can be measured, and that is an error.
    let end = network
        .rdperf(["--transport", "rdma", "h1", "h2"])
        .start()
        .end();
    end.tells(255, &["h1", "h2", "RDMA"]);
}

#[test]
fn a_host_with_another_version_is_named() {
    let Some(network) = Network::new(2) else {
        return;
    };
    let script = "printf '\\nrdpipe-agent 99 9.8.7\\n'; cat >/dev/null";
    network.install("h2", "rdpipe", script);
    for options in [&["--check"][..], &["--time", "0.1"]] {
        let arguments = [options, &["h1", "h2"]].concat();
        let end = network.rdperf(arguments).start().end();
        end.tells(255, &["h2", "9.8.7", env!("CARGO_PKG_VERSION")]);
        network.assert_empty(end.at, std::time::Duration::from_secs(5));
    }
}

#[test]
fn a_host_that_is_lost_does_not_hide_the_others() {
    let Some(network) = Network::new(3) else {
        return;
    };
    network.install("h2", "rdpipe", "echo rdpipe: not found >&2; exit 127");
    let arguments = ["--json=-", "--measure", "connect", "h1", "h2", "h3"];
    let end = network.rdperf(quick(&arguments)).start().end();
    end.tells(255, &["h2", "rdpipe"]);
    let report = Report::of(&end);
    assert_eq!(report.0["exit"], 255);
    let series = report.list("series");
    assert_eq!(series.len(), 1, "{:#}", report.0);
    assert_eq!(
        (&series[0]["from"], &series[0]["to"]),
        (&"h1".into(), &"h3".into())
    );
    let errors = report.list("errors").iter();
    assert!(
        errors
            .filter_map(|error| error.as_str())
            .any(|error| error.starts_with("h2: "))
    );
}

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
pub(crate) fn rule(network: &Network, host: &str, rule: &str) {
    let line = format!(
        "nft add table inet faults && \
         nft 'add chain inet faults arriving {{ type filter hook input priority 0; }}' && \
         nft 'add rule inet faults arriving {rule}'"
    );
    network.on(host, &line);
}
