//! Exit statuses: 0 all copied, 1 some files failed, 2 wrong use, 255 network, ssh or agent, 130 an interrupt.

use std::{fs, os::unix::fs::symlink};

use rustix::process::Signal;

use super::{
    compare::assert_no_partial_file,
    moments::arrives,
    trees::{large, small},
};
use crate::support::programs::hosts::Outcome;
use crate::support::programs::{is_ignored, local_hosts::Hosts, program, skip};

#[test]
fn wrong_use_gets_a_sentence() {
    let hosts = Hosts::new("");
    hosts.file("h1", "file", b"content");
    let wrong: &[(&[&str], &str)] = &[
        (&[], "SOURCE"),
        (&["h1:file"], "DESTINATION"),
        (&["--no-such-option", "h1:file", "h2:"], "--no-such-option"),
        (&["-", "-"], "-"),
        (&["-", "h1:file", "h2:there"], "-"),
        (&["h1:file", "h1:file", "-"], "-"),
        (&["--checksum=md5", "h1:file", "h2:"], "md5"),
        (
            &["--no-clobber", "--update", "h1:file", "h2:"],
            "--no-clobber",
        ),
        (&["-v", "-q", "h1:file", "h2:"], "--quiet"),
        (&["", "h2:"], "empty"),
        (&["h1:file", ""], "empty"),
        (&["-T", "h1:file", "h1:file", "h2:"], "-T"),
        (&["--delete", "h1:file", "h2:"], "--delete"),
        (&["-a", "--delete", "h1:file", "h2:file", "h3:"], "--delete"),
        (&["--json", "--checksum", "h1:file", "h2:"], "--json"),
        (&["-a", "h1:file", "-"], "-a"),
    ];
    for (arguments, word) in wrong {
        let end = hosts.rdcp(arguments).start().end();
        end.tells(2, &[word]);
        assert!(end.stdout.is_empty(), "{end:?}");
        assert!(
            end.stderr.starts_with("error: ") || end.stderr.starts_with("rdcp: "),
            "{end:?}"
        );
    }
}

#[test]
fn some_failed_files_are_named_and_all_others_arrive() {
    let hosts = Hosts::new("");
    let original = hosts.path("h1", "tree");
    small(&original, 50, 100);
    // The destination has directories where files should be, and a file where a directory should be.
    for path in ["0000/file 7", "0000/file 13"] {
        fs::create_dir_all(hosts.path("h2", "tree").join(path)).unwrap();
    }
    hosts.file("h1", "tree/folder/a", b"a");
    hosts.file("h1", "tree/folder/b", b"b");
    hosts.file("h2", "tree/folder", b"a file");
    let end = hosts.rdcp(&["-a", "h1:tree", "h1:nosuch", "h2:"]).start();
    let end = end.end();
    end.tells(
        1,
        &["file 7", "file 13", "folder", "nosuch", "No such file"],
    );
    for line in end.stderr.lines().filter(|line| line.contains("file 7")) {
        assert!(line.contains("h2") && line.contains("directory"), "{line}");
    }
    let copied = fs::read_dir(hosts.path("h2", "tree/0000")).unwrap();
    let copied = copied.filter(|entry| entry.as_ref().unwrap().path().is_file());
    assert_eq!(copied.count(), 48);
    assert_eq!(hosts.read("h2", "tree/folder"), b"a file");
}

