//! What happens to files that the destination has already: --no-clobber, --update, --skip-same, --delete.

use std::{
    fs,
    os::unix::fs::{MetadataExt, chown, symlink},
    path::Path,
};

use super::{
    compare::assert_same,
    metadata::with_guests,
    trees::{mode, small, stamp},
};
use crate::support::programs::hosts::{Network, Outcome};
use crate::support::programs::local_hosts::Hosts;

/// A file that both ends have: its name, the time of the source's and of the destination's file, and both contents.
const BOTH: &[(&str, i64, i64, &str, &str)] = &[
    ("older", 1_000, 2_000, "source", "target"),
    ("newer", 2_000, 1_000, "source", "target"),
    ("same", 1_500, 1_500, "source", "target"),
    ("longer", 1_500, 1_500, "the source", "target"),
];

/// Makes a host h1 with the files of [`BOTH`] and one file more, and a host h2 with other files under the same names.
fn both() -> Hosts {
    let hosts = Hosts::new("");
    for (name, source_time, target_time, source, target) in BOTH {
        for (host, time, content) in [("h1", source_time, source), ("h2", target_time, target)] {
            hosts.file(host, &format!("tree/{name}"), content.as_bytes());
            stamp(&hosts.path(host, &format!("tree/{name}")), *time, 7);
        }
    }
    hosts.file("h1", "tree/missing", b"source");
    hosts.file("h2", "tree/own", b"of the destination");
    hosts
}

/// Copies with these options, and checks which names of [`BOTH`] the copy has replaced.
#[track_caller]
fn replaces(options: &[&str], replaced: &[&str]) -> Hosts {
    let hosts = both();
    let arguments = [options, &["-aT", "h1:tree", "h2:tree"]].concat();
    hosts.rdcp(&arguments).start().end().exits(0);
    for (name, _, _, source, target) in BOTH {
        let expected = if replaced.contains(name) {
            source
        } else {
            target
        };
        let found = hosts.read("h2", &format!("tree/{name}"));
        assert_eq!(found, expected.as_bytes(), "{name} with {options:?}");
    }
    assert_eq!(hosts.read("h2", "tree/missing"), b"source");
    assert_eq!(hosts.has("h2", "tree/own"), !options.contains(&"--delete"));
    hosts
}

#[test]
fn files_are_replaced_unless_an_option_keeps_them() {
    replaces(&[], &["older", "newer", "same", "longer"]);
    replaces(&["--no-clobber"], &[]);
    replaces(&["--update"], &["newer"]);
    replaces(&["--skip-same"], &["older", "newer", "longer"]);
    replaces(&["--update", "--delete"], &["newer"]);
}

#[test]
fn a_kept_file_may_be_a_link_a_directory_or_dangling() {
    let hosts = Hosts::new("");
    for name in ["link", "dangling", "directory", "fifo"] {
        hosts.file("h1", &format!("tree/{name}"), b"source");
    }
    hosts.file("h2", "tree/directory/inside", b"kept");
    symlink("directory/inside", hosts.path("h2", "tree/link")).unwrap();
    symlink("nowhere", hosts.path("h2", "tree/dangling")).unwrap();
    let arguments = ["-aT", "--no-clobber", "h1:tree", "h2:tree"];
    let end = hosts.rdcp(&arguments).start().end();
    end.tells(1, &["tree/directory: cannot replace a directory"]);
    assert_eq!(hosts.read("h2", "tree/link"), b"kept");
    assert!(fs::read_link(hosts.path("h2", "tree/dangling")).is_ok());
    assert!(!hosts.has("h2", "tree/nowhere"));
    assert_eq!(hosts.read("h2", "tree/directory/inside"), b"kept");
    assert_eq!(hosts.read("h2", "tree/fifo"), b"source");
}

