//! Lanes, limits of speed, fsync, and the removal of source files.

use std::{
    fs,
    time::{Duration, Instant},
};

use super::{
    compare::{Tree, assert_same},
    trees::{large, small},
};
use crate::support::programs::hosts::Outcome;
use crate::support::programs::{local_hosts::Hosts, skip};

#[test]
fn any_number_of_lanes_carries_a_tree() {
    let hosts = Hosts::new("");
    let original = hosts.path("h1", "tree");
    small(&original, 700, 700);
    large(&original.join("large"), 3 << 20);
    for (number, lanes) in [["-j", "1"], ["-j", "3"], ["--lanes", "8"]]
        .iter()
        .enumerate()
    {
        let to = format!("h2:{number}");
        let arguments = [&["-a"], &lanes[..], &["h1:tree", &to]].concat();
        hosts.rdcp(&arguments).start().end().exits(0);
        assert_same(&original, &hosts.path("h2", &number.to_string()));
    }
    for lanes in ["0", "-1", "many", "100000"] {
        let arguments = ["-a", &format!("--lanes={lanes}"), "h1:tree", "h2:x"];
        let end = hosts.rdcp(&arguments).start().end();
        end.tells(2, &[lanes]);
    }
}

#[test]
fn a_limit_of_speed_holds_for_all_lanes_together() {
    let hosts = Hosts::new("");
    let original = hosts.path("h1", "tree");
    small(&original, 100, 10_000);
    large(&original.join("large"), 3 << 20);
    let since = Instant::now();
    let arguments = ["-a", "-j", "4", "--bwlimit", "3M", "h1:tree", "h2:"];
    hosts.rdcp(&arguments).start().end().exits(0);
    // Some 4 MB at 3 MiB each second. A burst at the beginning is allowed.
    let took = since.elapsed();
    assert!(took > Duration::from_millis(800), "{took:?}");
    assert_same(&original, &hosts.path("h2", "tree"));
    let end = hosts.rdcp(&["--bwlimit", "3 apples", "h1:tree", "h2:x"]);
    end.start().end().tells(2, &["--bwlimit", "3 apples"]);
}

#[test]
fn each_file_is_on_the_disk_before_it_gets_its_name() {
    if std::process::Command::new("strace")
        .arg("-V")
        .output()
        .is_err()
    {
        skip("there is no strace");
        return;
    }
    // The script of the hosts replaces itself by the agent: here by strace, with the agent below it.
    let traced = "exec() { command exec strace -f -qq -e trace=fsync,fdatasync,rename,renameat,renameat2 \
                  -o \"${0%/*}/trace\" \"$@\"; }";
    let hosts = Hosts::new(traced);
    let original = hosts.path("here", "tree");
    small(&original, 10, 1000);
    large(&original.join("large"), 5 << 20);
    let from = original.display().to_string();
    let end = hosts.rdcp(&["-a", "--fsync", &from, "h2:"]).start().end();
    end.exits(0);
    assert_same(&original, &hosts.path("h2", "tree"));
    let trace = fs::read_to_string(hosts.directory().join("trace")).unwrap();
    let count = |call: &str| trace.lines().filter(|line| line.contains(call)).count();
    let (synced, renamed) = (count("sync("), count("rename"));
    assert!(
        synced >= 11 && renamed >= 11,
        "{synced}, {renamed}\n{trace}"
    );
}

#[test]
fn source_files_are_removed_after_they_arrived() {
    let hosts = Hosts::new("");
    let original = hosts.path("h1", "tree");
    small(&original, 250, 100);
    large(&original.join("large"), 9 << 20);
    std::os::unix::fs::symlink("large", original.join("link")).unwrap();
    let before = Tree::read(&original);
    // One file cannot be written, and one is left out.
    fs::create_dir_all(hosts.path("h2", "tree/0001/file 150")).unwrap();
    hosts.file("h1", "tree/excluded", b"stays");
    let arguments = [
        "-a",
        "--remove-source-files",
        "--exclude=excluded",
        "h1:tree",
        "h2:",
    ];
    hosts.rdcp(&arguments).start().end().tells(1, &["file 150"]);
    let left = Tree::read(&original);
    let left: Vec<_> = left
        .0
        .keys()
        .filter(|path| !original.join(path).is_dir())
        .collect();
    assert_eq!(
        left,
        [std::path::Path::new("0001/file 150"), "excluded".as_ref()]
    );
    let copy = Tree::read(&hosts.path("h2", "tree"));
    assert_eq!(copy.0.len(), before.0.len());
    // What the destination has already is no copy of this run, so it stays at the source.
    hosts.file("h1", "again/file", b"content");
    hosts.file("h2", "again/file", b"old");
    let arguments = [
        "-a",
        "--no-clobber",
        "--remove-source-files",
        "h1:again",
        "h2:",
    ];
    hosts.rdcp(&arguments).start().end().exits(0);
    assert!(hosts.has("h1", "again/file"));
    assert_eq!(hosts.read("h2", "again/file"), b"old");
}
