//! Trees that others change while they are copied: files that change, and links that lead out of the destination or the
//! source.

use std::{
    fs::{self, File},
    io::Write,
    os::unix::fs::symlink,
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use rustix::fs::{CWD, RenameFlags, renameat_with};

use super::{
    compare::assert_no_partial_file,
    deaths::arrives,
    trees::{large, small},
};
use crate::support::programs::{eventually, hosts::Outcome, local_hosts::Hosts};

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

/// Exchanges two names without end while `body` runs, as soon as `sign` is there.
fn exchanging<T>(sign: &Path, [one, other]: [&Path; 2], body: impl FnOnce() -> T) -> T {
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut has_begun = false;
            while !is_over.load(Ordering::Relaxed) {
                if has_begun || sign.exists() {
                    has_begun = true;
                    // A mirror may remove the link.
                    let _ = renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE);
                }
                thread::yield_now();
            }
        });
        let result = body();
        is_over.store(true, Ordering::Relaxed);
        result
    })
}

#[test]
fn a_link_in_the_destination_leads_nothing_out() {
    let hosts = Hosts::new("");
    let original = hosts.path("h1", "tree");
    small(&original.join("sub"), 20, 100);
    large(&original.join("sub/large"), 9 << 20);
    hosts.file("h1", "tree/beside", b"beside");
    hosts.file("h2", "outside/precious", b"precious");
    fs::create_dir_all(hosts.path("h2", "tree")).unwrap();
    let absolute = hosts.path("h2", "outside").display().to_string();
    for target in ["../outside", &absolute, "."] {
        let link = hosts.path("h2", "tree/sub");
        let _ = fs::remove_file(&link);
        symlink(target, &link).unwrap();
        for options in ["-a", "-r"] {
            let end = hosts.rdcp(&[options, "h1:tree", "h2:"]).start().end();
            end.tells(1, &["sub"]);
            assert_eq!(hosts.read("h2", "tree/beside"), b"beside");
            let outside = fs::read_dir(hosts.path("h2", "outside")).unwrap();
            assert_eq!(outside.count(), 1);
            assert!(!hosts.has("h2", "tree/0000") && !hosts.has("h2", "tree/large"));
        }
    }
    // A mirror replaces the link itself.
    let link = hosts.path("h2", "tree/sub");
    fs::remove_file(&link).unwrap();
    symlink("../outside", &link).unwrap();
    let arguments = ["-aT", "--delete", "h1:tree", "h2:tree"];
    hosts.rdcp(&arguments).start().end().exits(0);
    assert!(fs::symlink_metadata(&link).unwrap().is_dir());
    assert_eq!(hosts.read("h2", "outside/precious"), b"precious");
}

#[test]
fn a_directory_of_the_destination_that_becomes_a_link_leads_nothing_out() {
    let hosts = Hosts::new("");
    let original = hosts.path("h1", "tree");
    small(&original.join("sub/below"), 1500, 300);
    large(&original.join("sub/below/large"), 20 << 20);
    let outside = hosts.path("h2", "outside");
    fs::create_dir_all(outside.join("below")).unwrap();
    fs::create_dir_all(hosts.path("h2", "tree/sub")).unwrap();
    symlink("../outside", hosts.path("h2", "tree/link")).unwrap();
    let [one, other] = ["tree/sub", "tree/link"].map(|name| hosts.path("h2", name));
    for options in [&["-a"][..], &["-r"], &["-a", "--delete"]] {
        let arguments = [options, &["h1:tree/sub", "h2:tree"]].concat();
        let sign = one.join("below/0000");
        let end = exchanging(&sign, [&one, &other], || {
            hosts.rdcp(&arguments).start().end()
        });
        assert!([0, 1].contains(&end.code()), "{end:?}");
        end.is_silent_on(&["panicked"]);
        assert_eq!(fs::read_dir(&outside).unwrap().count(), 1);
        assert_eq!(fs::read_dir(outside.join("below")).unwrap().count(), 0);
        // The names may stand exchanged.
        for folder in [&one, &other] {
            if fs::symlink_metadata(folder).is_ok_and(|info| info.is_dir()) {
                let _ = fs::remove_dir_all(folder.join("below"));
            }
        }
    }
}

#[test]
fn a_directory_of_the_source_that_becomes_a_link_leads_nothing_in() {
    let hosts = Hosts::new("");
    hosts.file("h1", "secret/0000/file 1", b"secret");
    hosts.file("h1", "secret/password", b"secret");
    let original = hosts.path("h1", "tree");
    small(&original.join("sub"), 300, 300);
    symlink("../secret", original.join("link")).unwrap();
    let [one, other] = ["sub", "link"].map(|name| original.join(name));
    for round in 0..4 {
        let to = format!("h2:{round}");
        let end = exchanging(&one, [&one, &other], || {
            hosts.rdcp(&["-a", "h1:tree", &to]).start().end()
        });
        assert!([0, 1].contains(&end.code()), "{end:?}");
        let mut folders = vec![hosts.path("h2", &round.to_string())];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
                let kind = entry.file_type().unwrap();
                if kind.is_dir() {
                    folders.push(entry.path());
                } else if kind.is_file() {
                    assert!(fs::read(entry.path()).unwrap() != b"secret", "{entry:?}");
                }
            }
        }
    }
}

#[test]
fn temporary_names_that_are_links_are_not_followed() {
    let hosts = Hosts::new("");
    let original = hosts.path("h1", "tree");
    hosts.file("h1", "tree/small", b"new");
    large(&original.join("large"), 9 << 20);
    hosts.file("h2", "precious", b"precious");
    fs::create_dir_all(hosts.path("h2", "tree")).unwrap();
    for name in [".large.rdcp-part", ".large.rdcp-map"] {
        symlink("../precious", hosts.path("h2", "tree").join(name)).unwrap();
    }
    for options in [&["-a"][..], &["-a", "--resume"]] {
        let arguments = [options, &["h1:tree", "h2:"]].concat();
        let end = hosts.rdcp(&arguments).start().end();
        assert!([0, 1].contains(&end.code()), "{end:?}");
        assert_eq!(hosts.read("h2", "precious"), b"precious");
        assert_eq!(hosts.read("h2", "tree/small"), b"new");
        if end.code() == 0 {
            assert!(hosts.read("h2", "tree/large") == hosts.read("h1", "tree/large"));
        } else {
            end.tells(1, &["large"]);
            assert!(!hosts.has("h2", "tree/large"));
        }
    }
}
