//! Exit statuses: 0 all copied, 1 some files failed, 2 wrong use, 255 network, ssh or agent, 130 an interrupt; and the
//! options that decide how a copy is made: lanes, limits of speed, fsync, filters, the removal of source files.

use std::{
    collections::BTreeSet,
    fs,
    os::unix::fs::symlink,
    time::{Duration, Instant},
};

use rustix::process::Signal;

use super::{
    compare::{Tree, assert_no_partial_file, assert_same},
    deaths::arrives,
    trees::{large, small},
};
use crate::support::programs::{
    eventually, hosts::Outcome, is_ignored, local_hosts::Hosts, program, skip,
};

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
    let end = rdcp(&["--deploy", "never", "--rsh", no_agent, "h1:file", "h2:new"]);
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
        let kept = "are kept; the same command with --resume continues";
        assert!(end.stderr.contains(kept), "{end:?}");
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
fn an_interrupt_ends_the_digest_of_a_hole() {
    /// A hole that takes hours to digest, in a file that every file system can hold.
    const HOLE: u64 = 8 << 40;
    if is_ignored(Signal::INT) {
        return skip("SIGINT is ignored here");
    }
    let hosts = Hosts::new("");
    hosts.file("h1", "image", b"");
    let image = fs::File::options()
        .write(true)
        .open(hosts.path("h1", "image"));
    let image = image.unwrap();
    image.set_len(HOLE).unwrap();
    let rdcp = hosts.rdcp(&["--checksum", "h1:image", "h2:"]).start();
    let part = hosts.path("h2", ".image.rdcp-part");
    eventually("a hole that is digested", || {
        (fs::metadata(&part).ok()?.len() == HOLE).then_some(())
    });
    rdcp.signal(Signal::INT);
    rdcp.end().exits(130);
    // A worker that is overdue would have left it.
    eventually("the end of the worker", || {
        (!part.exists() && !hosts.has("h2", "image")).then_some(())
    });
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
}

/// Runs rdcp, which must refuse with `words` and change nothing on h1.
fn refuses(hosts: &Hosts, arguments: &[&str], words: &str) {
    let before = Tree::read(&hosts.path("h1", ""));
    for extra in [&[][..], &["-n"]] {
        let end = hosts.rdcp(&[extra, arguments].concat()).start().end();
        end.tells(1, &[words, "nothing was done"]);
        assert!(end.stdout.is_empty(), "{end:?}");
    }
    let after = Tree::read(&hosts.path("h1", ""));
    assert_eq!(after.0, before.0, "{arguments:?}");
}

#[test]
fn a_copy_onto_itself_is_refused_whatever_leads_there() {
    let hosts = Hosts::new("");
    hosts.file("h1", "dir/file", b"content");
    fs::hard_link(hosts.path("h1", "dir/file"), hosts.path("h1", "hard")).unwrap();
    symlink("dir/file", hosts.path("h1", "link")).unwrap();
    symlink("dir", hosts.path("h1", "way")).unwrap();
    let here = hosts.path("h1", "dir/file");
    let here = here.to_str().unwrap();
    for arguments in [
        ["h1:dir/file", "h1:dir/file"],
        ["h1:dir/file", "h1:dir/"],
        ["h1:dir/file", "h1:dir/../dir/./file"],
        ["h1:dir/file", "h1:way/file"],
        ["h1:dir/file", "h1:hard"],
        ["h1:dir/file", "h1:link"],
        ["h1:dir/file", here],
        [here, "h1:dir"],
    ] {
        refuses(&hosts, &arguments, "are the same file");
        refuses(
            &hosts,
            &["--remove-source-files", arguments[0], arguments[1]],
            "are the same file",
        );
    }
    // The file would be replaced by a link to itself.
    refuses(
        &hosts,
        &["-a", "h1:link", "h1:dir/file"],
        "are the same file",
    );
    refuses(
        &hosts,
        &["-a", "h1:dir", "h1:."],
        "dir and ./dir are the same directory",
    );
    refuses(
        &hosts,
        &["-a", "--delete", "h1:dir/.", "h1:way"],
        "are the same directory",
    );
    // Another link to the same file is a copy of its own.
    hosts
        .rdcp(&["-a", "h1:link", "h1:other"])
        .start()
        .end()
        .exits(0);
    hosts
        .rdcp(&["-a", "h1:link", "h1:other"])
        .start()
        .end()
        .exits(0);
}

