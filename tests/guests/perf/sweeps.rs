//! Sweeps over RDMA operations.

use rustix::process::Signal;

use super::{prepared, rdperf, report, series, value};
use crate::support::programs::hosts::Network;

/// The options of a sweep that takes no longer than it must.
const QUICK: [&str; 2] = ["--time=0.1", "--runs=1"];

/// Returns the options of a quick sweep from h1 to h2.
fn quick(sweep: &str) -> Vec<&str> {
    let hosts = ["--sweep", sweep, "h1", "h2"];
    QUICK.into_iter().chain(hosts).collect()
}

#[test]
fn every_named_sweep_is_measured() {
    let Some(network) = Network::of_guests() else {
        return;
    };
    for (sweep, points) in [
        // Soft-RoCE carries no 1024 bytes in a work request.
        ("inline,size=2,64,1K", 2 * (3 + 2)),
        ("verb,size=2,4K", 2 * 3 * 2),
        ("poll,size=64", 2 * 2),
        ("signal,size=64", 4),
        ("chunk,size=4K,1M", 2 * 2),
        ("size=1:16:*4,verb=write,send,inline=0,220", 2 * 2 * 2 * 3),
    ] {
        let report = report(&network, 0, &quick(sweep));
        let found = series(&report, |what| what["measure"] == "operations");
        assert_eq!(found.len(), points, "{sweep}: {found:#?}");
        assert!(found.iter().all(|series| value(series) > 0.0), "{found:#?}");
        let verdict = report["verdict"].as_str().unwrap();
        assert!(!verdict.is_empty(), "{sweep}");
    }
}

#[test]
fn people_get_a_row_for_each_size_and_the_crossing_point() {
    let Some(network) = Network::of_guests() else {
        return;
    };
    let end = rdperf(&network, &quick("inline,size=64,256,1K"));
    end.exits(0);
    let note = "a work request of these devices carries at most 512 bytes: operations from 1 KiB on are measured without";
    assert!(end.stderr.contains(note), "{}", end.stderr);
    let text = String::from_utf8(end.stdout).unwrap();
    for begin in [
        "there and back, µs",
        "throughput",
        "64 B ",
        "1 KiB ",
        "Time there and back: ",
        "Throughput: ",
    ] {
        let has_line = text.lines().any(|line| line.starts_with(begin));
        assert!(has_line, "{begin}: {text}");
    }
}

#[test]
fn what_the_device_cannot_do_is_named_and_the_rest_is_measured() {
    let Some(network) = Network::of_guests() else {
        return;
    };
    let arguments = quick("size=64,inline=0,100000");
    let end = rdperf(&network, &[&["--json=-"], &arguments[..]].concat());
    end.exits(1);
    let refusal = "a work request of these devices carries at most 512 bytes, so inline=100000 cannot be measured";
    assert!(end.stderr.contains(refusal), "{}", end.stderr);
    let report: serde_json::Value = serde_json::from_slice(&end.stdout).unwrap();
    let found = series(&report, |what| what["inline"] == "never");
    assert_eq!(found.len(), 2, "{found:#?}");
}

#[test]
fn an_interrupted_sweep_prints_what_it_has() {
    let Some(network) = Network::of_guests() else {
        return;
    };
    let mut arguments = quick("verb,size=2,64");
    arguments.extend(["-v", "--runs=1000"]);
    arguments.retain(|argument| *argument != "--runs=1");
    let running = prepared(&network, &arguments).start();
    running.said("some points", |text| {
        (text.matches(" µs").count() >= 5).then_some(())
    });
    running.signal(Signal::INT);
    let end = running.end();
    end.exits(130);
    let text = String::from_utf8_lossy(&end.stdout);
    assert!(text.contains("there and back, µs"), "{text}");
    let has_row = text.lines().any(|line| line.starts_with("2 B "));
    assert!(has_row, "{text}");
}
