//! rdperf: what is measured, and what is found when something is wrong.

mod sweeps;

use std::process::Command;

use serde_json::Value;

use crate::support::programs::{End, Setup, hosts::Network};

/// Prepares a run of rdperf with these arguments.
fn prepared(network: &Network, arguments: &[&str]) -> Setup {
    let config = network.own("ssh_config");
    let setup = network.program(env!("CARGO_BIN_EXE_rdperf"), "rdperf");
    let setup = setup
        .arg("--ssh-opt")
        .arg(format!("-F {}", config.display()));
    // An emulated processor needs a long timeout.
    setup.args(["--timeout", "120"]).args(arguments)
}

#[track_caller]
fn rdperf(network: &Network, arguments: &[&str]) -> End {
    let end = prepared(network, arguments).start().end();
    println!(
        "{arguments:?}:\n{}\n{}",
        end.stderr,
        String::from_utf8_lossy(&end.stdout)
    );
    end
}

/// Runs rdperf with `--json=-` and these arguments, and returns its report. It exits with `code`.
#[track_caller]
fn report(network: &Network, code: i32, arguments: &[&str]) -> Value {
    let end = rdperf(network, &[&["--json=-"], arguments].concat());
    end.exits(code);
    serde_json::from_slice(&end.stdout).expect("it is JSON")
}

/// Runs a line of shell on a host, which must succeed.
#[track_caller]
fn on(network: &Network, host: &str, line: &str) {
    network.ssh(host, line).start().end().exits(0);
}

/// Undoes what a test has done to a host, when it ends.
struct Undo<'a> {
    network: &'a Network,
    host: &'static str,
    line: &'static str,
}

impl Drop for Undo<'_> {
    fn drop(&mut self) {
        self.network.ssh(self.host, self.line).start().end();
    }
}

/// Returns the measurements of a report that `is_of` selects.
fn series(report: &Value, is_of: impl Fn(&Value) -> bool) -> Vec<&Value> {
    let all = report["series"].as_array().expect("series");
    all.iter().filter(|series| is_of(&series["what"])).collect()
}

/// Returns the value of the first run of a measurement.
fn value(series: &Value) -> f64 {
    series["runs"][0]["value"].as_f64().expect("a value")
}

/// Returns the finding with this code. Fails if there is none.
#[track_caller]
fn finding<'a>(report: &'a Value, code: &str) -> &'a Value {
    let findings = report["findings"].as_array().expect("findings");
    let found = findings.iter().find(|finding| finding["code"] == code);
    found.unwrap_or_else(|| panic!("no {code} in {findings:#?}"))
}

/// Checks that a report names one thing to repair, with these words in its remedy.
#[track_caller]
fn is_to_repair(report: &Value, code: &str, subject: &str, remedy: &str) {
    let finding = finding(report, code);
    assert_eq!(finding["severity"], "repair", "{finding:#}");
    assert!(
        finding["subject"].as_str().unwrap().contains(subject),
        "{finding:#}"
    );
    assert!(
        finding["remedy"].as_str().unwrap().contains(remedy),
        "{finding:#}"
    );
}

#[test]
fn a_pair_is_measured_over_rdma_beside_tcp_and_with_verbs() {
    let Some(network) = Network::of_guests() else {
        return;
    };
    let report = report(&network, 0, &["--time=0.2", "--runs=1", "h1", "h2"]);
    assert_eq!(report["choices"][0]["transport"], "RDMA", "{report:#}");
    for (measure, carrier, transport) in [
        ("bandwidth", "stream", "tcp"),
        ("bandwidth", "stream", "rdma"),
        ("bandwidth", "socket", "tcp"),
        ("bandwidth", "write", "rdma"),
        ("latency", "stream", "rdma"),
        ("latency", "send", "rdma"),
        ("latency", "write", "rdma"),
        ("latency", "socket", "tcp"),
    ] {
        let found = series(&report, |what| {
            what["measure"] == measure
                && what["carrier"] == carrier
                && what["transport"] == transport
        });
        assert!(!found.is_empty(), "{measure} {carrier} {transport}");
        assert!(found.iter().all(|series| value(series) > 0.0), "{found:#?}");
    }
    let over_rdma = series(&report, |what| {
        what["carrier"] == "stream" && what["transport"] == "rdma"
    });
    for series in over_rdma {
        let link = series["runs"][0]["link"].as_str().expect("a link");
        assert!(link.contains("RoCE v2"), "{link}");
    }
    assert!(
        report["verdict"]
            .as_str()
            .unwrap()
            .contains("RDMA: network")
    );
}

