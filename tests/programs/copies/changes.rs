//! Files that change while they are copied are named, and the others arrive.

use std::{
    fs::{self, File},
    io::Write,
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use super::{
    compare::assert_no_partial_file,
    moments::arrives,
    trees::{large, small},
};
use crate::support::programs::hosts::Outcome;
use crate::support::programs::{eventually, local_hosts::Hosts};

#[test]
fn a_vanished_file_is_named_and_all_others_arrive() {
    let hosts = Hosts::new("");
    let original = hosts.path("h1", "tree");
    small(&original, 300, 40_000);
    let arguments = ["-a", "--bwlimit", "4M", "h1:tree", "h2:"];
    let rdcp = hosts.rdcp(&arguments).start();
    let copy = hosts.path("h2", "tree");
    assert!(arrives(&rdcp, &copy, 200_000), "it ended at once");
    let mut removed = 0;
    for number in 0..300 {
        let name = format!("{:04}/file {number}", number / 100);
        if !copy.join(&name).exists() {
            fs::remove_file(original.join(&name)).unwrap();
            removed += 1;
        }
    }
    assert!(removed > 0);
    rdcp.end().tells(1, &["vanished"]);
    assert_no_partial_file_of(&original, &copy);
}

/// Checks that what both trees have is equal; the source lost files while it was copied.
fn assert_no_partial_file_of(original: &std::path::Path, copy: &std::path::Path) {
    for entry in fs::read_dir(copy).unwrap() {
        let entry = entry.unwrap();
        for file in fs::read_dir(entry.path()).unwrap() {
            let file = file.unwrap();
            assert_eq!(file.metadata().unwrap().len(), 40_000, "{file:?}");
            let source = original.join(entry.file_name()).join(file.file_name());
            if source.exists() {
                assert!(fs::read(source).unwrap() == fs::read(file.path()).unwrap());
            }
        }
    }
}

/// Copies a large file and others, calls `change` with the large file when some of it has arrived, and until rdcp ends.
/// Returns the hosts.
fn changes(why: &str, change: impl Fn(&mut File) + Sync) -> Hosts {
    let hosts = Hosts::new("");
    let original = hosts.path("h1", "tree");
    small(&original, 50, 1000);
    large(&original.join("large"), 16 << 20);
    let arguments = ["-a", "--bwlimit", "6M", "h1:tree", "h2:"];
    let rdcp = hosts.rdcp(&arguments).start();
    let copy = hosts.path("h2", "tree");
    assert!(arrives(&rdcp, &copy, 2 << 20), "it ended at once");
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut file = File::options()
                .append(true)
                .open(original.join("large"))
                .unwrap();
            while !is_over.load(Ordering::Relaxed) {
                change(&mut file);
                thread::yield_now();
            }
        });
        eventually("the end of rdcp", || (!rdcp.runs()).then_some(()));
        is_over.store(true, Ordering::Relaxed);
    });
    rdcp.end()
        .tells(1, &["large", why, "while it was copied", "h1"]);
    let small_files = fs::read_dir(copy.join("0000")).unwrap();
    assert_eq!(small_files.count(), 50);
    hosts
}

#[test]
fn a_growing_file_is_named_and_all_others_arrive() {
    let hosts = changes("changed", |file| {
        if file.metadata().unwrap().len() < 64 << 20 {
            file.write_all(&[b'g'; 1000]).unwrap();
        }
    });
    let copy = hosts.path("h2", "tree/large");
    if copy.exists() {
        // It was whole when it was opened.
        assert!(copy.metadata().unwrap().len() >= 16 << 20);
    }
}

#[test]
fn a_shrinking_file_gets_no_final_name() {
    let hosts = changes("shorter", |file| file.set_len(1 << 20).unwrap());
    for name in ["large", ".large.rdcp-part", ".large.rdcp-map"] {
        assert!(!hosts.has("h2", &format!("tree/{name}")), "{name}");
    }
    // The next run copies what is there then.
    let arguments = ["-a", "--resume", "h1:tree", "h2:"];
    hosts.rdcp(&arguments).start().end().exits(0);
    super::compare::assert_same(&hosts.path("h1", "tree"), &hosts.path("h2", "tree"));
}

#[test]
fn a_destination_that_vanishes_is_named() {
    let hosts = Hosts::new("");
    let original = hosts.path("h1", "tree");
    small(&original, 300, 40_000);
    let arguments = ["-a", "--bwlimit", "8M", "h1:tree", "h2:"];
    let rdcp = hosts.rdcp(&arguments).start();
    let copy = hosts.path("h2", "tree");
    assert!(arrives(&rdcp, &copy, 1 << 20), "it ended at once");
    // rdcp makes files there meanwhile.
    eventually("an empty directory", || {
        let _ = fs::remove_dir_all(&copy);
        (!copy.exists()).then_some(())
    });
    let end = rdcp.end();
    assert!([0, 1].contains(&end.code()), "{end:?}");
    end.is_silent_on(&["panicked"]);
    assert_no_partial_file(&original, &copy);
}
