//! Copies between clients and a server, in both directions, with what rdcp can do elsewhere; two clients with the same
//! destination; and many clients, at once and one after another: memory, threads and descriptors stay what they were.

use std::{fs, process::Command};

use super::Served;
use crate::{
    copies::trees,
    support::programs::{
        Held, eventually, hosts::Outcome, local_hosts::Hosts, peak_kib, pinned_kib,
    },
};

/// Checks that rsync finds no difference between two trees.
#[track_caller]
pub(super) fn assert_same(one: &std::path::Path, other: &std::path::Path) {
    let rsync = Command::new("rsync")
        .args(["-aHAXSnci", "--delete"])
        .arg(format!("{}/", one.display()))
        .arg(format!("{}/", other.display()))
        .output()
        .expect("rsync");
    let found = String::from_utf8_lossy(&rsync.stdout);
    assert!(rsync.status.success() && found.is_empty(), "{found}");
}

/// Makes a tree with small files, a large one, links and holes.
fn tree(path: &std::path::Path) {
    trees::small(&path.join("small"), 200, 3000);
    trees::large(&path.join("large"), 9 << 20);
    fs::create_dir_all(path.join("empty")).unwrap();
    std::os::unix::fs::symlink("small", path.join("link")).unwrap();
    fs::hard_link(path.join("large"), path.join("again")).unwrap();
    let sparse = fs::File::create(path.join("sparse")).unwrap();
    sparse.set_len(64 << 20).unwrap();
}

#[test]
fn trees_go_there_and_come_back() {
    let served = Served::start(&[]);
    tree(&served.here("tree"));
    let end = served.alice(&["-a", "%tree", "@/"]).start().end();
    end.exits(0);
    assert_same(&served.here("tree"), &served.root("tree"));
    let end = served.alice(&["-a", "@tree", "%back"]).start().end();
    end.exits(0);
    assert_same(&served.here("tree"), &served.here("back"));
    // The root itself, its contents, and several paths.
    served.alice(&["-a", "@/.", "%all"]).start().end().exits(0);
    assert_same(&served.root(""), &served.here("all"));
    let several = ["-a", "@tree/large", "@/tree/small", "%"];
    served.alice(&several).start().end().exits(0);
    assert_same(&served.here("tree/small"), &served.here("small"));
}

#[test]
fn the_options_of_copies_work_with_a_server() {
    let served = Served::start(&[]);
    tree(&served.here("tree"));
    let end = served
        .alice(&["-P", "%tree/large", "@new/deep/file"])
        .start();
    end.end().exits(0);
    assert_eq!(
        fs::read(served.here("tree/large")).unwrap(),
        fs::read(served.root("new/deep/file")).unwrap()
    );
    served.alice(&["-a", "%tree", "@"]).start().end().exits(0);
    let again = served.alice(&["-a", "--skip-same", "%tree", "@"]);
    again.start().end().tells(0, &["skipped"]);
    fs::write(served.root("tree/stale"), "stale").unwrap();
    let listed = served.alice(&["-anT", "--delete", "%tree", "@tree"]);
    let listed = listed.start().end();
    listed.exits(0);
    assert!(String::from_utf8_lossy(&listed.stdout).contains("stale"));
    let mirror = served.alice(&["-aT", "--delete", "%tree", "@tree"]);
    mirror.start().end().exits(0);
    assert_same(&served.here("tree"), &served.root("tree"));
    let sums = served.alice(&["--checksum=sha256", "@tree/large", "%sum"]);
    let sums = sums.start().end();
    sums.exits(0);
    let sums = String::from_utf8_lossy(&sums.stdout).into_owned();
    assert_eq!(sums.split("  ").next().map(str::len), Some(64), "{sums}");
    let moved = served.alice(&["--remove-source-files", "@tree/large", "%moved"]);
    moved.start().end().exits(0);
    assert!(!served.root("tree/large").exists() && served.here("moved").exists());
    let report = served.alice(&["--json", "%moved", "@"]).start().end();
    report.exits(0);
    let report: serde_json::Value = serde_json::from_slice(&report.stdout).unwrap();
    assert_eq!(report["files"], 1, "{report:#}");
}

#[test]
fn a_host_without_the_key_file_copies_to_a_server_as_well() {
    let served = Served::start(&[]);
    let hosts = Hosts::new("");
    trees::small(&hosts.path("h1", "tree"), 50, 1000);
    let key = served.key_of("alice");
    let there = served.there("/");
    let arguments = ["--key-file", &key, "-a", "h1:tree", &there];
    hosts.rdcp(&arguments).start().end().exits(0);
    assert_same(&hosts.path("h1", "tree"), &served.root("tree"));
    let from = served.there("tree");
    let arguments = ["--key-file", &key, "-a", &from, "h2:new"];
    hosts.rdcp(&arguments).start().end().exits(0);
    assert_same(&hosts.path("h1", "tree"), &hosts.path("h2", "new"));
}

