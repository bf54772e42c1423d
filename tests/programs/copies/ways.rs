//! The nasty tree on all ways between hosts and this machine, what else makes a tree special, and sources of one run
//! that have entries of one name.

use std::{
    fs::{self, File},
    os::unix::fs::{FileExt, MetadataExt, symlink},
    path::{Path, PathBuf},
    process::Command,
};

use rustix::fs::{Mode, OFlags, mkdirat, openat};

use super::{
    compare::{assert_no_partial_file, assert_rsync_finds_nothing, assert_same},
    trees::{self, is_root},
};
use crate::support::programs::{
    eventually,
    hosts::{Network, Outcome},
    local_hosts::Hosts,
    skip,
};

#[test]
fn a_tree_with_everything_nasty_arrives_whole_on_every_way() {
    let Some(network) = Network::new(2) else {
        return;
    };
    let original = network.file("ctl", "tree");
    trees::nasty(&original, trees::small_files());
    // From this machine to h1, from there to h2, from there back.
    for (from, to, host) in [
        ("tree", "h1:tree", "h1"),
        ("h1:tree", "h2:", "h2"),
        ("h2:tree", "back", "ctl"),
    ] {
        let end = network.rdcp(["-a", from, to]).start().end();
        end.exits(0);
        assert!(end.stdout.is_empty(), "{end:?}");
        let name = if host == "ctl" { "back" } else { "tree" };
        assert_same(&original, &network.file(host, name));
        eventually("empty hosts", || {
            let mut hosts = network.hosts();
            let is_empty = hosts.all(|host| network.processes(&host).is_empty());
            is_empty.then_some(())
        });
    }
    // A second run changes nothing, and a copy onto itself with other contents in between is whole again.
    fs::write(network.file("h2", "tree/modes/444"), b"other").expect("a file");
    let end = network.rdcp(["-a", "-T", "h1:tree", "h2:tree"]).start();
    end.end().exits(0);
    assert_same(&original, &network.file("h2", "tree"));
}

#[test]
fn a_tree_with_everything_nasty_arrives_whole_on_this_machine() {
    if !is_root() {
        skip("only root can make and read this tree");
        return;
    }
    let hosts = Hosts::new("");
    let original = hosts.path("h1", "tree");
    trees::nasty(&original, 300);
    fs::create_dir(hosts.path("h2", "")).unwrap();
    let copies = ["1", "2", "4"].map(|lanes| (lanes, hosts.path("h2", lanes)));
    for (lanes, copy) in copies {
        let [from, to] = [&original, &copy].map(|path| path.display().to_string());
        let end = hosts.rdcp(&["-a", "-j", lanes, &from, &to]).start().end();
        end.exits(0);
        assert_same(&original, &copy);
    }
}

#[test]
fn the_times_of_access_are_kept() {
    let hosts = Hosts::new("");
    hosts.file("h1", "tree/file", b"read long ago");
    let file = hosts.path("h1", "tree/file");
    trees::stamp(&file, 1_500_000_000, 42);
    let end = hosts.rdcp(&["-a", "h1:tree", "h2:"]).start().end();
    end.exits(0);
    let copy = fs::metadata(hosts.path("h2", "tree/file")).unwrap();
    assert_eq!((copy.atime(), copy.atime_nsec()), (1_500_000_000, 42));
}

#[test]
fn a_huge_sparse_file_stays_sparse() {
    let hosts = Hosts::new("");
    hosts.file("h1", "huge", b"begins");
    let original = hosts.path("h1", "huge");
    let file = File::options().write(true).open(&original).unwrap();
    file.write_all_at(b"in the middle", 300 << 30).unwrap();
    file.set_len(400 << 30).unwrap();
    for options in [&["-a"][..], &["-j", "3"], &["--checksum"]] {
        // With a digest, all of the holes are hashed.
        let size = if options.contains(&"--checksum") {
            2
        } else {
            400
        };
        file.set_len(size << 30).unwrap();
        let arguments = [options, &["h1:huge", "h2:huge"]].concat();
        hosts.rdcp(&arguments).start().end().exits(0);
        let copy = hosts.path("h2", "huge");
        let info = fs::metadata(&copy).unwrap();
        assert_eq!(info.size(), size << 30);
        assert!(info.blocks() * 512 <= 1 << 20, "{} blocks", info.blocks());
        let copy = File::open(copy).unwrap();
        for (offset, expected) in [(0, "begins"), (300 << 30, "in the middle")] {
            if offset < size << 30 {
                let mut found = vec![0; expected.len()];
                copy.read_exact_at(&mut found, offset).unwrap();
                assert_eq!(found, expected.as_bytes());
            }
        }
    }
}

