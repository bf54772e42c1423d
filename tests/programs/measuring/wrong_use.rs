//! Command lines that cannot be used, hosts that are not there, and the options of the help.

use std::{fs, path::Path};

use super::{quick, rdperf};
use crate::support::programs::{
    hosts::{Network, Outcome},
    local_hosts::Hosts,
};

#[test]
fn wrong_use_gets_a_plain_sentence() {
    for (arguments, words) in [
        (&[][..], &["at least one host", "--listen"][..]),
        (&["--size", "0", "h1"], &["--size", "1 byte to 16M"]),
        (&["--size", "17M", "h1"], &["--size", "1 byte to 16M"]),
        (&["--size", "some", "h1"], &["--size"]),
        (&["--runs", "0", "h1"], &["--runs", "from 1 to 1000"]),
        (&["--streams", "0", "h1"], &["--streams", "from 1 to 64"]),
        (&["--time", "0", "h1"], &["--time"]),
        (&["--measure", "speed", "h1"], &["--measure", "speed"]),
        (&["h1", "h1"], &["h1 was given twice"]),
        (&["me@h1", "h1"], &["h1 was given twice"]),
        (&[":"], &["this machine already"]),
        (&["h1:file"], &["h1:file", "without a path"]),
        (&["two words"], &["two words"]),
        (&["--read", "h2:x", "h1"], &["h2", "not one of the hosts"]),
        (
            &["--check", "--write", "h1:x", "h1"],
            &["--check", "--write"],
        ),
        (&["--json", "--csv", "h1"], &["--json", "--csv"]),
        (&["--listen", "h1"], &["--listen"]),
        (&["--threshold", "3", "h1"], &["--threshold", "diff"]),
        (&["diff", "one"], &["two reports"]),
        (&["diff", "one", "two", "--json"], &["--json"]),
        (
            &["--pingpong", "h1", "h2", "h3"],
            &["--pingpong", "one pair"],
        ),
        (&["--listen", "--time", "3"], &["--listen", "--time"]),
        (
            &["--sweep", "sizes", "h1"],
            &["no sweep \"sizes\"", "inline, verb, poll, signal, chunk"],
        ),
        (
            &["--sweep", "verb=atomic", "h1"],
            &["write, read or send", "atomic"],
        ),
        (&["--sweep", "speed=1", "h1"], &["speed is none of them"]),
        (
            &["--sweep", "verb", "--transport", "tcp", "h1"],
            &["--sweep measures RDMA"],
        ),
        (
            &["--sweep", "verb", "a", "b", "c"],
            &["--sweep", "one pair"],
        ),
        (
            &["--sweep", "verb", "--size=1", "h1"],
            &["--sweep", "--size"],
        ),
        (&["--expect", "10G", "h1"], &["write 10Gbit or 10GB/s"]),
        (
            &["--expect", "1Gbit", "--check", "h1"],
            &["--expect", "--check"],
        ),
        (
            &["--expect", "1Gbit", "--measure", "latency", "h1"],
            &["--expect compares the bandwidth"],
        ),
        (&["--nonsense", "h1"], &["--nonsense"]),
    ] {
        let end = rdperf(arguments).start().end();
        end.tells(2, words);
        end.is_silent_on(&["panicked"]);
        assert!(end.stdout.is_empty(), "{arguments:?}");
        assert!(end.stderr.starts_with("error: "), "{}", end.stderr);
    }
}

#[test]
fn a_sweep_needs_rdma() {
    let Some(network) = Network::new(1) else {
        return;
    };
    let end = network.rdperf(["--sweep", "verb", "h1"]).start().end();
    end.tells(255, &["cannot be measured", "no connection over RDMA"]);
}

#[test]
fn an_unknown_host_is_named() {
    let Some(network) = Network::new(1) else {
        return;
    };
    let end = network
        .rdperf(quick(&["h1", "nosuch.invalid"]))
        .start()
        .end();
    end.tells(255, &["nosuch.invalid", "resolve"]);
    network.assert_empty(end.at, std::time::Duration::from_secs(5));
    let end = network.rdperf(["--check", "nosuch.invalid"]).start().end();
    end.tells(255, &["nosuch.invalid", "resolve"]);
}

#[test]
fn addresses_and_ports_are_those_that_were_given() {
    let hosts = Hosts::new("");
    let options = [
        "--addr",
        "h2=127.0.0.1",
        "-p",
        "7100-7120",
        "-H",
        "127.0.0.1",
        "--json",
    ];
    let arguments = [&options[..], &["--measure", "connect", "h1", "h2"]].concat();
    let end = hosts.rdperf(&quick(&arguments)).start().end();
    end.exits(0);
    let text = String::from_utf8_lossy(&end.stdout);
    assert!(text.contains("\"connect\""), "{text}");
}

#[test]
fn every_option_of_the_help_has_a_test() {
    let end = rdperf(&["--help"]).start().end();
    end.exits(0);
    let help = String::from_utf8_lossy(&end.stdout).into_owned();
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    let mut sources = String::new();
    for part in ["programs/measuring", "programs/via_ssh", "support/programs"] {
        for entry in fs::read_dir(tests.join(part)).unwrap() {
            sources += &fs::read_to_string(entry.unwrap().path()).unwrap_or_default();
        }
    }
    let options = help.lines().filter_map(|line| {
        let line = line.trim_start();
        let (short, long) = match line.split_once(", ") {
            Some((short, long)) if short.starts_with('-') && long.starts_with("--") => {
                (short, long)
            }
            _ => ("", line),
        };
        let name = long.strip_prefix("--")?;
        let end = name.find(|c: char| !c.is_alphanumeric() && c != '-');
        let name = &name[..end.unwrap_or(name.len())];
        Some((short.to_owned(), name.to_owned()))
    });
    // The unit tests of the command line, and the tests in guests, have the options of a stream.
    let of_streams = "chunk depth device encrypt rails deploy gid-index ib-port busy-poll version traffic-class \
                      service-level pkey-index";
    let untested: Vec<_> = options
        .filter(|(_, name)| !of_streams.split(' ').any(|other| other == name))
        .filter(|(short, name)| {
            let is_used = |option: &str| sources.contains(&format!("\"{option}\""));
            !is_used(&format!("--{name}")) && (short.is_empty() || !is_used(short))
        })
        .collect();
    assert!(untested.is_empty(), "{untested:?}");
}
