//! Wrong commands that new users type, and the sentences that they get.

use std::{fs, os::unix::fs::symlink};

use serde_json::Value;

use crate::support::programs::{built, hosts::Outcome, local_hosts::Hosts, program};

/// Runs a program with a line of arguments in which `|` separates the arguments. Returns what it printed to stderr.
fn said(hosts: &Hosts, name: &'static str, line: &str) -> String {
    let arguments: Vec<_> = line.split('|').collect();
    let setup = match name {
        "rdcp" => hosts.rdcp(&arguments),
        "rdpipe" => hosts.rdpipe(&arguments),
        _ => program(&built(name), name).args(&arguments),
    };
    let end = setup.env("HOME", hosts.directory()).start().end();
    assert_ne!(end.code(), 0, "{name} {line}: {}", end.stderr);
    end.stderr
}

/// Programs, their command lines, and what they say.
const SENTENCES: &[(&str, &str, &str)] = &[
    (
        "rdcp",
        "h1:f|h1:f",
        "f and f are the same file; nothing was done",
    ),
    (
        "rdcp",
        "h1:f|h1:./data/../f",
        "f and ./data/../f are the same file; nothing was done",
    ),
    (
        "rdcp",
        "h1:f|h2:../h1/link",
        "f and ../h1/link are the same file; nothing was done",
    ),
    (
        "rdcp",
        "h1:data|h2:new",
        "h1: data is a directory: give -r or -a to copy it",
    ),
    (
        "rdcp",
        "-r|h1:data|h1:data/new",
        "data cannot be copied into itself: data/new is in it; nothing was done",
    ),
    (
        "rdcp",
        "h1:f|h1:g|h2:run042/",
        "h2: run042 does not exist; give -P to make it",
    ),
    (
        "rdcp",
        "h1:f|h2:run042/",
        "h2: run042 does not exist; give -P to make it",
    ),
    (
        "rdcp",
        "h1:f|h2:a/b/f",
        "h2: a/b does not exist; give -P to make it",
    ),
    (
        "rdcp",
        "-n|h1:f|h1:g|h2:run042",
        "h2: run042 does not exist; give -P to make it",
    ),
    (
        "rdcp",
        "h1:f|h1:g|h1:link",
        "link is not a directory, so it cannot receive more than one source",
    ),
    (
        "rdcp",
        "h1:missing|h2:",
        "missing: cannot be read: No such file or directory\n",
    ),
    (
        "rdcp",
        "-az|h1:f|h2:",
        "rdcp does not compress; over a slow link: rdpipe",
    ),
    (
        "rdcp",
        "-a|--progress|h1:f|h2:",
        "a terminal shows the progress without an option",
    ),
    (
        "rdcp",
        "-p|h1:f|h2:",
        "-a keeps times, modes and owners, and --ssh-opt -oPort=N is the port of ssh",
    ),
    ("rdcp", "--partial|h1:f|h2:", "--resume continues them"),
    (
        "rdcp",
        "-P|2222|h1:f|h2:",
        "the port of ssh is --ssh-opt -oPort=2222",
    ),
    (
        "rdcp",
        "-P2222|h1:f|h2:",
        "the port of ssh is --ssh-opt -oPort=2222",
    ),
    (
        "rdcp",
        "--compress|h1:f|h2:",
        "rdcp does not compress; over a slow link: rdpipe",
    ),
    ("rdcp", "-rt|h1:f|h2:", "-a keeps times, modes and owners"),
    (
        "rdcp",
        "rsync://h1/f|h2:",
        "write HOST:PATH in place of a URL",
    ),
    ("rdcat", "ssh://h1/f", "write HOST:PATH in place of a URL"),
    (
        "rdcp",
        "ssh://h1/f|h2:",
        "write HOST:PATH in place of a URL",
    ),
    ("rdcp", "h1:f", "there is no destination"),
    (
        "rdcp",
        "-T|h1:f|h1:g|h2:x",
        "-T gives the copy the name DESTINATION",
    ),
    ("rdcp", "--delete|h1:data|h2:", "give -r or -a with it"),
    (
        "rdcp",
        "-aT|--delete|h1:data/set|h1:data",
        "--delete would remove a source",
    ),
    (
        "rdpipe",
        "h1:cat|h2:wc|-c",
        "put the whole command into quotes: h2:'wc -c'",
    ),
    (
        "rdpipe",
        "h1:cat|h2:wc|f",
        "put a command of several words into quotes",
    ),
    ("rdpipe", "ssh://h1/f", "write HOST:PATH in place of a URL"),
    (
        "rdpipe",
        "h1:< missing|:cat",
        "missing: No such file or directory\n",
    ),
    (
        "rdpipe",
        "h1:< *.log|:cat",
        "no shell expands a path: give a command, as in HOST:'cat *.log'",
    ),
    (
        "rdcp",
        "h1:*.log|h2:",
        "no shell expands a path of another host",
    ),
    ("rdpipe", "h1:", "there is no command after the colon"),
    ("rdpipe", "h1:>", "there is no file after the operator"),
];