#[test]
fn three_hosts_are_a_matrix_over_rdma() {
    let Some(network) = Network::of_guests() else {
        return;
    };
    let arguments = [
        "--time=0.2",
        "--runs=1",
        "--transport=rdma",
        "h1",
        "h2",
        "h3",
    ];
    let report = report(&network, 0, &arguments);
    let rates = series(&report, |what| what["measure"] == "bandwidth");
    assert_eq!(rates.len(), 6, "{rates:#?}");
    let times = series(&report, |what| what["measure"] == "latency");
    assert_eq!(times.len(), 3, "{times:#?}");
    let end = rdperf(
        &network,
        &[&arguments[..], &["--measure=bandwidth"]].concat(),
    );
    let text = String::from_utf8(end.stdout).unwrap();
    assert!(text.contains("bandwidth, GB/s, RDMA"), "{text}");
    assert!(
        text.trim_end()
            .lines()
            .last()
            .unwrap()
            .starts_with("RDMA: the median of all pairs")
    );
}

#[test]
fn the_table_of_round_trips_has_four_rows_of_figures() {
    let Some(network) = Network::of_guests() else {
        return;
    };
    let end = rdperf(
        &network,
        &["--pingpong", "--time=0.3", "--runs=1", "h1", "h2"],
    );
    end.exits(0);
    let text = String::from_utf8(end.stdout).unwrap();
    let cells = |line: &str| -> Vec<String> {
        line.trim_matches('|')
            .split('|')
            .map(|cell| cell.trim().to_owned())
            .collect()
    };
    let rows: Vec<_> = text.lines().map(cells).collect();
    assert_eq!(
        rows[0],
        ["Where", "What", "RoundTrips / second", "avg. latency in µs"]
    );
    let names: Vec<_> = rows[2..]
        .iter()
        .map(|row| format!("{} {}", row[0], row[1]))
        .collect();
    assert_eq!(
        names,
        [
            "localhost TCP",
            "localhost RDMA",
            "network TCP",
            "network RDMA"
        ]
    );
    for row in &rows[2..] {
        assert!(
            row[2].replace(',', "").parse::<u64>().unwrap() > 0,
            "{row:?}"
        );
        assert!(row[3].parse::<f64>().unwrap() > 0.0, "{row:?}");
    }
}

#[test]
fn a_blocked_port_of_roce_is_found() {
    let Some(network) = Network::of_guests() else {
        return;
    };
    let _undo = Undo {
        network: &network,
        host: "h2",
        line: "nft delete table inet rdperf",
    };
    let rule = "nft add table inet rdperf && nft add chain inet rdperf input '{ type filter hook input priority 0; }' && nft add rule inet rdperf input udp dport 4791 drop";
    on(&network, "h2", rule);
    let report = report(&network, 1, &["--check", "h1", "h2"]);
    is_to_repair(&report, "firewall-udp", "h1 to h2", "4791");
    assert_eq!(report["choices"][0]["transport"], "TCP", "{report:#}");
}