#[test]
fn a_kept_file_is_not_replaced_by_a_directory_and_the_directory_is_named() {
    let hosts = Hosts::new("");
    hosts.file("h1", "tree/name/inside", b"source");
    hosts.file("h1", "tree/other", b"source");
    hosts.file("h1", "tree/taken", b"source");
    hosts.file("h2", "tree/name", b"kept");
    hosts.file("h2", "tree/taken/inside", b"kept");
    let arguments = ["-rT", "--no-clobber", "h1:tree", "h2:tree"];
    for options in [&["--delete", "-n"][..], &["--delete"], &[]] {
        let end = hosts.rdcp(&[options, &arguments].concat()).start().end();
        end.tells(
            1,
            &[
                "tree/name: the destination has something else of this name, which a directory does not replace; nothing in it",
                "tree/taken: cannot replace a directory",
            ],
        );
        assert_eq!(hosts.read("h2", "tree/name"), b"kept");
        assert_eq!(hosts.read("h2", "tree/taken/inside"), b"kept");
    }
    assert_eq!(hosts.read("h2", "tree/other"), b"source");
}

#[test]
fn a_file_in_the_way_of_a_tree_is_named_once() {
    let hosts = Hosts::new("");
    hosts.file("h1", "tree/a/b/inside", b"source");
    hosts.file("h1", "tree/c/inside", b"source");
    hosts.file("h2", "file", b"kept");
    let end = hosts.rdcp(&["-r", "h1:tree", "h2:file"]).start().end();
    let said = end.exits(1);
    assert_eq!(said.matches("does not replace").count(), 1, "{said}");
    assert!(said.contains("h2: file: the destination"), "{said}");
    assert!(said.contains("1 failed"), "{said}");
    assert_eq!(hosts.read("h2", "file"), b"kept");
}

#[test]
fn nothing_is_overwritten_where_a_normal_user_cannot_look() {
    let Some(network) = with_guests(2) else {
        return;
    };
    let guest = Some(65_534);
    for host in ["h1", "h2"] {
        let tree = network.file(host, "tree");
        fs::create_dir_all(tree.join("shut/deep")).unwrap();
        for name in ["shut/file", "shut/deep/file"] {
            fs::write(tree.join(name), host).unwrap();
            let seconds = if host == "h1" { 1_000 } else { 2_000 };
            stamp(&tree.join(name), seconds, 0);
        }
        for name in ["", "shut", "shut/deep", "shut/file", "shut/deep/file"] {
            chown(tree.join(name), guest, guest).unwrap();
        }
    }
    let tree = network.file("h2", "tree");
    let run = |options: &[&str]| {
        fs::write(network.file("h1", "tree/shut/deep/new"), "h1").unwrap();
        let _ = fs::remove_file(tree.join("shut/deep/new"));
        for name in ["shut/deep", "shut"] {
            mode(&tree.join(name), 0);
        }
        let arguments = [options, &["-T", "h1:tree", "guest@h2:tree"]].concat();
        let end = network.rdcp(arguments).start().end();
        for name in ["shut/file", "shut/deep/file"] {
            assert_eq!(fs::read(tree.join(name)).unwrap(), b"h2", "{options:?}");
        }
        end
    };
    for option in ["--no-clobber", "--update"] {
        // With -a, the directories get the modes of the source.
        run(&["-a", option]).exits(0);
        assert_eq!(fs::read(tree.join("shut/deep/new")).unwrap(), b"h1");
        let end = run(&["-r", option]);
        end.tells(1, &["shut/file", "shut/deep", "Permission denied"]);
        let deep = |line: &&str| line.contains("shut/deep");
        assert_eq!(end.stderr.lines().filter(deep).count(), 1, "{}", end.stderr);
    }
    // The owner of the directory is another user, so it stays as it is.
    for name in ["shut", "shut/deep"] {
        chown(tree.join(name), Some(0), Some(0)).unwrap();
    }
    run(&["-a", "--update"]).tells(1, &["shut/file", "shut/deep", "Permission denied"]);
}