#[test]
fn a_directory_is_neither_copied_into_itself_nor_removed_by_its_copy() {
    let hosts = Hosts::new("");
    small(&hosts.path("h1", "tree"), 20, 100);
    fs::create_dir(hosts.path("h1", "tree/sub")).unwrap();
    hosts.file("h1", "tree/sub/inner/file", b"content");
    symlink("tree", hosts.path("h1", "link")).unwrap();
    let absolute = hosts.path("h1", "tree/sub/new");
    for destination in [
        "h1:tree/copy",
        "h1:tree/sub",
        "h1:link/copy",
        absolute.to_str().unwrap(),
    ] {
        refuses(
            &hosts,
            &["-a", "h1:tree", destination],
            "cannot be copied into itself",
        );
        refuses(
            &hosts,
            &["-a", "-T", "--delete", "h1:tree", destination],
            "cannot be copied into itself",
        );
    }
    for arguments in [
        ["h1:tree/sub", "h1:tree"],
        ["h1:link/sub/inner/.", "h1:tree"],
        [absolute.parent().unwrap().to_str().unwrap(), "h1:tree"],
    ] {
        let arguments = [&["-a", "-T", "--delete"], &arguments[..]].concat();
        refuses(&hosts, &arguments, "--delete would remove a source");
    }
    // The copy of the first source would remove the second one.
    hosts.file("h1", "new/sub/file", b"other");
    refuses(
        &hosts,
        &[
            "-a",
            "--delete",
            "h1:new/sub",
            "h1:tree/sub/inner",
            "h1:tree",
        ],
        "--delete would remove a source",
    );
    hosts
        .rdcp(&["-a", "--exclude=/copy", "h1:tree", "h1:tree/copy"])
        .start()
        .end()
        .exits(0);
    assert!(hosts.has("h1", "tree/copy/sub/inner/file") && !hosts.has("h1", "tree/copy/copy"));
}

#[test]
fn any_number_of_lanes_carries_a_tree() {
    let hosts = Hosts::new("");
    let original = hosts.path("h1", "tree");
    small(&original, 700, 700);
    large(&original.join("large"), 3 << 20);
    for (number, lanes) in [["-j", "1"], ["-j", "3"], ["--lanes", "8"]]
        .iter()
        .enumerate()
    {
        let to = format!("h2:{number}");
        let arguments = [&["-a"], &lanes[..], &["h1:tree", &to]].concat();
        hosts.rdcp(&arguments).start().end().exits(0);
        assert_same(&original, &hosts.path("h2", &number.to_string()));
    }
    for lanes in ["0", "-1", "many", "100000"] {
        let arguments = ["-a", &format!("--lanes={lanes}"), "h1:tree", "h2:x"];
        let end = hosts.rdcp(&arguments).start().end();
        end.tells(2, &[lanes]);
    }
}

#[test]
fn a_limit_of_speed_holds_for_all_lanes_together() {
    let hosts = Hosts::new("");
    let original = hosts.path("h1", "tree");
    small(&original, 100, 10_000);
    large(&original.join("large"), 3 << 20);
    let since = Instant::now();
    let arguments = ["-a", "-j", "4", "--bwlimit", "3M", "h1:tree", "h2:"];
    hosts.rdcp(&arguments).start().end().exits(0);
    // Some 4 MB at 3 MiB each second. A burst at the beginning is allowed.
    let took = since.elapsed();
    assert!(took > Duration::from_millis(800), "{took:?}");
    assert_same(&original, &hosts.path("h2", "tree"));
    let end = hosts.rdcp(&["--bwlimit", "3 apples", "h1:tree", "h2:x"]);
    end.start().end().tells(2, &["--bwlimit", "3 apples"]);
}

#[test]
fn each_file_is_on_the_disk_before_it_gets_its_name() {
    if std::process::Command::new("strace")
        .arg("-V")
        .output()
        .is_err()
    {
        skip("there is no strace");
        return;
    }
    // The script of the hosts replaces itself by the agent: here by strace, with the agent below it.
    let traced = "exec() { command exec strace -f -qq -e trace=fsync,fdatasync,rename,renameat,renameat2 \
                  -o \"${0%/*}/trace\" \"$@\"; }";
    let hosts = Hosts::new(traced);
    let original = hosts.path("here", "tree");
    small(&original, 10, 1000);
    large(&original.join("large"), 5 << 20);
    let from = original.display().to_string();
    let end = hosts.rdcp(&["-a", "--fsync", &from, "h2:"]).start().end();
    end.exits(0);
    assert_same(&original, &hosts.path("h2", "tree"));
    let trace = fs::read_to_string(hosts.directory().join("trace")).unwrap();
    let count = |call: &str| trace.lines().filter(|line| line.contains(call)).count();
    let (synced, renamed) = (count("sync("), count("rename"));
    assert!(
        synced >= 11 && renamed >= 11,
        "{synced}, {renamed}\n{trace}"
    );
}

