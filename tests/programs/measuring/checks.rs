//! What `--check` finds, and how it says to repair that.

use super::{
    faults::{lacks_firewall, refuse, swallow},
    quick,
    reports::{Report, lines},
};
use crate::support::{
    missing_rdma,
    programs::{
        End,
        hosts::{Network, Outcome},
    },
};

/// Checks two hosts, and returns the report and how rdperf ended.
#[track_caller]
fn check(network: &Network, options: &[&str]) -> (Report, End) {
    let arguments = [options, &["--check", "--json", "h1", "h2"]].concat();
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
    let measured = ["--json", "--measure", "connect", "h1", "h2"];
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
    let (report, end) = check(&network, &[]);
    end.exits(0);
    assert!(report.repairs().is_empty(), "{:#}", report.0);
    assert_eq!(report.subjects("no-rdma"), ["h1", "h2"]);
    let (report, end) = check(&network, &["--transport", "rdma"]);
    end.exits(1);
    assert_eq!(report.repairs(), ["no-rdma", "no-rdma"]);
    for host in ["h1", "h2"] {
        let remedy = report.remedy("no-rdma", host);
        assert!(
            remedy.contains("rdma link add rxe0 type rxe netdev eth0"),
            "{remedy}"
        );
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
    let arguments = ["--json", "--measure", "connect", "h1", "h2", "h3"];
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