#[test]
fn an_unchanged_tree_is_not_copied_again() {
    let hosts = Hosts::new("");
    let original = hosts.path("h1", "tree");
    small(&original, 250, 500);
    symlink("0000", original.join("link")).unwrap();
    let copy = hosts.path("h2", "tree");
    let run = || {
        let arguments = ["-aT", "--skip-same", "h1:tree", "h2:tree"];
        let end = hosts.rdcp(&arguments).start().end();
        end.exits(0);
        assert_same(&original, &copy);
    };
    let inode = |name: &str| fs::metadata(copy.join(name)).unwrap().ino();
    run();
    let names = ["0000/file 0", "0001/file 100", "0002/file 249"];
    let before = names.map(inode);
    run();
    assert_eq!(names.map(inode), before);
    // Nanoseconds count, and so do the modes of what is kept.
    let changed = original.join(names[1]);
    fs::write(&changed, vec![b'x'; 500]).unwrap();
    let time = fs::metadata(copy.join(names[1])).unwrap();
    let nanoseconds = u32::try_from(time.mtime_nsec()).unwrap();
    stamp(&changed, time.mtime(), nanoseconds ^ 1);
    run();
    assert_ne!(inode(names[1]), before[1]);
}

#[test]
fn a_mirror_has_nothing_that_the_source_has_not() {
    let hosts = Hosts::new("");
    let [original, copy] = ["h1", "h2"].map(|host| hosts.path(host, "tree"));
    small(&original, 30, 100);
    fs::create_dir(original.join("empty")).unwrap();
    extra(&copy);
    // What is outside of the copied tree stays, also what a link leads to.
    hosts.file("h2", "outside/file", b"outside");
    symlink("../outside", copy.join("link out")).unwrap();
    let arguments = ["-aT", "--delete", "h1:tree", "h2:tree"];
    hosts.rdcp(&arguments).start().end().exits(0);
    assert_same(&original, &copy);
    assert_eq!(hosts.read("h2", "outside/file"), b"outside");
    // Into an existing directory: only the copied tree in it is a mirror.
    hosts.file("h2", "tree/extra", b"extra");
    let end = hosts.rdcp(&["-a", "--delete", "h1:tree", "h2:"]).start();
    end.end().exits(0);
    assert_same(&original, &copy);
    assert_eq!(hosts.read("h2", "outside/file"), b"outside");
}

#[test]
fn a_mirror_replaces_what_has_another_kind() {
    let hosts = Hosts::new("");
    let [original, copy] = ["h1", "h2"].map(|host| hosts.path(host, "tree"));
    hosts.file("h1", "tree/file", b"a file");
    hosts.file("h1", "tree/directory/inside", b"inside");
    symlink("file", original.join("link")).unwrap();
    hosts.file("h2", "tree/file/was/a/directory", b"old");
    hosts.file("h2", "tree/directory", b"was a file");
    hosts.file("h2", "tree/link/was/a/directory", b"old");
    let arguments = ["-aT", "--delete", "h1:tree", "h2:tree"];
    hosts.rdcp(&arguments).start().end().exits(0);
    assert_same(&original, &copy);
}

#[test]
fn a_mirror_removes_nothing_beside_the_copied_directories() {
    let hosts = Hosts::new("");
    hosts.file("h1", "file", b"source");
    hosts.file("h1", "tree/file", b"source");
    hosts.file("h1", "directory/file", b"source");
    hosts.file("h2", "file/precious", b"old");
    hosts.file("h2", "directory", b"old");
    let arguments = [
        "-a",
        "--delete",
        "h1:file",
        "h1:tree",
        "h1:directory",
        "h2:",
    ];
    for options in [&["-n"][..], &[]] {
        let end = hosts.rdcp(&[options, &arguments].concat()).start().end();
        end.tells(
            1,
            &[
                "file: cannot replace a directory",
                "directory: the destination has something else of this name, which a directory does not replace",
            ],
        );
        assert!(!String::from_utf8_lossy(&end.stdout).contains("copy file"));
        assert_eq!(hosts.read("h2", "file/precious"), b"old");
        assert_eq!(hosts.read("h2", "directory"), b"old");
        assert_eq!(hosts.has("h2", "tree/file"), options.is_empty());
    }
}

