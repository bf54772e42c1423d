//! Several hosts, measured in pairs.

use super::{
    faults::{drop_some, lacks_firewall, lacks_shaping, slow_down},
    quick,
    reports::{Report, lines, number, text, what},
};
use crate::support::programs::hosts::Network;

#[test]
fn a_slow_link_and_a_lossy_one_among_five_hosts_are_named() {
    let Some(network) = Network::new(5) else {
        return;
    };
    if lacks_firewall(&network) || lacks_shaping(&network) {
        return;
    }
    slow_down(&network, "h2", "10.77.0.4");
    drop_some(&network, "h5", "10.77.0.3");
    let hosts: Vec<_> = network.hosts().collect();
    let options = [
        "--json",
        "--measure",
        "bandwidth",
        // Long enough for the 1000 segments that a finding needs, also after a timeout of TCP.
        "--time",
        "0.5",
        "--runs",
        "1",
        "--transport",
        "tcp",
    ];
    let options = options.map(str::to_owned);
    let end = network.rdperf(options.iter().chain(&hosts)).start().end();
    end.exits(0);
    let report = Report::of(&end);
    // Of each two hosts, one dials, and both directions are measured.
    for from in &hosts {
        for to in hosts.iter().filter(|to| *to != from) {
            let found = report.list("series").iter().filter(|series| {
                let (dialer, listener) = (text(series, "from"), text(series, "to"));
                match what(series).as_str() {
                    "bandwidth stream tcp forward 1" => (dialer, listener) == (from, to),
                    "bandwidth stream tcp backward 1" => (listener, dialer) == (from, to),
                    other => panic!("{other} was measured"),
                }
            });
            let rates: Vec<_> = found
                .map(|series| number(&series["runs"][0], "value"))
                .collect();
            assert!(
                rates.len() == 1 && rates[0] > 0.0,
                "{from} to {to}: {rates:?}"
            );
        }
    }
    assert_eq!(report.list("series").len(), 20);
    // Loss makes a pair slow too, and the slowest comes first.
    let slow = report.subjects("slow-pair");
    assert!(slow.contains(&"h2 to h4"), "{:#}", report.0);
    assert!(
        report.subjects("loss-tcp").contains(&"h3 to h5"),
        "{:#}",
        report.0
    );
    for (code, subject, words) in [
        ("slow-pair", "h2 to h4", ["ethtool", "h2 and h4"]),
        ("loss-tcp", "h3 to h5", ["ip -s link", "h3, h5"]),
    ] {
        let remedy = report.remedy(code, subject);
        assert!(words.iter().all(|word| remedy.contains(word)), "{remedy}");
    }
    let verdict = report.text("verdict");
    let slowest = format!("the slowest is {}", slow[0]);
    assert!(verdict.contains(&slowest), "{verdict}");
}

#[test]
fn a_matrix_has_a_row_and_a_column_for_each_host() {
    let Some(network) = Network::new(3) else {
        return;
    };
    // The user name is not a part of the name in the report. This machine is one of the hosts.
    let end = network.rdperf(quick(&[
        "--measure",
        "bandwidth,latency",
        "root@h1",
        ":",
        "h3",
    ]));
    let end = end.start().end();
    assert_eq!(end.exits(0), "");
    let lines = lines(&end);
    for title in ["bandwidth, GB/s, TCP", "latency p50, µs, TCP"] {
        let at = lines.iter().position(|line| line.starts_with(title));
        let at = at.unwrap_or_else(|| panic!("no {title} in {lines:#?}"));
        let words = |line: &str| {
            line.split_whitespace()
                .map(str::to_owned)
                .collect::<Vec<_>>()
        };
        assert_eq!(words(&lines[at][title.len()..]), ["h1", "here", "h3"]);
        for (row, host) in ["h1", "here", "h3"].into_iter().enumerate() {
            let cells = words(&lines[at + 1 + row]);
            assert_eq!(cells[..2], [host, "to"]);
            for (column, cell) in cells[2..].iter().enumerate() {
                assert_eq!(cell.parse::<f64>().is_ok(), column != row, "{cells:?}");
            }
            assert_eq!(cells.len(), 5);
        }
    }
    let verdict = lines.last().expect("a verdict");
    assert!(
        verdict.starts_with("TCP: the median of all pairs is "),
        "{verdict}"
    );
}