#[test]
fn large_files_are_striped_over_the_lanes() {
    let hosts = Hosts::new("");
    hosts.file("h1", "tree/small", b"beside the large ones");
    let original = hosts.path("h1", "tree");
    for (name, bytes) in [("a", (64 << 20) + 4097), ("b", 17 << 20), ("c", 9 << 20)] {
        trees::large(&original.join(name), bytes);
    }
    for lanes in ["1", "2", "5"] {
        let to = format!("h2:{lanes}");
        let arguments = ["-a", "-j", lanes, "h1:tree", &to];
        hosts.rdcp(&arguments).start().end().exits(0);
        assert_same(&original, &hosts.path("h2", lanes));
    }
}

#[test]
fn several_sources_of_several_hosts_arrive_in_one_directory() {
    let Some(network) = Network::new(3) else {
        return;
    };
    for (host, name) in [
        ("h1", "one"),
        ("h1", "two"),
        ("h2", "three"),
        ("ctl", "four"),
    ] {
        let folder = network.file(host, name);
        trees::small(&folder, 20, 1000);
        fs::write(folder.join("of"), host).unwrap();
    }
    network.write("h2", "file", b"of h2");
    fs::create_dir(network.file("h3", "all")).unwrap();
    let sources = ["h1:one", "h2:three", "h2:file", "./four", "h1:two"];
    let arguments = [&["-a"][..], &sources, &["h3:all"]].concat();
    network.rdcp(arguments).start().end().exits(0);
    for (host, name) in [
        ("h1", "one"),
        ("h1", "two"),
        ("h2", "three"),
        ("h2", "file"),
        ("ctl", "four"),
    ] {
        let copy = network.file("h3", "all").join(name);
        if copy.is_dir() {
            assert_same(&network.file(host, name), &copy);
        } else {
            assert_eq!(network.read(host, name), fs::read(copy).unwrap());
        }
    }
    // An unreachable host is reported, and what came before is whole.
    let arguments = ["-a", "h1:one", "nowhere.invalid:two", "h3:all"];
    let end = network.rdcp(arguments).start().end();
    end.tells(255, &["nowhere.invalid"]);
    assert_rsync_finds_nothing(&network.file("h1", "one"), &network.file("h3", "all/one"));
}

#[test]
fn a_path_beyond_the_limit_of_a_path_arrives_or_is_named() {
    let hosts = Hosts::new("");
    let top = hosts.path("h1", "tree");
    fs::create_dir_all(&top).unwrap();
    fs::write(top.join("beside"), b"it").unwrap();
    let mut folder = std::os::fd::OwnedFd::from(File::open(&top).unwrap());
    let name = "n".repeat(200);
    for _ in 0..30 {
        mkdirat(&folder, &name, Mode::RWXU).unwrap();
        folder = openat(&folder, &name, OFlags::DIRECTORY, Mode::empty()).unwrap();
    }
    let flags = OFlags::CREATE | OFlags::WRONLY;
    openat(&folder, "leaf", flags, Mode::RWXU).unwrap();
    let end = hosts.rdcp(&["-a", "h1:tree", "h2:"]).start().end();
    assert_eq!(fs::read(hosts.path("h2", "tree/beside")).unwrap(), b"it");
    if end.code() == 0 {
        let depth = |top: &Path| {
            let mut folder = std::os::fd::OwnedFd::from(File::open(top).unwrap());
            let mut depth = 0;
            while let Ok(next) = openat(&folder, &name, OFlags::DIRECTORY, Mode::empty()) {
                (folder, depth) = (next, depth + 1);
            }
            openat(&folder, "leaf", OFlags::RDONLY, Mode::empty()).expect("a leaf");
            depth
        };
        assert_eq!(depth(&hosts.path("h2", "tree")), 30);
    } else {
        end.tells(1, &["nnnn", "too long"]);
    }
}

