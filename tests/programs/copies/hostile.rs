//! Attacks from outside: links that lead out of the destination or the source, also while a copy runs.

use std::{
    fs,
    os::unix::fs::symlink,
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use rustix::fs::{CWD, RenameFlags, renameat_with};

use super::trees::{large, small};
use crate::support::programs::hosts::Outcome;
use crate::support::programs::local_hosts::Hosts;

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