#[test]
fn the_key_may_come_from_the_environment() {
    let served = Served::start(&[]);
    fs::write(served.here("file"), "content").unwrap();
    let line = fs::read_to_string(served.key_of("bob")).unwrap();
    let key = line.split_whitespace().nth(1).unwrap();
    let there = served.there("file");
    let client = super::rdcp([served.operand("file"), there]);
    client.env("RDPIPE_KEY", key).start().end().exits(0);
    assert_eq!(fs::read_to_string(served.root("file")).unwrap(), "content");
    let bob = served.server.said("bob's copy", |text| {
        let line = text.lines().find(|line| line.contains("bob (127.0.0.1)"))?;
        Some(line.to_owned())
    });
    assert!(bob.contains("received 1 file, 7 B"), "{bob}");
    assert!(!bob.contains(key));
}

#[test]
fn of_two_clients_with_one_destination_one_wins_and_the_other_is_told() {
    let served = Served::start(&[]);
    trees::small(&served.here("one/tree"), 300, 30_000);
    trees::large(&served.here("one/tree/large"), 8 << 20);
    trees::small(&served.here("other/tree"), 300, 20_000);
    let slow = ["-a", "--bwlimit", "4M", "%one/tree", "@"];
    let first = served.alice(&slow).start();
    eventually("a copy that runs", || {
        served.root("tree").exists().then_some(())
    });
    let second = served
        .client("bob", &["-a", "%other/tree", "@"])
        .start()
        .end();
    second.tells(1, &["tree", "another client", "alice"]);
    first.end().exits(0);
    let whole = fs::read_dir(served.root("tree/0000")).unwrap();
    for file in whole {
        let length = file.unwrap().metadata().unwrap().len();
        assert_eq!(length, 30_000, "a file of the second client");
    }
    // Afterwards the place is free.
    let again = served.client("bob", &["-a", "%other/tree", "@"]);
    again.start().end().exits(0);
}

#[test]
fn clients_beyond_the_places_wait_for_their_turn() {
    let served = Served::start(&["--max-clients", "1"]);
    fs::write(served.here("file"), vec![7; 12 << 20]).unwrap();
    let first = served
        .alice(&["--bwlimit", "3M", "%file", "@first"])
        .start();
    eventually("a copy that runs", || {
        (!served.temporaries("first").is_empty()).then_some(())
    });
    let second = served.client("bob", &["%file", "@second"]).start();
    second.said("that it waits", |text| {
        text.contains("waits for its turn").then_some(())
    });
    assert!(!served.root("second").exists());
    first.end().exits(0);
    second.end().exits(0);
    assert_eq!(fs::metadata(served.root("second")).unwrap().len(), 12 << 20);
}

/// Returns `small`, or `full` if the long tests were asked for.
pub(super) fn count(small: usize, full: usize) -> usize {
    if is_full() { full } else { small }
}

/// Returns true if the long tests were asked for.
pub(super) fn is_full() -> bool {
    std::env::var_os("RDPIPE_FULL").is_some()
}

/// Waits until the server has no more threads and descriptors than before.
#[track_caller]
fn assert_as_before(served: &Served, before: Held) {
    let what = format!("threads and descriptors as before: {before:?}");
    eventually(&what, || {
        Held::by(&served.server).is_within(before).then_some(())
    });
}

#[test]
fn sixty_four_clients_at_once_are_served_within_the_memory() {
    let served = Served::start(&["--memory", "256M"]);
    let megabytes = count(4, 256);
    trees::large(&served.here("file"), (megabytes as u64) << 20);
    // The server says that it listens before it has started all of its threads. After a copy it has.
    served.alice(&["%file", "@first"]).start().end().exits(0);
    let before = Held::by(&served.server);
    let copies: Vec<_> = (0..64)
        .map(|number| {
            let client = if number % 2 == 0 { "alice" } else { "bob" };
            let there = format!("@copy-{number}");
            served.client(client, &["%file", &there]).start()
        })
        .collect();
    for copy in copies {
        copy.end().exits(0);
    }
    let expected = fs::read(served.here("file")).unwrap();
    for number in 0..64 {
        let copy = served.root(&format!("copy-{number}"));
        assert!(fs::read(&copy).unwrap() == expected, "{}", copy.display());
        fs::remove_file(copy).unwrap();
    }
    assert_as_before(&served, before);
    let peak = peak_kib(&served.server) - before.resident_kib;
    println!("peak: {peak} KiB beyond {} KiB", before.resident_kib);
    assert!(peak < 256 << 10, "{peak} KiB");
}

#[test]
fn clients_one_after_another_leave_nothing_behind() {
    let served = Served::start(&[]);
    fs::write(served.here("file"), vec![7; 10_000]).unwrap();
    let copy = |round: usize| {
        let arguments = if round % 2 == 0 {
            ["%file", "@file"]
        } else {
            ["@file", "%back"]
        };
        served.alice(&arguments).start().end().exits(0);
    };
    (0..10).for_each(copy);
    let before = Held::by(&served.server);
    (0..count(60, 1000)).for_each(copy);
    assert_as_before(&served, before);
    let after = Held::by(&served.server);
    println!("{before:?} then {after:?}");
    assert!(
        after.resident_kib < before.resident_kib + (8 << 10),
        "{before:?} then {after:?}"
    );
    assert_eq!(pinned_kib(&served.server), 0);
}