#[test]
fn source_files_are_removed_after_they_arrived() {
    let hosts = Hosts::new("");
    let original = hosts.path("h1", "tree");
    small(&original, 250, 100);
    large(&original.join("large"), 9 << 20);
    std::os::unix::fs::symlink("large", original.join("link")).unwrap();
    let before = Tree::read(&original);
    // One file cannot be written, and one is left out.
    fs::create_dir_all(hosts.path("h2", "tree/0001/file 150")).unwrap();
    hosts.file("h1", "tree/excluded", b"stays");
    let arguments = [
        "-a",
        "--remove-source-files",
        "--exclude=excluded",
        "h1:tree",
        "h2:",
    ];
    hosts.rdcp(&arguments).start().end().tells(1, &["file 150"]);
    let left = Tree::read(&original);
    let left: Vec<_> = left
        .0
        .keys()
        .filter(|path| !original.join(path).is_dir())
        .collect();
    assert_eq!(
        left,
        [std::path::Path::new("0001/file 150"), "excluded".as_ref()]
    );
    let copy = Tree::read(&hosts.path("h2", "tree"));
    assert_eq!(copy.0.len(), before.0.len());
    // What the destination has already is no copy of this run, so it stays at the source.
    hosts.file("h1", "again/file", b"content");
    hosts.file("h2", "again/file", b"old");
    let arguments = [
        "-a",
        "--no-clobber",
        "--remove-source-files",
        "h1:again",
        "h2:",
    ];
    hosts.rdcp(&arguments).start().end().exits(0);
    assert!(hosts.has("h1", "again/file"));
    assert_eq!(hosts.read("h2", "again/file"), b"old");
}

const FILES: &[&str] = &[
    "a.o",
    "a.c",
    "build/a.o",
    "build/keep.txt",
    "src/a.c",
    "src/a.o",
    "src/build/b.c",
    "src/deep/er/a.log",
    "src/deep/er/important.log",
    "top.log",
    "*",
    "name with\nnew line.o",
];

/// Copies [`FILES`] with these filters; `missing` must be what is left out.
#[track_caller]
fn leaves_out(filters: &[&str], missing: &[&str]) {
    let hosts = Hosts::new("");
    for name in FILES {
        hosts.file("h1", &format!("tree/{name}"), name.as_bytes());
    }
    let arguments = [&["-a"], filters, &["h1:tree", "h2:"]].concat();
    hosts.rdcp(&arguments).start().end().exits(0);
    let copy = Tree::read(&hosts.path("h2", "tree"));
    let is_missing = |name: &&&str| !copy.0.contains_key(std::path::Path::new(**name));
    let found: BTreeSet<_> = FILES.iter().filter(is_missing).copied().collect();
    let missing: BTreeSet<_> = missing.iter().copied().collect();
    assert_eq!(found, missing, "with {filters:?}");
}

#[test]
fn patterns_are_those_of_gitignore() {
    leaves_out(&[], &[]);
    let objects = ["a.o", "build/a.o", "src/a.o", "name with\nnew line.o"];
    leaves_out(&["--exclude=*.o"], &objects);
    leaves_out(&["--exclude", "/a.o"], &["a.o"]);
    let all = ["build/a.o", "build/keep.txt", "src/build/b.c"];
    leaves_out(&["--exclude=build/"], &all);
    leaves_out(&["--exclude=/build"], &all[..2]);
    let logs = ["src/deep/er/a.log", "src/deep/er/important.log", "top.log"];
    leaves_out(&["--exclude=**/*.log"], &logs);
    leaves_out(&["--exclude=src/**/*.log"], &logs[..2]);
    leaves_out(&["--exclude=\\*"], &["*"]);
}

#[test]
fn the_last_pattern_that_matches_decides() {
    let filters = ["--exclude=*.log", "--include=important.log"];
    leaves_out(&filters, &["src/deep/er/a.log", "top.log"]);
    let filters = ["--include=important.log", "--exclude=*.log"];
    let logs = ["src/deep/er/a.log", "src/deep/er/important.log", "top.log"];
    leaves_out(&filters, &logs);
    // A directory that is left out is not searched.
    let filters = ["--exclude=deep/", "--include=important.log"];
    leaves_out(&filters, &logs[..2]);
}

#[test]
fn a_pattern_protects_at_the_destination_what_it_leaves_out_at_the_source() {
    for arguments in [
        &["h1:tree", "h2:"][..],
        &["-T", "h1:tree", "h2:tree"],
        &["h1:tree/.", "h2:tree"],
    ] {
        let hosts = Hosts::new("");
        hosts.file("h1", "tree/x/file", b"source");
        for name in ["y", "x/y", "x/file", "gone/y", "gone/kept.log"] {
            hosts.file("h2", &format!("tree/{name}"), b"old");
        }
        let options = ["-a", "--delete", "--exclude=/y", "--exclude=*.log"];
        let end = hosts.rdcp(&[&options, arguments].concat()).start().end();
        end.tells(0, &["2 removed"]);
        let left = Tree::read(&hosts.path("h2", "tree"));
        let left: Vec<_> = left.0.keys().map(|path| path.to_str().unwrap()).collect();
        assert_eq!(left, ["", "gone", "gone/kept.log", "x", "x/file", "y"]);
    }
}

#[test]
fn a_wrong_pattern_is_wrong_use() {
    let hosts = Hosts::new("");
    hosts.file("h1", "tree/file", b"content");
    for option in ["--exclude=[z-a]", "--include=a{b"] {
        let end = hosts.rdcp(&["-a", option, "h1:tree", "h2:"]).start().end();
        end.tells(2, &[&option[10..]]);
        assert!(!hosts.has("h2", "tree"));
    }
}