#[test]
fn a_copy_leaves_nothing_but_the_copy() {
    let hosts = Hosts::new("");
    let original = hosts.path("h1", "tree");
    trees::small(&original, 200, 3000);
    trees::large(&original.join("large"), 20 << 20);
    hosts.rdcp(&["-r", "h1:tree", "h2:"]).start().end().exits(0);
    let temporary: Vec<PathBuf> = assert_no_partial_file(&original, &hosts.path("h2", "tree"));
    assert!(temporary.is_empty(), "{temporary:?}");
    let names: Vec<_> = fs::read_dir(hosts.path("h2", ""))
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert_eq!(names, ["tree"]);
}

/// The entries that all sources have: a small one, a large one, one in a subdirectory, and some of different kinds.
const NAMES: &[&str] = &["log", "large", "sub/deep/log", "link", "kind"];

fn trees() -> Hosts {
    let hosts = Hosts::new("");
    for (host, other) in [("h1", b'1'), ("h2", b'2'), ("h3", b'3')] {
        hosts.file(host, "tree/log", &[other; 10]);
        hosts.file(host, "tree/large", &vec![other; 5 << 20]);
        hosts.file(host, "tree/sub/deep/log", &[other; 10]);
        hosts.file(host, &format!("tree/{host}"), b"of this host only");
        symlink(host, hosts.path(host, "tree/link")).unwrap();
    }
    hosts.file("h1", "tree/kind", b"a file");
    hosts.file("h2", "tree/kind/file", b"in a directory");
    symlink("elsewhere", hosts.path("h3", "tree/kind")).unwrap();
    hosts
}

/// Fails the test unless all entries of the first tree are in `out`, and what only the others have.
fn assert_first_tree(hosts: &Hosts, out: &str, line: &[&str]) {
    for file in ["log", "large", "sub/deep/log"] {
        let found = hosts.read("here", &format!("{out}/{file}"));
        assert!(found.iter().all(|&byte| byte == b'1'), "{line:?}: {file}");
    }
    let target = fs::read_link(hosts.path("here", &format!("{out}/link"))).unwrap();
    assert_eq!(target.to_str(), Some("h1"), "{line:?}");
    assert_eq!(
        hosts.read("here", &format!("{out}/kind")),
        b"a file",
        "{line:?}"
    );
    for host in ["h1", "h2", "h3"] {
        assert!(
            hosts.has("here", &format!("{out}/{host}")),
            "{line:?}: {host}"
        );
    }
}

#[test]
fn no_source_of_a_run_overwrites_what_another_one_has_brought() {
    let hosts = trees();
    for (number, options) in [
        &["-r"][..],
        &["-a", "--remove-source-files"],
        &["-a", "--no-clobber"],
        &["-a", "--update"],
        &["-a", "--skip-same", "--resume"],
    ]
    .iter()
    .enumerate()
    {
        let hosts = if options.contains(&"--remove-source-files") {
            &trees()
        } else {
            &hosts
        };
        // A directory that was there before, with older entries.
        let name = format!("out{number}");
        if !options.contains(&"--no-clobber") {
            hosts.file("here", &format!("{name}/log"), b"older");
            hosts.file("here", &format!("{name}/large"), b"older");
            let log = fs::File::open(hosts.path("here", &format!("{name}/log"))).unwrap();
            log.set_modified(std::time::UNIX_EPOCH).unwrap();
            let large = fs::File::open(hosts.path("here", &format!("{name}/large"))).unwrap();
            large.set_modified(std::time::UNIX_EPOCH).unwrap();
        }
        fs::create_dir_all(hosts.path("here", &name)).unwrap();
        let out = hosts.path("here", &name).display().to_string();
        let sources = ["h1:tree/.", "h2:tree/.", "h3:tree/.", &out];
        let line = [*options, &sources].concat();
        let end = hosts.rdcp(&line).start().end();
        end.exits(1);
        for entry in NAMES {
            assert!(
                end.stderr.contains(&format!("{name}/{entry}: ")),
                "{line:?}: {}",
                end.stderr
            );
        }
        assert_first_tree(hosts, &name, &line);
        for host in ["h2", "h3"] {
            for file in ["log", "large", "sub/deep/log"] {
                assert!(
                    hosts.has(host, &format!("tree/{file}")),
                    "{line:?}: {host} {file}"
                );
            }
        }
    }
}

