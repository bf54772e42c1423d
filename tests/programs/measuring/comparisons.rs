//! `rdperf diff`: two reports, and what has changed between them.

use std::path::Path;

use serde_json::Value;

use super::{
    faults::{delay, lacks_shaping},
    reports::{Report, lines},
};
use crate::support::programs::{
    End, Place,
    hosts::{Network, Outcome},
    program,
};

/// Compares two reports.
#[track_caller]
fn diff(old: impl AsRef<Path>, new: impl AsRef<Path>, options: &[&str]) -> End {
    let rdperf = program(env!("CARGO_BIN_EXE_rdperf"), "rdperf").arg("diff");
    let rdperf = rdperf.arg(old.as_ref()).arg(new.as_ref());
    rdperf.args(options).start().end()
}

/// Measures h1, and writes the report to a file of ctl.
#[track_caller]
fn measured(network: &Network, name: &str, options: &[&str]) -> (std::path::PathBuf, Value) {
    let common = ["--json", "--time", "0.1", "--transport", "tcp", "h1"];
    let end = network.rdperf(common.iter().chain(options)).start().end();
    end.exits(0);
    (network.write("ctl", name, &end.stdout), Report::of(&end).0)
}

#[test]
fn a_repetition_has_not_changed() {
    let Some(network) = Network::new(1) else {
        return;
    };
    let options = ["--measure", "bandwidth", "--streams", "1", "--runs", "3"];
    let (old, _) = measured(&network, "old", &options);
    let (new, _) = measured(&network, "new", &options);
    // Beside other tests the rates vary a lot.
    let end = diff(&old, &new, &["--threshold", "1000"]);
    end.exits(0);
    let lines = lines(&end);
    assert_eq!(
        lines.last().map(String::as_str),
        Some("Nothing has changed beyond noise.")
    );
    assert!(
        lines
            .iter()
            .any(|line| line.starts_with("here to h1, TCP, stream, one way ")),
        "{lines:#?}"
    );
    // A report and itself are equal, whatever the threshold is.
    diff(&old, &old, &["--threshold", "0"]).exits(0);
}

#[test]
fn a_delay_of_twenty_milliseconds_is_a_change_for_the_worse() {
    let Some(network) = Network::new(1) else {
        return;
    };
    if lacks_shaping(&network) {
        return;
    }
    let options = ["--measure", "latency", "--runs", "1"];
    let (old, _) = measured(&network, "old", &options);
    delay(&network, "h1");
    let (new, _) = measured(&network, "new", &options);
    let end = diff(&old, &new, &[]);
    end.exits(1);
    let lines = lines(&end);
    let events = lines
        .iter()
        .find(|line| line.contains("TCP, 64 B, socket, events"));
    assert!(
        events.is_some_and(|line| line.ends_with("WORSE")),
        "{lines:#?}"
    );
    assert!(
        lines.last().is_some_and(|line| line.contains(" worse, ")),
        "{lines:#?}"
    );
}

#[test]
fn a_change_counts_beyond_the_threshold_and_the_spreads() {
    let place = Place::new();
    let old = place.file(
        "old.json",
        report(&[[1e9, 1.01e9, 0.99e9], [20.0, 20.2, 19.8]]).as_bytes(),
    );
    // The spreads are 1% each.
    for (name, rates, times, options, code) in [
        ("same", 1e9, 20.0, &[][..], 0),
        ("noise", 0.96e9, 20.6, &[], 0),
        ("slower", 0.9e9, 20.0, &[], 1),
        ("later", 1e9, 22.0, &[], 1),
        ("better", 1.2e9, 15.0, &[], 0),
        ("slower, allowed", 0.9e9, 20.0, &["--threshold", "20"], 0),
        (
            "less than the spreads",
            0.985e9,
            20.0,
            &["--threshold=0"],
            0,
        ),
        (
            "more than the spreads",
            0.95e9,
            20.0,
            &["--threshold=1%"],
            1,
        ),
    ] {
        let of = |value: f64| [value, value * 1.01, value * 0.99];
        let new = place.file(name, report(&[of(rates), of(times)]).as_bytes());
        let end = diff(&old, &new, options);
        assert_eq!(end.exits(code), "", "{name}");
        let is_worse = lines(&end).iter().any(|line| line.ends_with("WORSE"));
        assert_eq!(is_worse, code == 1, "{name}: {:#?}", lines(&end));
    }
    // What is missing is a change for the worse, and what is new is not.
    let half = place.file("half", report(&[[1e9; 3]]).as_bytes());
    let whole = place.file("whole", report(&[[1e9; 3], [20.0; 3]]).as_bytes());
    let end = diff(&whole, &half, &[]);
    end.exits(1);
    assert!(lines(&end).iter().any(|line| line.ends_with("missing")));
    diff(&half, &whole, &[]).exits(0);
}

/// Returns a report with a rate and, if there are two series, a time.
fn report(series: &[[f64; 3]]) -> String {
    let whats = [
        serde_json::json!({ "measure": "bandwidth", "carrier": "stream", "transport": "tcp", "traffic": "forward", "streams": 1, "size": null }),
        serde_json::json!({ "measure": "latency", "carrier": "stream", "transport": "tcp", "wait": "adaptive", "size": 64 }),
    ];
    let series = series.iter().zip(whats).map(|(values, what)| {
        let runs = values.map(
            |value| serde_json::json!({ "value": value, "cpu_dialer": 0.5, "cpu_listener": 0.5 }),
        );
        serde_json::json!({ "from": "here", "to": "h1", "what": what, "runs": runs })
    });
    let report = serde_json::json!({
        "version": 1, "rdperf": "0.1.0", "exit": 0, "started": 0, "hosts": [], "findings": [], "choices": [],
        "series": series.collect::<Vec<_>>(), "errors": [], "verdict": ""
    });
    report.to_string()
}

#[test]
fn a_file_that_is_no_report_is_named() {
    let place = Place::new();
    let good = place.file("good", report(&[[1e9; 3]]).as_bytes());
    let other_form = report(&[[1e9; 3]]).replace("\"version\":1", "\"version\":99");
    for (name, content) in [
        ("empty", ""),
        ("text", "no JSON\n"),
        ("other", "{\"a\": 1}\n"),
        ("half", &report(&[[1e9; 3]])[..100]),
        ("other form", &other_form),
    ] {
        let bad = place.file(name, content.as_bytes());
        for (old, new) in [(&good, &bad), (&bad, &good)] {
            let end = diff(old, new, &[]);
            end.fails(2, &[&bad]);
            assert!(end.stdout.is_empty());
        }
    }
    let missing = place.path("missing");
    diff(&good, &missing, &[]).fails(2, &["missing", "No such file"]);
    diff(place.directory(), &good, &[]).tells(2, &["directory"]);
}
