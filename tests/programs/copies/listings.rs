//! What rdcp prints: -v, -q, -n, --json, --checksum. Only data goes to stdout.

use std::{ffi::OsStr, fs, io::Write, os::unix::ffi::OsStrExt, process::Command, process::Stdio};

use serde_json::Value;

use super::{
    compare::{Tree, assert_same},
    trees::{NAMES, large, small},
};
use crate::support::programs::hosts::{Outcome, Terminal};
use crate::support::programs::local_hosts::Hosts;

/// A name that would clear the screen, forge a message, and turn the text after it around.
const EVIL: &[u8] = b"evil\x1b[2J\nrdcp: all is well\r\x9b\xe2\x80\xae\xc2\x9bx";

/// Returns true for a character that controls a terminal or the direction of a text.
fn is_bad(c: char) -> bool {
    let is_direction = matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    is_direction || (c.is_control() && c != '\n' && c != '\t')
}

#[test]
fn a_copy_prints_no_data_and_a_quiet_one_prints_nothing() {
    let hosts = Hosts::new("");
    small(&hosts.path("h1", "tree"), 20, 100);
    let end = hosts
        .rdcp(&["--archive", "h1:tree", "h2:one"])
        .start()
        .end();
    end.exits(0);
    assert!(end.stdout.is_empty(), "{end:?}");
    assert!(
        !end.stderr.contains('\r'),
        "a progress bar in a log: {end:?}"
    );
    for option in ["-q", "--quiet"] {
        let end = hosts.rdcp(&["-a", option, "h1:tree", "h2:two"]).start();
        end.end().is("");
    }
}

#[test]
fn a_verbose_copy_names_every_file() {
    let hosts = Hosts::new("");
    small(&hosts.path("h1", "tree"), 120, 10);
    for option in ["-v", "--verbose"] {
        let to = format!("h2:{option}");
        let end = hosts.rdcp(&["-a", option, "h1:tree", "--", &to]).start();
        let end = end.end();
        end.exits(0);
        assert!(end.stdout.is_empty(), "{end:?}");
        for number in 0..120 {
            let name = format!("{:04}/file {number}\n", number / 100);
            assert!(end.stderr.contains(&name), "{name:?}:\n{}", end.stderr);
        }
    }
}

#[test]
fn control_characters_in_names_do_not_reach_the_terminal() {
    let hosts = Hosts::new("");
    let evil = hosts.path("h1", "tree").join(OsStr::from_bytes(EVIL));
    hosts.file("h1", "tree/tame", b"content");
    fs::write(evil, b"content").unwrap();
    for name in NAMES {
        fs::write(hosts.path("h1", "tree").join(OsStr::from_bytes(name)), b"x").unwrap();
    }
    // The destination has a directory of that name, so that the file fails.
    let taken = hosts.path("h2", "tree").join(OsStr::from_bytes(EVIL));
    fs::create_dir_all(taken).unwrap();
    for option in ["-v", "-q", "-n"] {
        let end = hosts.rdcp(&["-a", option, "h1:tree", "h2:"]).start().end();
        if option != "-n" {
            end.tells(1, &["evil"]);
        }
        assert!(!end.stderr.contains(is_bad), "{:?}", end.stderr);
        let listed = String::from_utf8(end.stdout.clone()).expect("escaped names");
        assert!(!listed.contains(is_bad), "{listed:?}");
        let forged = end.stderr.lines().any(|line| line == "rdcp: all is well");
        assert!(!forged, "{:?}", end.stderr);
    }
    assert_eq!(hosts.read("h2", "tree/tame"), b"content");
}