#[test]
fn hosts_that_cannot_be_reached_are_named() {
    let hosts = Hosts::new("[ \"$1\" = bad ] && { echo no such pod >&2; exit 255; }");
    hosts.file("h1", "file", b"content");
    let local = hosts.path("h1", "file").display().to_string();
    for arguments in [
        ["bad:file", "h1:new"],
        ["h1:file", "bad:new"],
        [&local, "bad:new"],
        ["bad:file", "bad:new"],
    ] {
        let end = hosts.rdcp(&arguments).start().end();
        end.tells(255, &["bad", "no such pod"]);
        assert!(!hosts.has("h1", "new"));
    }
    // Without the options of these hosts.
    let rdcp = |arguments: &[&str]| program(env!("CARGO_BIN_EXE_rdcp"), "rdcp").args(arguments);
    let no_agent = "sh -c 'echo rdpipe: not found >&2; exit 127' {host}";
    let end = rdcp(&["--rsh", no_agent, "h1:file", "h2:new"]);
    end.start().end().tells(255, &["there is no rdpipe on"]);
    let end = rdcp(&["--rsh", "/nonexistent", "h1:file", "h2:new"]);
    end.start().end().tells(255, &["/nonexistent"]);
}

#[test]
fn an_interrupt_ends_the_copy_and_leaves_no_partial_file() {
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143), (Signal::HUP, 129)] {
        if is_ignored(signal) {
            skip(&format!("{signal:?} is ignored here"));
            continue;
        }
        let hosts = Hosts::new("");
        let original = hosts.path("h1", "tree");
        small(&original, 100, 10_000);
        large(&original.join("large"), 12 << 20);
        let arguments = ["-a", "--bwlimit", "8M", "h1:tree", "h2:"];
        let rdcp = hosts.rdcp(&arguments).start();
        let copy = hosts.path("h2", "tree");
        assert!(arrives(&rdcp, &copy, 1 << 20), "it ended at once");
        rdcp.signal(signal);
        let end = rdcp.end();
        end.exits(code);
        end.is_silent_on(&["panicked"]);
        // Names that only this run uses are gone; those with which a later run can continue may stay.
        let temporary = assert_no_partial_file(&original, &copy);
        let of_run = |name: &&std::path::PathBuf| {
            name.file_name()
                .unwrap()
                .to_string_lossy()
                .starts_with(".rdcp-")
        };
        assert_eq!(temporary.iter().filter(of_run).count(), 0, "{temporary:?}");
        let arguments = ["-a", "--resume", "h1:tree", "h2:"];
        hosts.rdcp(&arguments).start().end().exits(0);
        super::compare::assert_same(&original, &copy);
    }
}

#[test]
fn special_sources_are_named() {
    let hosts = Hosts::new("");
    hosts.file("h1", "file", b"content");
    symlink("nowhere", hosts.path("h1", "dangling")).unwrap();
    for (source, words) in [
        ("h1:dangling", ["dangling", "No such file"]),
        ("h1:file/below", ["file/below", "Not a directory"]),
        ("h1:nosuch/", ["nosuch", "No such file"]),
    ] {
        let end = hosts.rdcp(&[source, "h2:x"]).start().end();
        end.tells(1, &words);
        assert!(!hosts.has("h2", "x"));
    }
    // A source that is its own destination is not damaged.
    let end = hosts.rdcp(&["h1:file", "h1:file"]).start().end();
    assert!([0, 1].contains(&end.code()), "{end:?}");
    assert_eq!(hosts.read("h1", "file"), b"content");
}

#[test]
fn a_tree_is_not_copied_into_itself_without_end() {
    let hosts = Hosts::new("");
    small(&hosts.path("h1", "tree"), 20, 100);
    let end = hosts.rdcp(&["-a", "h1:tree", "h1:tree/copy"]).start().end();
    end.exits(2);
    assert!(end.stderr.contains("copied into itself"), "{end:?}");
    assert!(!hosts.has("h1", "tree/copy"));
    // The text of this path does not tell.
    symlink("tree", hosts.path("h1", "link")).expect("a link");
    let end = hosts.rdcp(&["-a", "h1:tree", "h1:link/copy"]).start().end();
    assert!([0, 1].contains(&end.code()), "{end:?}");
    assert!(!hosts.has("h1", "tree/copy/copy/copy"));
    assert_eq!(
        fs::read_dir(hosts.path("h1", "tree/0000")).unwrap().count(),
        20
    );
}