#[test]
fn an_empty_source_removes_nothing_unless_the_user_says_how_much() {
    let hosts = Hosts::new("");
    for host in ["h1", "h2"] {
        fs::create_dir_all(hosts.path(host, "tree/sub")).unwrap();
    }
    fs::remove_dir(hosts.path("h1", "tree/sub")).unwrap();
    for name in ["tree/sub/a", "tree/sub/b", "tree/c"] {
        hosts.file("h2", name, b"old");
    }
    for line in [
        &["-aT", "--delete", "h1:tree", "h2:tree"][..],
        &["-aT", "--delete", "-n", "h1:tree", "h2:tree"],
        &["-a", "--delete", "h1:tree", "h2:"],
        &["-a", "--delete", "h1:tree/.", "h2:tree"],
    ] {
        let end = hosts.rdcp(line).start().end();
        end.tells(1, &["is empty", "--max-delete N"]);
        assert!(hosts.has("h2", "tree/sub/a") && hosts.has("h2", "tree/c"));
    }
    let some = ["-aT", "--delete", "--max-delete", "1", "h1:tree", "h2:tree"];
    let end = hosts.rdcp(&some).start().end();
    end.tells(1, &["3 more entries were not removed: --max-delete 1"]);
    let all = ["-aT", "--delete", "--max-delete=3", "h1:tree", "h2:tree"];
    let end = hosts.rdcp(&all).start().end();
    end.tells(0, &["3 removed"]);
    assert!(!hosts.has("h2", "tree/sub") && !hosts.has("h2", "tree/c"));
}

#[test]
fn nothing_is_deleted_for_a_folder_that_was_not_copied() {
    let hosts = Hosts::new("");
    hosts.file("h1", "tree/kept", b"source");
    extra(&hosts.path("h2", "tree"));
    // A source that is not there is no empty source.
    let end = hosts.rdcp(&["-aT", "--delete", "h1:nosuch", "h2:tree"]);
    end.start().end().tells(1, &["nosuch", "No such file"]);
    assert!(hosts.has("h2", "tree/extra/deep/file"));
    // What a filter leaves out is left alone at the destination, also what the source has not.
    let arguments = ["-aT", "--delete", "--exclude=extra", "h1:tree", "h2:tree"];
    hosts.rdcp(&arguments).start().end().exits(0);
    assert!(hosts.has("h2", "tree/extra/deep/file"));
    assert!(!hosts.has("h2", "tree/file to delete"));
}

/// Makes what a mirror has to delete.
fn extra(at: &Path) {
    fs::create_dir_all(at.join("extra/deep")).unwrap();
    for name in [
        "extra/deep/file",
        "extra/read-only",
        "file to delete",
        "-rf *\n",
    ] {
        fs::write(at.join(name), b"extra").unwrap();
    }
    mode(&at.join("extra/read-only"), 0o400);
    symlink("/nowhere", at.join("extra/link")).unwrap();
}

#[test]
fn names_of_one_file_are_links_also_if_the_destination_has_some_of_them() {
    for option in ["--skip-same", "--update", "--resume"] {
        let hosts = Hosts::new("");
        for name in ["first", "alone/second", "third"] {
            let name = format!("tree/{name}");
            if name.ends_with("first") {
                hosts.file("h1", &name, b"content");
                stamp(&hosts.path("h1", &name), 1_000, 7);
            } else {
                fs::create_dir_all(hosts.path("h1", &name).parent().unwrap()).unwrap();
                fs::hard_link(hosts.path("h1", "tree/first"), hosts.path("h1", &name)).unwrap();
            }
        }
        // The destination has two of the names, each as a file of its own.
        for name in ["first", "alone/second"] {
            let name = format!("tree/{name}");
            hosts.file("h2", &name, b"content");
            stamp(&hosts.path("h2", &name), 1_000, 7);
        }
        let arguments = ["-aT", option, "h1:tree", "h2:tree"];
        hosts.rdcp(&arguments).start().end().exits(0);
        assert_same(&hosts.path("h1", "tree"), &hosts.path("h2", "tree"));
        // Nothing is left to do.
        let of = |name| fs::metadata(hosts.path("h2", name)).unwrap();
        let before = of("tree/third");
        assert_eq!(before.nlink(), 3, "{option}");
        let end = hosts.rdcp(&arguments).start().end();
        end.exits(0);
        assert!(end.stderr.contains(" 0 files"), "{option}: {}", end.stderr);
        assert_eq!(
            of("tree/third").ctime_nsec(),
            before.ctime_nsec(),
            "{option}"
        );
    }
}