#[test]
fn wrong_commands_get_a_sentence_that_helps() {
    let hosts = Hosts::new("");
    hosts.file("h1", "f", b"content");
    hosts.file("h1", "g", b"content");
    hosts.file("h1", "data/set/f", b"content");
    symlink("f", hosts.path("h1", "link")).unwrap();
    fs::create_dir_all(hosts.path("h2", "")).unwrap();
    for (name, line, sentence) in SENTENCES {
        let text = said(&hosts, name, line);
        assert!(text.contains(sentence), "{name} {line}: {text}");
        assert!(!text.contains("os error"), "{name} {line}: {text}");
    }
}

#[test]
fn reports_for_programs_have_no_numbers_of_errors() {
    let hosts = Hosts::new("");
    fs::create_dir_all(hosts.path("h1", "")).unwrap();
    let written = hosts.directory().join("report.json");
    let file = written.display().to_string();
    let lines: [(&str, &[&str]); 5] = [
        ("rdpipe", &["--json", &file, "h1:< missing", "h1:cat"]),
        ("rdcp", &["--json", "h1:missing", "h1:copy"]),
        ("rdcat", &["--json", "h1:missing"]),
        (
            "rdperf",
            &[
                "--json", "--time", "0.1", "--runs", "1", "--read", "missing", "h1", "h2",
            ],
        ),
        (
            "rdsend",
            &[
                "--json",
                "-i",
                "missing",
                "127.0.0.1",
                "1",
                "a key of some length",
            ],
        ),
    ];
    for (name, words) in lines {
        let setup = match name {
            "rdpipe" => hosts.rdpipe(words),
            "rdcp" => hosts.rdcp(words),
            "rdcat" => hosts.rdcat(words),
            "rdperf" => hosts.rdperf(words),
            _ => program(&built("rdsend"), "rdsend").args(words),
        };
        let end = setup.start().end();
        assert_ne!(end.code(), 0, "{name}");
        let written = fs::read_to_string(&written).unwrap_or_default();
        let text = written + &String::from_utf8_lossy(&end.stdout) + &end.stderr;
        assert!(text.contains("No such file or directory"), "{name}: {text}");
        assert!(!text.contains("os error"), "{name}: {text}");
    }
}

/// Returns the last line of a report in JSON.
fn last(text: &str) -> Value {
    let line = text.lines().last().unwrap_or_default();
    serde_json::from_str(line).unwrap_or_else(|why| panic!("{why}: {text}"))
}

