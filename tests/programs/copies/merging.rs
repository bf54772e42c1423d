//! Sources of one run that have entries of one name: the first one arrives, and each other one is named and kept.

use std::{fs, os::unix::fs::symlink, process::Command};

use crate::support::programs::local_hosts::Hosts;

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
