//! `--pingpong`: the table that tutorials about RDMA begin with.

use std::time::Duration;

use rustix::process::Signal;

use super::{
    faults::{lacks_firewall, refuse},
    quick,
    reports::lines,
};
use crate::support::programs::hosts::{Network, Outcome};

#[test]
fn the_table_has_four_rows() {
    let Some(network) = Network::new(2) else {
        return;
    };
    // This machine and h1, or h1 and h2.
    for hosts in [&["h1"][..], &["h1", "h2"]] {
        let arguments = ["--pingpong", "--time", "0.1", "--runs", "1"];
        let end = network.rdperf(arguments).args(hosts).start().end();
        // A row without figures has a reason.
        for place in ["localhost", "network"] {
            let note = format!("{place}, RDMA: ");
            assert!(end.exits(0).contains(&note), "{}", end.stderr);
        }
        is_the_table(&lines(&end));
    }
}

/// Checks the heading of the table, and each of its rows.
#[track_caller]
fn is_the_table(lines: &[String]) {
    assert_eq!(lines.len(), 6, "{lines:#?}");
    let cells = |line: &str| {
        let inner = line
            .strip_prefix('|')
            .and_then(|line| line.strip_suffix('|'));
        let inner = inner.unwrap_or_else(|| panic!("{line} is no row"));
        inner
            .split('|')
            .map(|cell| cell.trim().to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(
        cells(&lines[0]),
        ["Where", "What", "RoundTrips / second", "avg. latency in µs"]
    );
    let places = ["localhost", "localhost", "network", "network"];
    let media = ["TCP", "RDMA", "TCP", "RDMA"];
    for (line, (place, medium)) in lines[2..].iter().zip(places.into_iter().zip(media)) {
        let cells = cells(line);
        assert_eq!(cells[..2], [place, medium]);
        let figures = cells[2..]
            .iter()
            .map(|cell| cell.replace(',', "").parse::<f64>());
        let figures: Vec<_> = figures.collect();
        // Without RDMA, its rows are empty.
        let is_empty = medium == "RDMA" && cells[2..] == ["-", "-"];
        assert!(
            is_empty
                || figures
                    .iter()
                    .all(|figure| figure.as_ref().is_ok_and(|figure| *figure > 0.0)),
            "{line}"
        );
    }
}

#[test]
fn the_options_of_other_forms_are_refused() {
    let Some(network) = Network::new(1) else {
        return;
    };
    for option in ["--json", "--csv", "--check"] {
        let end = network
            .rdperf(quick(&["--pingpong", option, "h1"]))
            .start()
            .end();
        end.exits(2);
        assert!(end.stdout.is_empty());
    }
}

#[test]
fn a_row_that_cannot_be_measured_is_an_error() {
    let Some(network) = Network::new(1) else {
        return;
    };
    if lacks_firewall(&network) {
        return;
    }
    // The address of this machine.
    refuse(&network, "h1", "10.77.0.100");
    let arguments = ["--pingpong", "--time", "0.1", "--runs", "2", "h1"];
    let end = network.rdperf(arguments).start().end();
    end.tells(255, &["network, TCP", "refused"]);
    let lines = lines(&end);
    assert_eq!(lines.len(), 6, "{lines:#?}");
    assert!(
        !lines[2].ends_with("- |") && lines[4].ends_with("- |"),
        "{lines:#?}"
    );
}

#[test]
fn an_interruption_of_the_table_leaves_nothing() {
    let Some(network) = Network::new(1) else {
        return;
    };
    let rdperf = network
        .rdperf(["--pingpong", "--time", "100", "h1"])
        .start();
    network.process("h1", "--agent=worker");
    let since = rdperf.signal(Signal::INT);
    let end = rdperf.end();
    // The note that there is no RDMA may have been printed before.
    end.tells(130, &["interrupted by", "SIGINT"]);
    network.assert_empty(since, Duration::from_secs(15));
}