#[test]
fn json_means_the_same_in_all_programs() {
    let hosts = Hosts::new("");
    fs::create_dir_all(hosts.path("h1", "")).unwrap();
    let report = hosts.directory().join("report.json");
    let file = format!("--json={}", report.display());
    let perf = [
        "--measure",
        "connect",
        "--time",
        "0.1",
        "--runs",
        "1",
        "h1",
        "h2",
    ];
    let lines: [(&str, &[&str]); 5] = [
        ("rdpipe", &["h1:< missing", "h1:cat"]),
        ("rdcp", &["h1:missing", "h1:copy"]),
        ("rdcat", &["h1:missing"]),
        ("rdperf", &perf),
        (
            "rdsend",
            &["-i", "missing", "127.0.0.1", "1", "a key of some length"],
        ),
    ];
    for (name, words) in lines {
        let run = |option: &str| {
            let words = [&[option], words].concat();
            let setup = match name {
                "rdpipe" => hosts.rdpipe(&words),
                "rdcp" => hosts.rdcp(&words),
                "rdcat" => hosts.rdcat(&words),
                "rdperf" => hosts.rdperf(&words),
                _ => program(&built("rdsend"), "rdsend").args(&words),
            };
            setup.start().end()
        };
        let end = run(&file);
        let written = last(&fs::read_to_string(&report).unwrap());
        let kept = (&written["event"], &written["program"], &written["exit"]);
        assert_eq!(kept, (&"end".into(), &name.into(), &end.code().into()));
        let is_silent = end.stdout.is_empty() && !end.stderr.contains("{\"event\"");
        assert!(is_silent, "{name}: {}", end.stderr);
        fs::remove_file(&report).unwrap();

        let end = run("--json=-");
        let printed = String::from_utf8(end.stdout.clone()).unwrap();
        if ["rdpipe", "rdcat"].contains(&name) {
            end.tells(
                2,
                &["--json=- would mix the report with the data on stdout"],
            );
        } else {
            assert_eq!(last(&printed)["exit"], end.code(), "{name}");
        }

        let end = run("--json");
        let printed = String::from_utf8(end.stdout.clone()).unwrap();
        if ["rdcp", "rdperf"].contains(&name) {
            assert_eq!(last(&printed)["event"], "end", "{name}");
            assert!(end.stderr.contains("write --json=-"), "{}", end.stderr);
        } else {
            assert_eq!(last(&end.stderr)["event"], "end", "{name}");
        }

        let end = run("--json=/nonexistent/report");
        end.tells(1, &["cannot write /nonexistent/report: No such file"]);
    }
    let old = ["--json", &report.display().to_string(), "h1:echo x"];
    let end = hosts.rdpipe(&old).start().end();
    assert!(end.exits(0).contains("write --json=FILE"), "{}", end.stderr);
    assert_eq!(last(&fs::read_to_string(&report).unwrap())["exit"], 0);

    // A report is kept by a command that is refused, and replaced whole by one that runs.
    let kept = "an old report\n".repeat(10_000);
    fs::write(&report, &kept).unwrap();
    let end = hosts.rdperf(&["diff", "one", "two", &file]).start().end();
    assert_eq!(end.code(), 2, "{}", end.stderr);
    assert_eq!(fs::read_to_string(&report).unwrap(), kept);
    hosts.rdpipe(&[&file, "h1:echo x"]).start().end().exits(0);
    let new = fs::read_to_string(&report).unwrap();
    assert!(new.starts_with('{') && !new.contains("an old report"));
}

#[test]
fn the_short_help_fits_a_terminal() {
    for name in [
        "rdcp",
        "rdpipe",
        "rdcat",
        "rdsend",
        "rdrecv",
        "rdforward",
        "rdperf",
        "rdsh",
    ] {
        let end = program(&built(name), name).arg("-h").start().end();
        end.exits(0);
        let text = String::from_utf8(end.stdout).unwrap();
        assert!(text.lines().count() < 24, "{text}");
        assert!(
            text.contains("Usage: ") && text.contains("$ "),
            "{name}: {text}"
        );
        let end = program(&built(name), name).arg("--help").start().end();
        assert!(end.stdout.len() > text.len(), "{name}");
    }
}
