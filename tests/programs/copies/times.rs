//! File systems that store coarser times than the source's, or no years after 2038.

use std::{fs, os::unix::fs::symlink, process::Command};

use super::trees::{large, stamp};
use crate::support::programs::hosts::{Network, Outcome};

/// Returns two hosts; h2 has the directory `old` on a file system that stores whole seconds until 2038: ext4 with
/// inodes of 128 bytes. None if there can be none here.
fn with_old_file_system() -> Option<Network> {
    let version = Command::new("mkfs.ext4").arg("-V").output();
    if version.is_err() {
        eprintln!("SKIPPED: no mkfs.ext4");
        return None;
    }
    let network = Network::new(2)?;
    network.on(
        "h2",
        "truncate -s 40M image && mkfs.ext4 -q -I 128 image && mkdir old && mount -o loop image old",
    );
    Some(network)
}

#[test]
fn what_has_the_time_that_the_destination_stores_is_not_sent_again() {
    let Some(network) = with_old_file_system() else {
        return;
    };
    let tree = network.file("h1", "tree");
    fs::create_dir_all(tree.join("deep")).unwrap();
    for name in ["first", "changed", "deep/other"] {
        fs::write(tree.join(name), name).unwrap();
        stamp(&tree.join(name), 1_700_000_000, 678_901_234);
    }
    large(&tree.join("large"), 5 << 20);
    symlink("first", tree.join("link")).unwrap();
    let copy = |options: &[&str]| {
        let arguments = [options, &["-aT", "h1:tree", "h2:old/tree"]].concat();
        let end = network.rdcp(arguments).start().end();
        end.exits(0);
        end.stderr
    };
    copy(&[]);
    for option in ["--skip-same", "--update", "--resume"] {
        for more in [&[option][..], &[option, "-n"]] {
            let told = copy(more);
            assert!(told.contains(" 0 files"), "{more:?}: {told}");
        }
    }
    // Of another size, in the same second.
    fs::write(tree.join("changed"), "changed again").unwrap();
    stamp(&tree.join("changed"), 1_700_000_000, 700_000_000);
    for option in ["--skip-same", "--update", "--resume"] {
        let told = copy(&[option]);
        let files = if option == "--skip-same" {
            " 1 file,"
        } else {
            " 0 files"
        };
        assert!(told.contains(files), "{option}: {told}");
    }
    stamp(&tree.join("first"), 1_700_000_001, 0);
    let told = copy(&["--update"]);
    assert!(told.contains(" 1 file,"), "{told}");
    assert_eq!(
        network.on("h2", "ls -A old/tree"),
        "changed\ndeep\nfirst\nlarge\nlink\n"
    );
}

#[test]
fn a_time_that_the_destination_cannot_store_is_named_and_the_file_is_sent_once() {
    let Some(network) = with_old_file_system() else {
        return;
    };
    for kind in ["file", "directory", "link"] {
        let tree = network.file("h1", kind);
        fs::create_dir(&tree).unwrap();
        fs::write(tree.join("file"), b"content").unwrap();
        let named = match kind {
            "directory" => tree.clone(),
            "link" => {
                symlink("file", tree.join("link")).unwrap();
                tree.join("link")
            }
            _ => tree.join("file"),
        };
        stamp(&named, 2_524_608_000, 5);
        let arguments = ["-aT", &format!("h1:{kind}"), &format!("h2:old/{kind}")];
        let end = network.rdcp(arguments).start().end();
        end.tells(
            0,
            &[
                "some times were not kept: the file system has no such years",
                "2050-01-01 00:00:00 UTC became 2038-01-19 03:14:07 UTC",
            ],
        );
        let again = [&["--skip-same"], &arguments[..]].concat();
        let end = network.rdcp(again).start().end();
        end.exits(0);
        assert!(end.stderr.contains(" 0 files"), "{kind}: {}", end.stderr);
    }
}
