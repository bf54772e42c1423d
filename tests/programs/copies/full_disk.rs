//! A destination without space.

use std::fs;

use super::trees::{large, small};
use crate::support::programs::hosts::{Network, Outcome};

#[test]
fn a_full_disk_fails_the_files_that_have_no_space() {
    let Some(network) = Network::new(2) else {
        return;
    };
    let tree = network.file("h1", "tree");
    small(&tree, 200, 20_000);
    large(&tree.join("large"), 12 << 20);
    fs::write(tree.join("tiny"), b"tiny").unwrap();
    network.on(
        "h2",
        "mkdir disk && mount -t tmpfs -o size=8m,mode=755 tmpfs disk",
    );
    let end = network.rdcp(["-a", "h1:tree", "h2:disk/"]).start().end();
    end.tells(1, &["No space left", "h2"]);
    end.is_silent_on(&["panicked"]);
    // What has its final name is whole; `cmp` tells of the first difference.
    let original = tree.display();
    let check = format!(
        "cd disk/tree && find . -type f ! -name '.*' -exec cmp {{}} {original}/{{}} ';' && find . -type f ! -name '.*' | wc -l"
    );
    let whole: usize = network.on("h2", &check).trim().parse().unwrap();
    assert!((1..202).contains(&whole), "{whole}\n{}", end.stderr);
    let failed = end.stderr.lines();
    let failed = failed.filter(|line| line.contains("No space left"));
    assert!(failed.count() >= 1, "{}", end.stderr);
    // With space, a later run completes.
    network.on("h2", "mount -o remount,size=64m disk");
    let end = network
        .rdcp(["-a", "--resume", "h1:tree", "h2:disk/"])
        .start();
    end.end().exits(0);
    let rsync = format!("rsync -aHAXSnci --modify-window=-1 --delete {original}/ disk/tree/");
    assert_eq!(network.on("h2", &rsync), "");
}

#[test]
fn a_disk_without_inodes_fails_the_files_that_have_none() {
    let Some(network) = Network::new(2) else {
        return;
    };
    let tree = network.file("h1", "tree");
    small(&tree, 100, 100);
    network.on(
        "h2",
        "mkdir disk && mount -t tmpfs -o nr_inodes=50 tmpfs disk",
    );
    let end = network.rdcp(["-a", "h1:tree", "h2:disk/"]).start().end();
    end.tells(1, &["No space left", "file "]);
    let count = network.on("h2", "find disk -type f | wc -l");
    assert!(count.trim().parse::<usize>().unwrap() > 30, "{count}");
}

#[test]
fn a_read_only_disk_is_named() {
    let Some(network) = Network::new(2) else {
        return;
    };
    small(&network.file("h1", "tree"), 10, 100);
    network.on("h2", "mkdir disk && mount -t tmpfs -o ro tmpfs disk");
    let end = network.rdcp(["-a", "h1:tree", "h2:disk/"]).start().end();
    end.tells(1, &["Read-only file system", "h2"]);
}
