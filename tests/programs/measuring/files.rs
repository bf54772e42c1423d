//! `--read` and `--write`: what the files of a host can do alone.

use std::{fs, time::Duration};

use rustix::process::Signal;

use super::{
    quick,
    reports::{Report, lines, number, rails, text, what},
};
use crate::support::programs::{
    eventually,
    hosts::{Network, Outcome},
    local_hosts::Hosts,
};

#[test]
fn the_ends_are_measured_and_leave_nothing() {
    let hosts = Hosts::new("");
    hosts.file("h1", "big", &vec![7; 3 << 20]);
    fs::create_dir_all(hosts.path("h2", "folder")).unwrap();
    let ends = ["--read", "h1:big", "--write", "h2:folder", "h1", "h2"];
    let end = hosts
        .rdperf(&quick(&[&["--json=-"], &ends[..]].concat()))
        .start()
        .end();
    end.exits(0);
    let report = Report::of(&end);
    let series = report.list("series");
    for (series, measure, host, path) in [
        (&series[0], "read", "h1", "big"),
        (&series[1], "write", "h2", "folder"),
    ] {
        assert_eq!(
            (what(series).as_str(), text(series, "from")),
            (measure, host)
        );
        assert_eq!(series["what"]["path"], path);
        assert!(series["to"].is_null());
        assert!(number(&series["runs"][0], "value") > 0.0);
    }
    // With files, only bandwidth is measured besides.
    assert!(
        series[2..]
            .iter()
            .all(|series| what(series).starts_with("bandwidth"))
    );
    assert_eq!(series.len(), 2 + 5 + rails().len());
    assert_eq!(fs::read_dir(hosts.path("h2", "folder")).unwrap().count(), 0);
    let verdict = report.text("verdict");
    assert!(verdict.contains("disk of h"), "{verdict}");
    // By default the first host reads and the last one writes.
    let end = hosts.rdperf(&quick(&[
        "--read", "big", "--write", "./folder", "h1", "h2",
    ]));
    let end = end.start().end();
    end.exits(0);
    let lines = lines(&end);
    for row in ["h1: read big ", "h2: write ./folder "] {
        assert!(lines.iter().any(|line| line.starts_with(row)), "{lines:#?}");
    }
}

#[test]
fn a_path_that_cannot_be_used_is_named() {
    let hosts = Hosts::new("");
    hosts.file("h1", "file", b"bytes");
    hosts.file("h2", "file", b"bytes");
    for (options, words) in [
        (
            ["--read", "h1:no such file"],
            ["h1", "no such file", "No such file or directory"],
        ),
        (
            ["--write", "h2:no/folder"],
            ["h2", "no/folder", "No such file or directory"],
        ),
        (["--write", "h2:file"], ["h2", "file", "Not a directory"]),
    ] {
        let end = hosts.rdperf(&quick(&[&options[..], &["h1", "h2"]].concat()));
        let end = end.start().end();
        end.tells(1, &words);
        // The network is measured all the same.
        let lines = lines(&end);
        assert!(
            lines
                .iter()
                .any(|line| line.starts_with("stream, one way ")),
            "{lines:#?}"
        );
    }
    let end = hosts
        .rdperf(&["--read", "h3:file", "h1", "h2"])
        .start()
        .end();
    end.tells(2, &["h3", "not one of the hosts"]);
}

#[test]
fn nothing_of_a_file_is_left_after_an_interruption() {
    let Some(network) = Network::new(2) else {
        return;
    };
    let folder = network.file("h2", "folder");
    fs::create_dir(&folder).unwrap();
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143), (Signal::KILL, -9)] {
        let options = ["--time", "100", "--runs", "1", "--transport", "tcp"];
        let rdperf = network
            .rdperf(options)
            .args(["--write", "h2:folder", "h1", "h2"]);
        let rdperf = rdperf.start();
        eventually("a file that is written", || {
            let processes = network.processes("h2").into_iter();
            let mut descriptors = processes
                .flat_map(|process| fs::read_dir(format!("/proc/{}/fd", process.id)))
                .flat_map(Iterator::flatten);
            let is_of_folder = |descriptor: fs::DirEntry| {
                fs::read_link(descriptor.path())
                    .is_ok_and(|target| target.starts_with(&folder) && target != folder)
            };
            descriptors.any(is_of_folder).then_some(())
        });
        let since = rdperf.signal(signal);
        let end = rdperf.end();
        end.exits(code);
        network.assert_empty(since, Duration::from_secs(10));
        assert_eq!(
            fs::read_dir(&folder).unwrap().count(),
            0,
            "after {signal:?}"
        );
    }
}