#[test]
fn a_dry_run_changes_nothing_and_tells_all() {
    let hosts = Hosts::new("");
    hosts.file("h1", "tree/new", b"new");
    hosts.file("h1", "tree/folder/changed", b"changed");
    hosts.file("h1", "tree/same", b"same");
    large(&hosts.path("h1", "tree/large"), 9 << 20);
    hosts.file("h2", "tree/folder/changed", b"old");
    hosts.file("h2", "tree/extra", b"extra");
    hosts.file("h2", "tree/old folder/extra", b"extra");
    fs::copy(hosts.path("h1", "tree/same"), hosts.path("h2", "tree/same")).unwrap();
    for host in ["h1", "h2"] {
        super::trees::stamp(&hosts.path(host, "tree/same"), 1000, 0);
    }
    let before = ["h1", "h2"].map(|host| Tree::read(&hosts.path(host, "")));
    for option in ["-n", "--dry-run"] {
        let arguments = [
            "-aT",
            option,
            "--delete",
            "--skip-same",
            "--remove-source-files",
            "h1:tree",
            "h2:tree",
        ];
        let end = hosts.rdcp(&arguments).start().end();
        end.exits(0);
        let said = format!("{}{}", end.stderr, String::from_utf8_lossy(&end.stdout));
        for name in ["new", "folder/changed", "large", "extra", "old folder"] {
            assert!(said.contains(name), "{name}:\n{said}");
        }
        assert!(!said.contains("same\n"), "{said}");
        let after = ["h1", "h2"].map(|host| Tree::read(&hosts.path(host, "")));
        for (before, after) in before.iter().zip(&after) {
            assert_eq!(before.0, after.0);
        }
    }
    let end = hosts.rdcp(&["-an", "h1:tree", "h3:deep/new"]).start().end();
    end.tells(1, &["deep", "does not exist"]);
    let end = hosts.rdcp(&["-an", "h1:tree", "h3:new"]).start().end();
    end.exits(0);
    assert!(!hosts.has("h3", "new"));
}

#[test]
fn the_report_is_one_object_on_stdout() {
    let hosts = Hosts::new("");
    small(&hosts.path("h1", "tree"), 20, 100);
    fs::create_dir_all(hosts.path("h2", "tree/0000/file 3")).unwrap();
    let end = hosts
        .rdcp(&["-a", "--json", "h1:tree", "h2:"])
        .start()
        .end();
    end.tells(1, &["file 3"]);
    let report: Value = serde_json::from_slice(&end.stdout).expect("one object");
    println!("{report:#}");
    assert_eq!(report["files"], 19, "{report:#}");
    assert_eq!(report["bytes"], 1900, "{report:#}");
    let failure = &report["failures"][0];
    assert_eq!(failure["host"], "h2", "{report:#}");
    let path = failure["path"].as_str().unwrap();
    assert!(path.ends_with("tree/0000/file 3"), "{report:#}");
    assert_eq!(report["exit"], 1, "{report:#}");
    // A source that is not there is reported too.
    let end = hosts.rdcp(&["--json", "h1:nosuch", "h2:x"]).start().end();
    end.tells(1, &["nosuch"]);
    let report: Value = serde_json::from_slice(&end.stdout).expect("one object");
    assert!(report.to_string().contains("nosuch"), "{report:#}");
}

#[test]
fn the_list_of_digests_is_what_other_programs_check() {
    for (option, checker) in [
        ("--checksum", "xxhsum"),
        ("--checksum=xxh64", "xxhsum"),
        ("--checksum=sha256", "sha256sum"),
    ] {
        let hosts = Hosts::new("");
        let original = hosts.path("h1", "tree");
        small(&original, 150, 1000);
        large(&original.join("large"), (70 << 20) + 1);
        fs::write(original.join("empty"), b"").unwrap();
        fs::write(original.join("two  words *"), b"content").unwrap();
        if checker == "sha256sum" {
            fs::write(original.join("new\nline \\ and \r"), b"content").unwrap();
            fs::write(original.join(OsStr::from_bytes(EVIL)), b"content").unwrap();
        }
        fs::create_dir_all(hosts.path("h2", "")).unwrap();
        let arguments = ["-a", option, "h1:tree", "h2:"];
        let end = hosts.rdcp(&arguments).start().end();
        end.exits(0);
        assert_same(&original, &hosts.path("h2", "tree"));
        // The list names the files as the place has them that received the sources.
        let mut checks = Command::new(checker)
            .args(["-c", "-"])
            .current_dir(hosts.path("h2", ""))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect(checker);
        let mut stdin = checks.stdin.take().unwrap();
        let list = end.stdout.clone();
        let feed = std::thread::spawn(move || stdin.write_all(&list));
        let output = checks.wait_with_output().unwrap();
        let _ = feed.join();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{checker}:\n{said}");
        let files = 150 + 3 + 2 * usize::from(checker == "sha256sum");
        assert_eq!(said.matches(": OK").count(), files, "{said}");
    }
}

