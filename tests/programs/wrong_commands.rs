//! Wrong commands that new users type, and the sentences that they get.

use std::{env, fs, os::unix::fs::symlink, path::Path};

use serde_json::Value;

use crate::support::programs::{
    End, Place, built,
    hosts::{Outcome, Terminal},
    local_hosts::Hosts,
    program, receiver, sender,
};

/// Commands as they are typed at a terminal, their exit codes, and what they say. PORT is that of a server whose root is
/// empty, on the host `localhost`. On other hosts, which are directories beside the one of the user, rdpipe does not work.
const SENTENCES: &[(&str, i32, &str)] = &[
    // The recipe of a copy without ssh, without its -P.
    (
        "rdcp --key-file key f g localhost:PORT:/run042/",
        1,
        "rdcp: localhost: /run042 does not exist; give -P to make it",
    ),
    (
        "rdcp -n --key-file key f g localhost:PORT:/run042/",
        1,
        "rdcp: localhost: /run042 does not exist; give -P to make it",
    ),
    (
        "rdcp f localhost:PORT:/run042/",
        2,
        "the server on localhost needs a key; give --key-file FILE with the line of this client",
    ),
    (
        "rdcp f g h2:run042/",
        1,
        "h2: run042 does not exist; give -P to make it",
    ),
    (
        "rdcp f h2:run042/",
        1,
        "h2: run042 does not exist; give -P to make it",
    ),
    (
        "rdcp f h2:a/b/f",
        1,
        "h2: a/b does not exist; give -P to make it",
    ),
    (
        "rdcp -n f g h2:run042",
        1,
        "h2: run042 does not exist; give -P to make it",
    ),
    // Slips that would empty or remove something.
    (
        "rdpipe h1:'> precious'",
        2,
        "there is nothing to write to the file: stdin is a terminal or closed",
    ),
    (
        "rdpipe h1:'>> precious'",
        2,
        "there is nothing to write to the file: stdin is a terminal or closed",
    ),
    (
        "rdpipe -n h1:'> precious'",
        2,
        "there is nothing to write to the file: stdin is a terminal or closed",
    ),
    (
        "rdpipe h1:'> precious' <&-",
        2,
        "there is nothing to write to the file: stdin is a terminal or closed",
    ),
    (
        "rdcp h1:precious h1:precious",
        1,
        "precious and precious are the same file; nothing was done",
    ),
    (
        "rdcp --remove-source-files h1:precious h1:./data/../precious",
        1,
        "precious and ./data/../precious are the same file; nothing was done",
    ),
    (
        "rdcp h1:precious h2:../h1/link",
        1,
        "precious and ../h1/link are the same file; nothing was done",
    ),
    (
        "rdcp -r precious precious",
        1,
        "precious and precious are the same file; nothing was done",
    ),
    (
        "rdcp -r h1:data h1:data/new",
        1,
        "data cannot be copied into itself: data/new is in it; nothing was done",
    ),
    (
        "rdcp -aT --delete h1:data/set h1:data",
        1,
        "--delete would remove a source",
    ),
    ("rdcp --delete h1:data h2:", 2, "give -r or -a with it"),
    (
        "rdpipe h1:'< precious' h1:'>> precious'",
        1,
        "precious is the file that stage 1 (h1) reads",
    ),
    // Faults of installation.
    (
        "rdpipe nolib:date",
        255,
        "rdpipe on nolib does not start: libibverbs.so.1 is missing there; install ",
    ),
    (
        "rdcp f nolib:",
        255,
        "rdpipe on nolib does not start: libibverbs.so.1 is missing there; install ",
    ),
    (
        "rdcat nolib:f",
        255,
        "rdpipe on nolib does not start: libibverbs.so.1 is missing there; install ",
    ),
    (
        "rdforward -L 0:h:80 nolib",
        255,
        "rdpipe on nolib does not start: libibverbs.so.1 is missing there; install ",
    ),
    (
        "rdperf nolib",
        255,
        "rdpipe on nolib does not start: libibverbs.so.1 is missing there; install ",
    ),
    (
        "rdpipe old:date",
        255,
        "rdpipe on old does not start: it needs glibc 2.39, and that host has an older one",
    ),
    (
        "rdpipe arm:date",
        255,
        "rdpipe on arm does not start: it was built for another kind of processor",
    ),
    (
        "rdpipe killed:date",
        255,
        "ssh killed ended with 255 and no message; try: ssh killed rdpipe --version",
    ),
    (
        "rdpipe crashed:date",
        255,
        "rdpipe on crashed crashed: ssh said \"Segmentation fault (core dumped)\"; try: ssh crashed rdpipe --version",
    ),
    (
        "rdpipe nosuch:date",
        255,
        "cannot reach nosuch: ssh said \"Could not resolve hostname nosuch: Name or service not known\"; is the name right?",
    ),
    // Habits of rsync, scp and a shell.
    (
        "rdcp -az f h2:",
        2,
        "rdcp does not compress; over a slow link: rdpipe",
    ),
    (
        "rdcp --compress f h2:",
        2,
        "rdcp does not compress; over a slow link: rdpipe",
    ),
    (
        "rdcp -a --progress f h2:",
        2,
        "a terminal shows the progress without an option",
    ),
    (
        "rdcp -p f h2:",
        2,
        "-a keeps times, modes and owners, and --ssh-opt -oPort=N is the port of ssh",
    ),
    ("rdcp --partial f h2:", 2, "--resume continues them"),
    ("rdcp -rt f h2:", 2, "-a keeps times, modes and owners"),
    (
        "rdcp -P 2222 f h2:",
        2,
        "the port of ssh is --ssh-opt -oPort=2222",
    ),
    (
        "rdcp -P2222 f h2:",
        2,
        "the port of ssh is --ssh-opt -oPort=2222",
    ),
    (
        "rdcp rsync://h1/f h2:",
        2,
        "write HOST:PATH in place of a URL",
    ),
    (
        "rdcp ssh://h1/f h2:",
        2,
        "write HOST:PATH in place of a URL",
    ),
    ("rdcat ssh://h1/f", 2, "write HOST:PATH in place of a URL"),
    ("rdpipe ssh://h1/f", 2, "write HOST:PATH in place of a URL"),
    (
        "rdcp h1:data h2:",
        1,
        "h1: data is a directory: give -r or -a to copy it",
    ),
    ("rdcp h1:precious", 2, "there is no destination"),
    (
        "rdcp -T f g h2:x",
        2,
        "-T gives the copy the name DESTINATION",
    ),
    (
        "rdcp f g h1:link",
        1,
        "link is not a directory, so it cannot receive more than one source",
    ),
    (
        "rdcp h1:missing h2:",
        1,
        "h1: missing: cannot be read: No such file or directory\n",
    ),
    (
        "rdcp h1:'*.log' h2:",
        1,
        "no shell expands a path of another host",
    ),
    (
        "rdpipe h1:cat h2:wc -c",
        2,
        "put the whole command into quotes: h2:'wc -c'",
    ),
    (
        "rdpipe h2:ls -l dir h1:wc",
        2,
        "put the whole command into quotes: h2:'ls -l dir'",
    ),
    (
        "rdpipe h1:cat h2:wc f",
        2,
        "put a command of several words into quotes",
    ),
    (
        "rdpipe h1:'< missing' :cat",
        1,
        "missing: No such file or directory\n",
    ),
    (
        "rdpipe h1:'< *.log' :cat",
        1,
        "no shell expands a path: give a command, as in HOST:'cat *.log'",
    ),
    (
        "rdcat h1:'*.log'",
        1,
        "*.log: No such file or directory; no shell expands a path: rdpipe HOST:'cat *.log' uses one",
    ),
    (
        "rdcp -u f h2:",
        2,
        "--update replaces a file only if that of the source is newer",
    ),
    (
        "rdcp -i id f h2:",
        2,
        "the key of ssh is --ssh-opt '-i FILE'",
    ),
    (
        "rdcp --append f h2:",
        2,
        "--resume continues files that were cut",
    ),
    (
        "rdcp -r data h1:precious",
        1,
        "precious: the destination has something else of this name, which a directory does not replace",
    ),
    ("rdperf -c h1", 2, "give the host alone: rdperf HOST"),
    ("rdperf -s", 2, "without ssh: rdperf --listen"),
    ("rdforward -N -L 0:h:1 h1", 2, "rdforward runs no command"),
    (
        "rdrecv h1 4000",
        2,
        "give the number of the port to listen on, or 0 for any free port",
    ),
    (
        "rdsend h1 port",
        2,
        "give the number of the port where rdrecv listens, 1 to 65535",
    ),
    ("rdpipe", 2, "rdpipe --help explains all options and forms"),
    ("rdcp", 2, "rdcp --help explains all options and forms"),
    ("rdpipe h1:", 2, "there is no command after the colon"),
    ("rdpipe h1:'>'", 2, "there is no file after the operator"),
];