#[test]
fn another_name_of_a_file_that_the_destination_keeps_is_no_link_to_what_differs() {
    let hosts = Hosts::new("");
    hosts.file("h1", "tree/first", b"source");
    stamp(&hosts.path("h1", "tree/first"), 1_000, 7);
    fs::hard_link(
        hosts.path("h1", "tree/first"),
        hosts.path("h1", "tree/second"),
    )
    .unwrap();
    for option in ["--update", "--no-clobber"] {
        hosts.file("h2", "tree/first", b"newer");
        stamp(&hosts.path("h2", "tree/first"), 2_000, 7);
        let arguments = ["-aT", option, "h1:tree", "h2:tree"];
        hosts.rdcp(&arguments).start().end().exits(0);
        assert_eq!(hosts.read("h2", "tree/first"), b"newer", "{option}");
        assert_eq!(hosts.read("h2", "tree/second"), b"source", "{option}");
        fs::remove_file(hosts.path("h2", "tree/second")).unwrap();
    }
}

#[test]
fn another_name_of_a_file_is_no_link_to_what_another_source_has_written() {
    let hosts = Hosts::new("");
    let link = |host, directory: &str| {
        let path = |name| hosts.path(host, &format!("{directory}/tree/{name}"));
        fs::hard_link(path("first"), path("second")).unwrap();
    };
    hosts.file("h1", "one/tree/first", b"source");
    stamp(&hosts.path("h1", "one/tree/first"), 1_000, 7);
    link("h1", "one");
    // Either name may be the first one that the source finds.
    for newer in ["first", "second"] {
        let to = format!("to-{newer}");
        hosts.file("h2", &format!("{to}/tree/first"), b"source");
        stamp(&hosts.path("h2", &format!("{to}/tree/first")), 1_000, 7);
        link("h2", &to);
        hosts.file("h1", &format!("{newer}/tree/{newer}"), b"newer");
        stamp(
            &hosts.path("h1", &format!("{newer}/tree/{newer}")),
            2_000,
            7,
        );
        let two = format!("h1:{newer}/tree");
        let destination = format!("h2:{to}");
        let arguments = ["-a", "--update", "h1:one/tree", &two, &destination];
        hosts.rdcp(&arguments).start().end();
        let other = if newer == "first" { "second" } else { "first" };
        let kept = hosts.read("h2", &format!("{to}/tree/{other}"));
        assert_eq!(kept, b"source", "{newer}");
    }
}

#[test]
fn a_link_with_another_target_is_not_the_same() {
    let hosts = Hosts::new("");
    for (host, target) in [("h1", "one"), ("h2", "two")] {
        fs::create_dir_all(hosts.path(host, "tree")).unwrap();
        let link = hosts.path(host, "tree/link");
        symlink(target, &link).unwrap();
        stamp(&link, 1_000, 7);
    }
    for files in [" 1 file,", " 0 files"] {
        let arguments = ["-aT", "--skip-same", "h1:tree", "h2:tree"];
        let end = hosts.rdcp(&arguments).start().end();
        end.exits(0);
        assert!(end.stderr.contains(files), "{}", end.stderr);
        let target = fs::read_link(hosts.path("h2", "tree/link")).unwrap();
        assert_eq!(target, Path::new("one"));
    }
}

#[test]
fn of_two_directories_that_are_one_at_the_destination_neither_removes_what_the_other_has() {
    let Some(network) = Network::new(2) else {
        return;
    };
    for (name, directory) in [("first", "Directory"), ("second", "directory")] {
        let directory = network.file("h1", &format!("tree/{directory}"));
        fs::create_dir_all(&directory).unwrap();
        fs::write(directory.join(name), name).unwrap();
    }
    // As on a file system that ignores the case of names.
    network.on(
        "h2",
        "mkdir -p tree/Directory tree/directory && mount --bind tree/Directory tree/directory && \
         touch tree/Directory/other",
    );
    let arguments = ["-aT", "--delete", "h1:tree", "h2:tree"];
    let end = network.rdcp(arguments).start().end();
    end.tells(
        1,
        &["takes its name for that of another directory of the source, so nothing was removed"],
    );
    assert_eq!(network.on("h2", "ls tree/Directory"), "first\nsecond\n");
}