#[test]
fn a_list_of_digests_controls_no_terminal() {
    let hosts = Hosts::new("");
    let name = [EVIL, b" the end"].concat();
    hosts.file("h1", "tree/tame", b"content");
    fs::write(
        hosts.path("h1", "tree").join(OsStr::from_bytes(&name)),
        b"x",
    )
    .unwrap();
    let mut terminal = Terminal::new();
    let copy = hosts.rdcp(&["-aq", "--checksum", "h1:tree", "h2:"]);
    let copy = copy.stdout(terminal.inside()).start_raw();
    let shown = terminal.shows("the end").replace("\r\n", "\n");
    assert!(!shown.contains(is_bad), "{shown:?}");
    assert!(
        shown.contains(r"evil\u{1b}[2J\nrdcp: all is well\r\x9b\u{202e}\u{9b}x"),
        "{shown:?}"
    );
    copy.end().exits(0);
}

#[test]
fn a_summary_counts_what_was_copied() {
    let hosts = Hosts::new("");
    small(&hosts.path("h1", "tree"), 20, 100);
    hosts.file("h1", "tree/clash", b"a file");
    fs::create_dir_all(hosts.path("h2", "tree/clash")).unwrap();
    let end = hosts.rdcp(&["-a", "h1:tree", "h2:"]).start().end();
    end.tells(1, &["clash", "20 files", "1 "]);
}

#[test]
fn every_option_of_the_help_has_a_test() {
    let hosts = Hosts::new("");
    let end = hosts.rdcp(&["--help"]).start().end();
    end.exits(0);
    let help = String::from_utf8_lossy(&end.stdout).into_owned();
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    let mut sources = String::new();
    for part in [
        "programs/copies",
        "support/programs",
        "programs/pipelines",
        "programs/rdsend_rdrecv",
        "programs/rdcat_transfers",
        "programs/serving",
        "programs/via_ssh",
    ] {
        for entry in fs::read_dir(folder.join(part)).unwrap() {
            sources += &fs::read_to_string(entry.unwrap().path()).unwrap_or_default();
        }
    }
    sources += &fs::read_to_string(folder.join("guests/copy.rs")).unwrap();
    let options = help.lines().filter_map(|line| {
        let line = line.trim_start();
        let line = if line.starts_with("--") {
            line
        } else {
            line.split_once(", ")?.1
        };
        let end = line.find(|c: char| !c.is_alphanumeric() && c != '-');
        line.starts_with("--")
            .then(|| line[..end.unwrap_or(line.len())].to_owned())
    });
    let untested: Vec<_> = options
        .filter(|option| !sources.contains(&format!("\"{option}")))
        .collect();
    println!("{untested:?}");
    // The unit tests of the command line, and the tests in guests, have the options of a stream.
    let of_streams = "chunk depth device encrypt rails gid-index ib-port here addr busy-poll transport help version \
                      traffic-class service-level pkey-index port no-rdma rdma tcp";
    let is_own = |option: &String| !of_streams.split(' ').any(|name| option[2..] == *name);
    let untested: Vec<_> = untested.into_iter().filter(is_own).collect();
    assert!(untested.is_empty(), "{untested:?}");
}
