//! Copies between clients and a server, in both directions, with what rdcp can do elsewhere.

use std::{fs, process::Command};

use crate::{
    copies::trees,
    serving::served::Served,
    support::programs::{hosts::Outcome, local_hosts::Hosts},
};

/// Checks that rsync finds no difference between two trees.
#[track_caller]
fn assert_same(one: &std::path::Path, other: &std::path::Path) {
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
    let client = super::served::rdcp([served.operand("file"), there]);
    client.env("RDPIPE_KEY", key).start().end().exits(0);
    assert_eq!(fs::read_to_string(served.root("file")).unwrap(), "content");
    let bob = served.server.said("bob's copy", |text| {
        let line = text.lines().find(|line| line.contains("bob (127.0.0.1)"))?;
        Some(line.to_owned())
    });
    assert!(bob.contains("received 1 file, 7 B"), "{bob}");
    assert!(!bob.contains(key));
}
