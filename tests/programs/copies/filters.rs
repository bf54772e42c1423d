//! --exclude and --include: gitignore's rules, the last one that matches decides.

use std::collections::BTreeSet;

use super::compare::Tree;
use crate::support::programs::hosts::Outcome;
use crate::support::programs::local_hosts::Hosts;

const FILES: &[&str] = &[
    "a.o",
    "a.c",
    "build/a.o",
    "build/keep.txt",
    "src/a.c",
    "src/a.o",
    "src/build/b.c",
    "src/deep/er/a.log",
    "src/deep/er/important.log",
    "top.log",
    "*",
    "name with\nnew line.o",
];

/// Copies [`FILES`] with these filters; `missing` must be what is left out.
#[track_caller]
fn leaves_out(filters: &[&str], missing: &[&str]) {
    let hosts = Hosts::new("");
    for name in FILES {
        hosts.file("h1", &format!("tree/{name}"), name.as_bytes());
    }
    let arguments = [&["-a"], filters, &["h1:tree", "h2:"]].concat();
    hosts.rdcp(&arguments).start().end().exits(0);
    let copy = Tree::read(&hosts.path("h2", "tree"));
    let is_missing = |name: &&&str| !copy.0.contains_key(std::path::Path::new(**name));
    let found: BTreeSet<_> = FILES.iter().filter(is_missing).copied().collect();
    let missing: BTreeSet<_> = missing.iter().copied().collect();
    assert_eq!(found, missing, "with {filters:?}");
}

#[test]
fn patterns_are_those_of_gitignore() {
    leaves_out(&[], &[]);
    let objects = ["a.o", "build/a.o", "src/a.o", "name with\nnew line.o"];
    leaves_out(&["--exclude=*.o"], &objects);
    leaves_out(&["--exclude", "/a.o"], &["a.o"]);
    let all = ["build/a.o", "build/keep.txt", "src/build/b.c"];
    leaves_out(&["--exclude=build/"], &all);
    leaves_out(&["--exclude=/build"], &all[..2]);
    let logs = ["src/deep/er/a.log", "src/deep/er/important.log", "top.log"];
    leaves_out(&["--exclude=**/*.log"], &logs);
    leaves_out(&["--exclude=src/**/*.log"], &logs[..2]);
    leaves_out(&["--exclude=\\*"], &["*"]);
}

#[test]
fn the_last_pattern_that_matches_decides() {
    let filters = ["--exclude=*.log", "--include=important.log"];
    leaves_out(&filters, &["src/deep/er/a.log", "top.log"]);
    let filters = ["--include=important.log", "--exclude=*.log"];
    let logs = ["src/deep/er/a.log", "src/deep/er/important.log", "top.log"];
    leaves_out(&filters, &logs);
    // A directory that is left out is not searched.
    let filters = ["--exclude=deep/", "--include=important.log"];
    leaves_out(&filters, &logs[..2]);
}

#[test]
fn a_pattern_protects_at_the_destination_what_it_leaves_out_at_the_source() {
    for arguments in [
        &["h1:tree", "h2:"][..],
        &["-T", "h1:tree", "h2:tree"],
        &["h1:tree/.", "h2:tree"],
    ] {
        let hosts = Hosts::new("");
        hosts.file("h1", "tree/x/file", b"source");
        for name in ["y", "x/y", "x/file", "gone/y", "gone/kept.log"] {
            hosts.file("h2", &format!("tree/{name}"), b"old");
        }
        let options = ["-a", "--delete", "--exclude=/y", "--exclude=*.log"];
        let end = hosts.rdcp(&[&options, arguments].concat()).start().end();
        end.tells(0, &["2 removed"]);
        let left = Tree::read(&hosts.path("h2", "tree"));
        let left: Vec<_> = left.0.keys().map(|path| path.to_str().unwrap()).collect();
        assert_eq!(left, ["", "gone", "gone/kept.log", "x", "x/file", "y"]);
    }
}

#[test]
fn a_wrong_pattern_is_wrong_use() {
    let hosts = Hosts::new("");
    hosts.file("h1", "tree/file", b"content");
    for option in ["--exclude=[z-a]", "--include=a{b"] {
        let end = hosts.rdcp(&["-a", option, "h1:tree", "h2:"]).start().end();
        end.tells(2, &[&option[10..]]);
        assert!(!hosts.has("h2", "tree"));
    }
}
