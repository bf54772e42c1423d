//! Surroundings that lack what programs take for granted: descriptors, memory, `/dev/null`, `/proc`. Each program then
//! does its work, or ends with a sentence that names what is missing.

use std::{fs, process::Command};

use super::{RDCAT, RDCP, RDFORWARD, RDPERF, RDPIPE, RDRECV, RDSEND};
use crate::support::programs::{End, Place, program, skip};

/// A command line that begins with the path of a program. It copies the file `f` to the file `to`, or to stdout.
type Line = &'static [&'static str];

/// Lines that need an agent.
const WITH_AGENTS: [Line; 4] = [
    &[RDCP, "-q", "f", "to"],
    &[RDCAT, "-q", ":f"],
    &[RDPIPE, "-q", ":< f", ":> to"],
    &[
        RDPERF,
        "--check",
        "--rsh",
        "./rsh",
        "--remote-rdpipe",
        RDPIPE,
        "h1",
    ],
];

/// Lines that need no agent. None of them finds another program.
const ALONE: [Line; 4] = [
    &[RDRECV, "--bind", "192.0.2.1", "0", "a key that is long"],
    &[RDSEND, "256.0.0.1", "1", "a key that is long"],
    &[RDCP, "--serve", "--root", ".", "--key-file", "missing"],
    &[RDFORWARD, "serve", "--allow", "1", "--key-file", "missing"],
];

/// Makes a directory with the file that the lines copy, and a program that starts the agents of other hosts on this
/// machine.
fn place() -> Place {
    let place = Place::new();
    place.file("f", b"data\n");
    place.program("rsh", b"#!/bin/sh\nshift\nexec \"$@\"\n");
    place
}

/// Runs a line in the directory of `place`, after `before`: shell commands that end with `exec` and a program that runs
/// its arguments.
#[track_caller]
fn run(place: &Place, before: &str, line: Line) -> End {
    let script = format!("{before} \"$@\"");
    let setup = program("/usr/bin/env", "a program in poor surroundings");
    let setup = setup.arg("-C").arg(place.directory());
    setup
        .args(["unshare", "-m", "sh", "-c", &script, "sh"])
        .args(line)
        .start()
        .end()
}

/// Fails if the program has panicked, or has failed without a message.
#[track_caller]
fn check(end: &End, line: Line) {
    let text = &end.stderr;
    for word in ["panicked", "memory allocation of"] {
        assert!(!text.contains(word), "{line:?}:\n{text}");
    }
    assert!(
        end.code() == 0 || !text.is_empty() || line[0] == RDPERF,
        "{line:?} failed without a sentence"
    );
}

/// Skips the calling test if this user cannot make a mount namespace.
fn has_namespaces() -> bool {
    let made = Command::new("unshare").args(["-m", "true"]).output();
    let has = made.is_ok_and(|output| output.status.success());
    if !has {
        skip("this user cannot make a mount namespace");
    }
    has
}

#[test]
fn too_few_descriptors_are_named() {
    if !has_namespaces() {
        return;
    }
    let place = place();
    // A shell and the loader need four.
    for limit in (4..=8).chain([10, 12, 15, 18, 21, 64]) {
        let before = format!("ulimit -n {limit}; exec");
        let is_few = limit <= 8;
        let alone = ALONE.into_iter().filter(|_| is_few);
        for line in WITH_AGENTS.into_iter().chain(alone) {
            if line[0] == RDPERF && limit > 15 {
                // A connection that finds no descriptor delays it by seconds.
                continue;
            }
            let end = run(&place, &before, line);
            check(&end, line);
            let is_named = end.stderr.contains("ulimit -n");
            assert!(!is_few || is_named, "{limit}, {line:?}: {}", end.stderr);
            if end.code() == 0 && line[0] == RDCAT {
                assert_eq!(end.stdout, b"data\n", "{limit}, {line:?}");
            } else if end.code() == 0 && line[0] != RDPERF {
                assert_eq!(place.read("to"), b"data\n", "{limit}, {line:?}");
                fs::remove_file(place.path("to")).unwrap();
            }
            assert!(end.code() == 0 || limit < 64, "{line:?}: {}", end.stderr);
        }
    }
}

#[test]
fn a_key_that_memory_does_not_suffice_for_is_an_error() {
    if !has_namespaces() {
        return;
    }
    let place = Place::new();
    for line in &ALONE[..2] {
        let end = run(&place, "ulimit -v 18000; exec", line);
        check(&end, line);
        assert_ne!(end.code(), 0, "{line:?}");
    }
}

#[test]
fn a_missing_dev_null_is_named() {
    if !has_namespaces() {
        return;
    }
    let place = place();
    for line in WITH_AGENTS {
        let end = run(&place, "mount -t tmpfs none /dev && exec", line);
        check(&end, line);
        let text = &end.stderr;
        assert_ne!(end.code(), 0, "{line:?}: {text}");
        assert!(text.contains("/dev/null"), "{line:?}: {text}");
        assert!(!text.contains("there is no rdpipe"), "{line:?}: {text}");
    }
}

#[test]
fn a_missing_proc_is_named() {
    if !has_namespaces() {
        return;
    }
    let place = place();
    for line in WITH_AGENTS {
        let end = run(&place, "mount -t tmpfs none /proc && exec", line);
        check(&end, line);
        assert_ne!(end.code(), 0, "{line:?}");
        assert!(end.stderr.contains("/proc"), "{line:?}: {}", end.stderr);
    }
}