#[test]
fn what_a_run_found_equal_is_not_overwritten_by_another_source() {
    let hosts = trees();
    fs::create_dir_all(hosts.path("here", "")).unwrap();
    let first = [
        "-a",
        "h1:tree/.",
        &hosts.path("here", "out").display().to_string(),
    ];
    hosts.rdcp(&first).start().end().exits(0);
    let out = first[2];
    for option in ["--skip-same", "--update", "--resume"] {
        let line = ["-a", option, "h1:tree/.", "h2:tree/.", "h3:tree/.", out];
        hosts.rdcp(&line).start().end().exits(1);
        assert_first_tree(&hosts, "out", &line);
    }
}

#[test]
fn the_contents_of_two_directories_of_one_host_are_merged_likewise() {
    let hosts = trees();
    for host in ["h2", "h3"] {
        fs::rename(hosts.path(host, "tree"), hosts.path("h1", host)).unwrap();
    }
    fs::create_dir_all(hosts.path("here", "out")).unwrap();
    let out = hosts.path("here", "out").display().to_string();
    let line = ["-a", "h1:tree/.", "h1:h2/.", "h1:h3/.", &out];
    let end = hosts.rdcp(&line).start().end();
    end.exits(1);
    // The lanes decide which one is first; exactly one arrives whole, and the other two are named.
    for entry in ["log", "large", "sub/deep/log"] {
        let found = hosts.read("here", &format!("out/{entry}"));
        assert!(found.iter().all(|byte| *byte == found[0]), "{entry}");
        let named = end.stderr.matches(&format!("out/{entry}: ")).count();
        assert_eq!(named, 2, "{entry}: {}", end.stderr);
    }
}

#[test]
fn two_directories_of_one_name_are_merged_also_of_one_host() {
    let hosts = Hosts::new("");
    hosts.file("h1", "one/tree/first", b"1");
    hosts.file("h1", "one/tree/both", b"1");
    hosts.file("h1", "two/tree/second", b"2");
    hosts.file("h1", "two/tree/both", b"2");
    fs::create_dir_all(hosts.path("here", "out")).unwrap();
    let out = hosts.path("here", "out").display().to_string();
    let end = hosts.rdcp(&["-a", "h1:one/tree", "h1:two/tree", "h1:one/tree", &out]);
    let end = end.start().end();
    end.exits(1);
    assert!(hosts.has("here", "out/tree/first") && hosts.has("here", "out/tree/second"));
    for named in [
        "out/tree/both: has the same name",
        "one/tree: is given twice",
    ] {
        assert_eq!(end.stderr.matches(named).count(), 1, "{}", end.stderr);
    }
    // What the second directory brings is not at the first one.
    let end = hosts.rdcp(&["-a", "--delete", "h1:one/tree", "h1:two/tree", &out]);
    let end = end.start().end();
    end.exits(1);
    let refused = "two/tree: has the same name";
    assert!(end.stderr.contains(refused), "{}", end.stderr);
}

#[test]
fn what_one_source_has_brought_is_not_written_in_place_by_another() {
    let hosts = Hosts::new("");
    fs::create_dir_all(hosts.path("h1", "first")).unwrap();
    let mut mkfifo = Command::new("mkfifo");
    mkfifo.arg(hosts.path("h1", "first/fifo"));
    assert!(mkfifo.status().expect("mkfifo").success());
    symlink("/dev/null", hosts.path("h1", "first/link")).unwrap();
    hosts.file("h2", "second/fifo", b"bytes");
    hosts.file("h2", "second/link", b"bytes");
    fs::create_dir_all(hosts.path("here", "out")).unwrap();
    let out = hosts.path("here", "out").display().to_string();
    let end = hosts.rdcp(&["-a", "h1:first/.", "h2:second/.", &out]);
    let end = end.start().end();
    end.exits(1);
    for name in ["fifo", "link"] {
        let named = format!("out/{name}: has the same name");
        assert!(end.stderr.contains(&named), "{}", end.stderr);
    }
}