/// The hosts of [`SENTENCES`] as ssh reaches them.
const SSH: &str = r#"#!/bin/bash
while [[ $1 == -* ]]; do [[ $1 == -[Fplo] ]] && shift; shift; done
host=${1#*@}; shift
case $host in
nolib) echo 'rdpipe: error while loading shared libraries: libibverbs.so.1: cannot open shared object file' >&2; exit 127 ;;
old) echo "rdpipe: /lib64/libc.so.6: version \`GLIBC_2.39' not found (required by rdpipe)" >&2; exit 1 ;;
arm) echo 'sh: 1: rdpipe: Exec format error' >&2; exit 126 ;;
killed) exit 255 ;;
crashed) echo 'Segmentation fault (core dumped)' >&2; exit 139 ;;
nosuch) echo 'ssh: Could not resolve hostname nosuch: Name or service not known' >&2; exit 255 ;;
esac
cd "${0%/*}/$host" && HOME=$PWD exec sh -c "$*"
"#;

/// Runs a line of shell at a terminal, in the directory of the user.
fn typed(place: &Place, line: &str) -> End {
    let (own, program_path) = (place.directory().display(), built("rdpipe"));
    let programs = program_path.trim_end_matches("rdpipe");
    let path = env::var("PATH").unwrap_or_default();
    let terminal = Terminal::new();
    program("/bin/bash", "a command")
        .args(["-c", &format!("cd {own}/here; {line}")])
        .env("PATH", format!("{own}:{programs}:{path}"))
        .env("HOME", place.directory())
        .stdin(terminal.inside())
        .start()
        .end()
}