#[test]
fn packets_that_are_larger_than_the_path_are_found() {
    let Some(network) = Network::of_guests() else {
        return;
    };
    // The switch between the guests is a bridge of this namespace: a port of it drops larger packets.
    let links = Command::new("ip")
        .args(["-o", "link", "show", "type", "tun"])
        .output()
        .unwrap();
    let links = String::from_utf8(links.stdout).unwrap();
    let line = links
        .lines()
        .next()
        .unwrap_or_else(|| panic!("no port of a guest"));
    let port = line.split(": ").nth(1).unwrap().to_owned();
    let mut words = line.split(' ');
    words.find(|word| *word == "mtu").unwrap();
    let before = words.next().unwrap();
    let mtu = |bytes: &str| {
        let set = Command::new("ip")
            .args(["link", "set", &port, "mtu", bytes])
            .status();
        assert!(set.unwrap().success());
    };
    mtu("1400");
    let end = rdperf(&network, &["--json=-", "--check", "h1", "h2"]);
    mtu(before);
    end.exits(1);
    let report: Value = serde_json::from_slice(&end.stdout).unwrap();
    is_to_repair(&report, "mtu-path", "h", "mtu 1400");
}

/// Makes the agent of a host run as an ordinary user, with this limit of memory that it may pin.
fn as_ordinary_user(network: &Network, host: &str, memlock_kib: &str) {
    let programs = std::path::Path::new(env!("CARGO_BIN_EXE_rdpipe"));
    let script = format!(
        "#!/bin/sh\nulimit -l {memlock_kib}\nexec setpriv --reuid 65534 --regid 65534 --clear-groups {} \"$@\"\n",
        programs.display()
    );
    network.install(host, "rdpipe", &script);
}

#[test]
fn a_small_memlock_limit_and_a_device_without_rights_are_found() {
    let Some(network) = Network::of_guests() else {
        return;
    };
    as_ordinary_user(&network, "h1", "64");
    let memlock = report(&network, 1, &["--check", "h1", "h2"]);
    let _undo = Undo {
        network: &network,
        host: "h1",
        line: "chmod 666 /dev/infiniband/uverbs0",
    };
    on(&network, "h1", "chmod 600 /dev/infiniband/uverbs0");
    as_ordinary_user(&network, "h1", "unlimited");
    let rights = report(&network, 1, &["--check", "h1", "h2"]);
    std::fs::remove_file(network.own("h1/bin/rdpipe")).unwrap();
    is_to_repair(&memlock, "memlock", "h1", "ulimit -l");
    is_to_repair(&rights, "device-rights", "h1", "/dev/infiniband/uverbs0");
    assert_eq!(rights["choices"][0]["transport"], "TCP");
}

/// Repeats a comparison of a new report with an old one: the machine of an emulated guest has other work too.
#[track_caller]
fn compares(network: &Network, old: &str, expected: i32) {
    for attempt in 1.. {
        let new = format!("new-{expected}-{attempt}.json");
        let new = measured(network, &new);
        let end = rdperf(network, &["diff", old, &new, "--threshold=25"]);
        if end.code() == expected {
            return;
        }
        assert!(
            attempt < 4,
            "exit code {} instead of {expected}",
            end.code()
        );
    }
}

/// Measures the latency of TCP, and returns the path of the report.
#[track_caller]
fn measured(network: &Network, name: &str) -> String {
    let line = [
        "--json=-",
        "--measure=latency",
        "--transport=tcp",
        "--time=0.5",
        "--runs=3",
        "h1",
        "h2",
    ];
    let end = rdperf(network, &line);
    end.exits(0);
    let path = network.write("ctl", name, &end.stdout);
    path.display().to_string()
}

#[test]
fn a_delay_is_a_change_and_a_repetition_is_none() {
    let Some(network) = Network::of_guests() else {
        return;
    };
    let old = measured(&network, "old.json");
    compares(&network, &old, 0);
    let _undo = Undo {
        network: &network,
        host: "h2",
        line: "tc qdisc del dev eth0 root",
    };
    on(
        &network,
        "h2",
        "modprobe sch_netem && tc qdisc add dev eth0 root netem delay 50ms",
    );
    compares(&network, &old, 1);
}