#[test]
fn wrong_commands_get_a_sentence_that_helps() {
    let place = Place::new();
    place.program("ssh", SSH.as_bytes());
    for directory in ["here/data", "srv", "h1/data/set", "h2"] {
        fs::create_dir_all(place.path(directory)).unwrap();
    }
    for file in [
        "here/f",
        "here/g",
        "here/precious",
        "h1/precious",
        "h1/data/set/f",
    ] {
        place.file(file, b"content");
    }
    symlink("precious", place.path("h1/link")).unwrap();
    typed(&place, "rdcp --new-key client --key-file key").exits(0);
    let [root, key] = ["srv", "here/key"].map(|name| place.path(name).display().to_string());
    let serve = [
        "--serve",
        "--root",
        &root,
        "--key-file",
        &key,
        "--listen-port",
        "0",
    ];
    let server = program(&built("rdcp"), "rdcp").args(serve).start();
    let port = server.port().to_string();
    let mut wrong = Vec::new();
    for (line, code, sentence) in SENTENCES {
        let end = typed(&place, &line.replace("PORT", &port));
        let text = &end.stderr;
        // A table of zeros explains nothing, and a sentence that is said twice no more.
        let is_plain = !text.contains("os error") && !text.contains("stage  host");
        let is_said = end.code() == *code && text.matches(sentence).count() == 1;
        if !is_plain || !is_said {
            wrong.push(format!("{line}: {}\n{text}", end.code()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    for kept in ["here/precious", "h1/precious", "h1/data/set/f"] {
        assert_eq!(place.read(kept), b"content");
    }
    let names = fs::read_dir(place.path("srv")).unwrap();
    assert_eq!(names.count(), 0);
    // A user who has said so empties a file.
    typed(&place, "rdpipe h1:'> precious' < /dev/null").exits(0);
    assert_eq!(place.read("h1/precious"), b"");
}

#[test]
fn reports_for_programs_have_no_numbers_of_errors() {
    let hosts = Hosts::new("");
    fs::create_dir_all(hosts.path("h1", "")).unwrap();
    let perf = [
        "--json", "--time", "0.1", "--runs", "1", "--read", "missing", "h1", "h2",
    ];
    for setup in [
        hosts.rdpipe(&["--json", "h1:< missing", "h1:cat"]),
        hosts.rdcp(&["--json", "h1:missing", "h1:copy"]),
        hosts.rdcat(&["--json", "h1:missing"]),
        hosts.rdperf(&perf),
    ] {
        let end = setup.start().end();
        assert_ne!(end.code(), 0, "{}", end.stderr);
        let text = String::from_utf8_lossy(&end.stdout) + &*end.stderr;
        assert!(text.contains("No such file or directory"), "{text}");
        assert!(!text.contains("os error"), "{text}");
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
fn a_report_that_cannot_be_written_is_a_failure() {
    let hosts = Hosts::new("");
    hosts.file("h1", "f", b"content");
    let json = "--json=/dev/full";
    let perf = [
        "--measure",
        "connect",
        "--time",
        "0.1",
        "--runs",
        "1",
        json,
        "h1",
        "h2",
    ];
    let command = "exec 3<>/dev/tcp/192.0.2.9/1; true";
    let forward = [
        "--addr",
        "h1=192.0.2.9,127.0.0.1",
        json,
        "h1",
        "--",
        "bash",
        "-c",
        command,
    ];
    for running in [
        hosts.rdpipe(&[json, "h1:echo x"]),
        hosts.rdcp(&[json, "h1:f", "h1:g"]),
        hosts.rdcat(&[json, "h1:f"]),
        hosts.rdperf(&perf),
        hosts.rdforward_run(&forward),
    ] {
        let end = running.start().end();
        end.tells(1, &["cannot write /dev/full: No space left on device"]);
        assert_eq!(end.stderr.matches("/dev/full").count(), 1, "{}", end.stderr);
    }
    let receiving = receiver(json).start();
    let sending = sender(receiving.port(), json).start();
    for end in [sending.end(), receiving.end()] {
        end.tells(1, &["cannot write /dev/full: No space left on device"]);
    }
}

#[test]
fn the_help_and_the_documents_say_what_they_should() {
    let end = program(&built("rdpipe"), "rdpipe")
        .arg("--help")
        .start()
        .end();
    let help = String::from_utf8(end.stdout).unwrap();
    let help: Vec<_> = help.split_whitespace().collect();
    let poll = "Microseconds to poll before sleeping, 0 to 10000 [default: adapts, at most 50, or 1000 on slow machines]";
    assert!(help.join(" ").contains(poll));
    let install = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/install.md");
    let locked =
        "Keep `--locked`: one dependency of the RDMA build was withdrawn from the registry.";
    assert!(fs::read_to_string(install).unwrap().contains(locked));
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
        let rows = |line: &str| line.chars().count().div_ceil(80).max(1);
        assert!(text.lines().map(rows).sum::<usize>() < 24, "{text}");
        assert!(
            text.contains("Usage: ") && text.contains("$ "),
            "{name}: {text}"
        );
        let end = program(&built(name), name).arg("--help").start().end();
        assert!(end.stdout.len() > text.len(), "{name}");
    }
}
