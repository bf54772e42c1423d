//! Pipelines on one machine, without ssh: statuses, operators, quoting, messages.

use std::{
    fs,
    io::{Read, Write},
    process::Stdio,
    time::{Duration, Instant},
};

use rustix::process::Signal;
use serde_json::Value;

use crate::support::programs::hosts::Terminal;
use crate::support::programs::local_hosts::{Hosts, fed, feed, rdpipe, run};
use crate::support::programs::{End, Running, eventually, random_bytes, soon};

#[track_caller]
fn gives(end: &End, code: i32, output: &str) {
    end.exits(code);
    assert_eq!(String::from_utf8_lossy(&end.stdout), output);
}

#[track_caller]
fn says(end: &End, code: i32, words: &[&str]) {
    let text = end.exits(code);
    for word in words {
        assert!(text.contains(word), "it did not say {word:?}, but:\n{text}");
    }
}

#[test]
fn the_first_example_of_the_manual_works() {
    let end = fed(&[":tr '[:lower:]' '[:upper:]'", ":rev"], b"hello\n");
    gives(&end, 0, "OLLEH\n");
    assert_eq!(end.stderr, "");
    gives(&run(&[":echo hello", ":tr a-z A-Z", ":rev"]), 0, "OLLEH\n");
    let five = [":cat", ":tac", ":cat", ":tac", ":wc -c"];
    gives(&fed(&five, &random_bytes(3_000_000)), 0, "3000000\n");
}

#[test]
fn a_terminal_gets_one_line_about_what_has_passed() {
    let mut terminal = Terminal::new();
    let running = rdpipe(&[":echo hello", ":cat"])
        .stderr(terminal.inside())
        .start();
    terminal.shows("6 B in ");
    gives(&running.end(), 0, "hello\n");
    // Not with -q, and not in a log.
    let quiet = rdpipe(&["-q", ":echo hello", ":cat"]).stderr(terminal.inside());
    gives(&quiet.start().end(), 0, "hello\n");
    let running = rdpipe(&[":echo once more", ":cat"])
        .stderr(terminal.inside())
        .start();
    assert!(!terminal.shows("10 B in ").contains("6 B in "));
    gives(&running.end(), 0, "once more\n");
    assert_eq!(run(&[":echo hello", ":cat"]).stderr, "");
}

/// A command that waits until the file `go` is there.
const WAIT: &str = "until [ -e go ]; do sleep 0.05; done";

#[test]
fn a_terminal_shows_a_line_for_each_stage_while_they_run() {
    let hosts = Hosts::new("");
    hosts.file("a", "big", &random_bytes(20_000_000));
    let mut terminal = Terminal::new();
    let slow = format!("b:head -c 1000; echo a message >&2; {WAIT}; cat");
    let running = hosts
        .rdpipe(&["a:< big", &slow, "c:> copy"])
        .env("TERM", "xterm")
        .stderr(terminal.inside())
        .start();
    // The message stands above the lines, or came before the first of them.
    let shown = terminal.shows("2 (b): a message\r\n");
    let before = shown.split("2 (b)").next().unwrap();
    assert!(
        before.is_empty() || before.ends_with("\x1b[J\r"),
        "{shown:?}"
    );
    let shown = terminal.shows("output 100%");
    assert!(shown.contains("stage  host  command"), "{shown:?}");
    terminal.shows("    3  c     > copy");
    terminal.shows("input 100%");
    hosts.file("b", "go", b"");
    let shown = terminal.shows("20.0 MB in ");
    let last = shown.rsplit("\x1b[J\r").next().unwrap();
    assert!(last.starts_with("rdpipe: "), "it is not cleared: {last:?}");
    running.end().exits(0);
    assert_eq!(hosts.read("c", "copy").len(), 20_000_000);
}

#[test]
fn the_lines_of_stages_disappear_before_output_on_the_same_terminal() {
    let hosts = Hosts::new("");
    let mut terminal = Terminal::new();
    let running = hosts
        .rdpipe(&[&format!("a:{WAIT}; echo all of it")])
        .env("TERM", "xterm")
        .stdout(terminal.inside())
        .stderr(terminal.inside())
        .start();
    terminal.shows("waits for");
    hosts.file("a", "go", b"");
    let shown = terminal.shows("10 B in ");
    let end = shown.split("\x1b[J\rall of it\r\n").nth(1);
    let end = end.expect("the lines disappear before the output");
    assert!(!end.contains("waits for"), "{shown:?}");
    running.end().exits(0);
}

#[test]
fn an_interrupted_pipeline_says_how_far_it_got_and_that_old_files_are_as_they_were() {
    let hosts = Hosts::new("");
    hosts.file("b", "old", b"content");
    for (file, kept) in [
        ("old", "stage 2 (b): old is as it was before"),
        ("new", "stage 2 (b): new was not made"),
    ] {
        let started = hosts.path("a", &format!("started {file}"));
        let source = format!("a:head -c 3000 /dev/zero; touch 'started {file}'; exec sleep 1000");
        let running = hosts.rdpipe(&[&source, &format!("b:> {file}")]).start();
        eventually("a started command", || started.exists().then_some(()));
        running.signal(Signal::INT);
        let end = running.end();
        says(&end, 130, &["interrupted by", "stage  host  command", kept]);
    }
    // More bytes than a stream, the sockets and a pipe hold: the file is open when all are taken.
    let mut running = hosts.rdcp(&["-", "b:old"]).stdin(Stdio::piped()).start();
    let mut stdin = running.stdin();
    stdin.write_all(&vec![0; 40 << 20]).unwrap();
    running.signal(Signal::INT);
    let end = running.end();
    let words = [
        "interrupted by signal 2 (SIGINT) after ",
        " MB; old is as it was before\n",
    ];
    says(&end, 130, &words);
    drop(stdin);
    assert_eq!(hosts.read("b", "old"), b"content");
    assert!(!hosts.path("b", "new").exists());
    // So does a failure.
    let end = hosts.run(&["a:echo some; exit 3", "b:> old"]);
    says(&end, 3, &["old is as it was before"]);
    assert_eq!(hosts.read("b", "old"), b"content");
    let end = hosts.run(&["a:echo some", "b:> old"]);
    gives(&end, 0, "");
    assert_eq!(end.stderr, "");
}

#[test]
fn verbose_says_what_matters_and_twice_how_ssh_is_called() {
    let hosts = Hosts::new("");
    let verbose = hosts.run(&["-v", "a:echo one", "b:cat"]).stderr;
    assert!(verbose.lines().next().unwrap().contains("TCP"), "{verbose}");
    for minor in ["--agent", "which has the addresses"] {
        assert!(!verbose.contains(minor), "{verbose}");
        let more = hosts.run(&["-vv", "a:echo one", "b:cat"]).stderr;
        assert!(more.contains(minor), "{more}");
    }
}

#[test]
fn a_buffer_takes_what_the_next_stage_does_not_read_yet() {
    let hosts = Hosts::new("");
    let reads_later = format!("b:{WAIT}; wc -c");
    let source = "a:head -c 40000000 /dev/zero; touch sent";
    // More than the stream, the sockets and the pipes hold.
    let options = ["--rails", "1", "--buffer", "64M"];
    let running = hosts
        .rdpipe(&[&options[..], &[source, &reads_later]].concat())
        .start();
    eventually("a stage that has ended", || {
        hosts.has("a", "sent").then_some(())
    });
    hosts.file("b", "go", b"");
    gives(&running.end(), 0, "40000000\n");
    let end = hosts.run(&["--buffer", "1G", "a:echo some; exit 3", "b:> file"]);
    gives(&end, 3, "");
    assert!(!hosts.has("b", "file"));
}

#[test]
fn a_pipeline_keeps_to_its_limit() {
    let started = Instant::now();
    let end = fed(&["--bwlimit", "1M", ":cat", ":wc -c"], &vec![0; 1 << 20]);
    gives(&end, 0, "1048576\n");
    // A second, less the burst at the beginning and the piece at the end.
    assert!(started.elapsed() > Duration::from_millis(850));
}

#[test]
fn commands_arrive_as_they_were_typed() {
    let hosts = Hosts::new("");
    for (command, output) in [
        (r#"printf '%s|' "a  b" 'c"d' "it's""#, "a  b|c\"d|it's|"),
        ("echo one\necho 'two\nthree'", "one\ntwo\nthree\n"),
        ("x='$HOME'; echo \"$x\" `echo y` $((1+2))", "$HOME y 3\n"),
        ("echo wow! '!!' \\!", "wow! !! !\n"),
        ("echo 'grüße: ☃' | cat", "grüße: ☃\n"),
        ("echo a:b:c; : d", "a:b:c\n"),
        ("  echo '  x'", "  x\n"),
        ("echo '{host}' '*' \\\\ '#' # no", "{host} * \\ #\n"),
        ("cat <(echo inner) | tee >(cat >/dev/null)", "inner\n"),
    ] {
        gives(&run(&[&format!(":{command}")]), 0, output);
        gives(&hosts.run(&[&format!("me@h:{command}")]), 0, output);
    }
}

#[test]
fn every_stage_that_fails_is_named() {
    for (failing, status, words) in [
        ("cat; exit 3", 3, "exited with 3"),
        ("cat; kill -9 $$", 137, "killed by signal 9 (SIGKILL)"),
        ("no_such_command_here", 127, "command not found"),
    ] {
        for place in 0..3 {
            let mut stages = [":cat".to_owned(), ":cat".to_owned(), ":cat".to_owned()];
            stages[place] = format!(":{failing}");
            let stages = stages.each_ref().map(String::as_str);
            let end = fed(&stages, b"some bytes\n");
            let name = format!("stage {} (here)", place + 1);
            says(&end, status, &[&name, words]);
            // The table is shown if some bytes were moved.
            let has_table = end.stderr.contains("waited for input");
            assert!(has_table || status == 127, "{}", end.stderr);
        }
    }
    let end = run(&[":exit 3", ":cat; exit 4", ":cat"]);
    says(
        &end,
        4,
        &[
            "stage 1 (here) exited with 3",
            "stage 2 (here) exited with 4",
        ],
    );
    gives(&run(&[":exit 7"]), 7, "");
    gives(&run(&[":true"]), 0, "");
}

#[test]
fn a_plain_failure_is_still_an_end_of_file() {
    let end = fed(&[":grep nothing", ":cat; echo done"], b"some bytes\n");
    gives(&end, 1, "done\n");
    let end = run(&[":echo x; exit 3", ":cat; echo done"]);
    gives(&end, 3, "x\ndone\n");
}

#[test]
fn a_killed_source_is_no_end_of_file() {
    let hosts = Hosts::new("");
    let end = hosts.run(&["a:echo half; kill -9 $$", "b:cat > copy; echo end > ended"]);
    says(&end, 137, &["stage 1 (a) was killed by signal 9"]);
    assert!(!hosts.has("b", "ended"), "the second stage ended happily");
}

#[test]
fn background_processes_are_waited_for() {
    let end = fed(&[":tee >(sleep 0.3; exit 3)"], b"x\n");
    gives(&end, 3, "x\n");
    let end = run(&[":echo early; (sleep 0.3; echo late) &"]);
    gives(&end, 0, "early\nlate\n");
}

#[test]
fn a_stage_that_is_told_to_stop_has_not_failed() {
    gives(&run(&[":yes", ":head -1"]), 0, "y\n");
    gives(&run(&[":yes", ":cat", ":cat", ":head -1"]), 0, "y\n");
    let end = feed(rdpipe(&[":head -c 1"]), &random_bytes(20_000_000)).end();
    assert_eq!(end.exits(0), "");
    assert_eq!(end.stdout.len(), 1);
    let end = run(&[":yes", ":head -1; exit 5"]);
    gives(&end, 5, "y\n");
}

#[test]
fn a_closed_stdout_ends_the_pipeline_quietly() {
    let mut running = rdpipe(&[":yes", ":cat"]).start_raw();
    let mut stdout = running.take_stdout();
    stdout.read_exact(&mut [0; 2]).unwrap();
    drop(stdout);
    assert_eq!(running.end().exits(141), "");
}

#[test]
fn files_can_be_first_and_last() {
    let hosts = Hosts::new("");
    let data = random_bytes(5_000_000);
    hosts.file("a", "in put", &data);
    let end = hosts.run(&["a:< in put", "b:cat", "c:> out put"]);
    gives(&end, 0, "");
    assert!(hosts.read("c", "out put") == data);
    let end = feed(hosts.rdpipe(&["c:>> out put"]), b"more").end();
    gives(&end, 0, "");
    assert!(hosts.read("c", "out put") == [&data[..], b"more"].concat());
    gives(&hosts.run(&["a:<in put", "b:wc -c"]), 0, "5000000\n");
    // An input file as first stage leaves stdin unread.
    let end = feed(hosts.rdpipe(&["a:<in put"]), b"not this").end();
    end.exits(0);
    assert!(end.stdout == data);
}

#[test]
fn files_can_be_in_the_middle() {
    let hosts = Hosts::new("");
    let end = hosts.run(&["a:echo one", "b:> f", "b:cat; echo empty"]);
    gives(&end, 0, "empty\n");
    assert_eq!(hosts.read("b", "f"), b"one\n");
    // The file is opened after the earlier stages have written everything.
    let end = hosts.run(&["a:sleep 0.2; echo two", "b:> f", "b:< f", "a:rev"]);
    gives(&end, 0, "owt\n");
    let end = hosts.run(&["a:echo three", "b:>> f", "b:cat", "b:< f"]);
    gives(&end, 0, "two\nthree\n");
    // It is read even if they wrote nothing, and not opened after one that failed.
    gives(&hosts.run(&["a:true", "b:< f", "a:wc -l"]), 0, "2\n");
    let end = hosts.run(&["a:echo drained; exit 3", "b:< f", "a:cat"]);
    gives(&end, 3, "");
}

#[test]
fn a_file_is_not_replaced_by_half_a_pipeline() {
    let hosts = Hosts::new("");
    for (failing, status) in [
        ("echo x; exit 3", 3),
        ("echo x; kill -9 $$", 137),
        ("< missing", 1),
    ] {
        hosts.file("b", "f", b"as it was");
        let first = format!("a:{failing}");
        let end = hosts.run(&[&first, "a:cat", "b:> f"]);
        says(&end, status, &["stage 1 (a)"]);
        assert_eq!(hosts.read("b", "f"), b"as it was", "{failing}");
        assert_eq!(fs::read_dir(hosts.path("b", "")).unwrap().count(), 1);
    }
}

#[test]
fn files_that_cannot_be_used_are_named() {
    let hosts = Hosts::new("");
    says(
        &hosts.run(&["a:< missing", "b:cat"]),
        1,
        &["stage 1 (a)", "missing", "No such file"],
    );
    says(
        &hosts.run(&["a:echo", "b:> no/such/f"]),
        1,
        &["stage 2 (b)", "no/such/f"],
    );
    says(
        &run(&[":echo hello", ":> /dev/full"]),
        1,
        &["stage 2 (here)", "No space left"],
    );
}

#[test]
fn relays_carry_every_byte() {
    let hosts = Hosts::new("");
    let data = random_bytes(64 << 20);
    hosts.file("a", "in", &data);
    let end = hosts.run(&["a:< in", "b:cat", "c:cat", "d:cat", "e:tee >(cat > copy)"]);
    end.exits(0);
    assert!(end.stdout == data);
    assert!(hosts.read("e", "copy") == data);
    let end = feed(hosts.rdpipe(&["b:cat", "c:cat", "d:cat"]), &data).end();
    end.exits(0);
    assert!(end.stdout == data);
}

#[test]
fn stderr_of_commands_is_shown_with_their_stage() {
    let end = run(&["-q", ":echo 'one\ntwo' >&2; printf 'a\\rb\\t\\033[2J' >&2"]);
    for line in [
        "1 (here): one\n",
        "1 (here): two\n",
        "1 (here): a\n",
        "1 (here): b\t\\u{1b}[2J\n",
    ] {
        assert!(end.exits(0).contains(line), "{}", end.stderr);
    }
    let profile = Hosts::new("echo Welcome; printf unfinished");
    let end = profile.run(&["a:echo x"]);
    gives(&end, 0, "x\n");
    assert!(
        end.stderr.contains("1 (a): Welcome\n1 (a): unfinished\n"),
        "{}",
        end.stderr
    );
}

#[test]
fn a_failure_before_an_output_file_is_reported_first() {
    let hosts = Hosts::new("");
    let end = hosts.run(&["a:echo half; exit 3", "b:> f"]);
    says(&end, 3, &["stage 1 (a) exited with 3"]);
    assert!(!hosts.has("b", "f"));
    let first = end.stderr.lines().next().unwrap_or_default();
    assert!(first.contains("exited with 3"), "{first}");
}

#[test]
fn one_open_port_is_enough_for_any_pipeline() {
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let number = port.local_addr().unwrap().port().to_string();
    drop(port);
    let args = ["-p", &number, ":cat", ":cat", ":cat"];
    gives(&fed(&args, b"through one port\n"), 0, "through one port\n");
}

#[test]
fn the_report_is_for_people_and_programs() {
    let hosts = Hosts::new("");
    let report = hosts.directory().join("report");
    let json = format!("--json={}", report.display());
    let end = hosts.run(&[&json, "a:echo hello", "b:cat; exit 3"]);
    says(
        &end,
        3,
        &["stage  host  command", "stage 2 (b) exited with 3"],
    );
    let value: Value = serde_json::from_slice(&fs::read(&report).unwrap()).unwrap();
    assert_eq!(value["exit"], 3);
    assert_eq!(value["errors"][0], "stage 2 (b) exited with 3");
    let rows = value["stages"].as_array().unwrap();
    assert_eq!(rows[0]["outcome"], "ok");
    assert_eq!(
        (&rows[1]["host"], &rows[1]["status"]),
        (&"b".into(), &3.into())
    );
    assert_eq!(
        (&rows[0]["bytes_out"], &rows[1]["bytes_in"]),
        (&6.into(), &6.into())
    );
    assert_eq!(value["edges"].as_array().unwrap().len(), 3);
    assert_eq!(value["edges"][1]["transport"], "tcp");

    let end = run(&["-v", ":true"]);
    says(&end, 0, &["stage  host  command", "Bandwidth "]);
    assert_eq!(run(&[":true"]).exits(0), "");
    let end = run(&["--json=/nonexistent/report", ":true"]);
    says(&end, 1, &["/nonexistent/report"]);
}

#[test]
fn a_dry_run_runs_nothing() {
    let hosts = Hosts::new("touch started");
    let arguments = [
        "-n",
        "-p7691-7699",
        "--addr=b=10.0.0.1",
        "--ssh-opt=-F cfg",
        "me@a:touch x",
        ":> y",
        "b:cat",
    ];
    let end = run(&arguments);
    end.exits(0);
    let text = String::from_utf8(end.stdout).unwrap();
    for part in [
        "stage 1 (a)\n  runs, in the login shell: touch x\n  agent: ssh -F cfg -T",
        " me@a sh (which runs rdpipe there, or receives it)\n",
        "stage 2 (here)\n  writes the file y\n",
        "edge from standard input to stage 1 (a)\n",
        "edge from stage 2 (here) to stage 3 (b)\n  stage 3 (b) listens on a port from 7691 to 7699, at 10.0.0.1\n",
        "to standard output\n",
    ] {
        assert!(text.contains(part), "no {part:?} in:\n{text}");
    }
    hosts.rdpipe(&["-n", "a:touch x"]).start().end().exits(0);
    assert!(!hosts.has("a", "x") && !hosts.directory().join("started").exists());
}

#[test]
fn usage_errors_exit_with_2() {
    for arguments in [
        &[][..],
        &["no_colon"],
        &["a:"],
        &[":<"],
        &["-oProxyCommand=x:y"],
        &["me@-oProxyCommand=x:y"],
        &["-p0", ":true"],
        &["--rsh", "'", ":true"],
    ] {
        let end = run(arguments);
        assert!(end.exits(2).contains("--help"), "{}", end.stderr);
        assert!(end.stdout.is_empty());
    }
}

#[test]
fn a_missing_agent_is_explained() {
    let missing = [
        "--deploy",
        "never",
        "--rsh",
        "sh -c 'echo rdpipe: not found >&2; exit 127' {host}",
        "h:true",
    ];
    says(
        &run(&missing),
        255,
        &["stage 1 (h)", "there is no rdpipe on h", "--remote-rdpipe"],
    );
    let skew = [
        "--rsh",
        "sh -c 'echo; echo rdpipe-agent 77 9.9.9; cat' {host}",
        "h:true",
    ];
    says(
        &run(&skew),
        255,
        &["rdpipe 9.9.9 on h", "version 77", env!("CARGO_PKG_VERSION")],
    );
    says(
        &run(&["--rsh", "/nonexistent", "h:true"]),
        255,
        &["cannot run /nonexistent", "No such file"],
    );
    says(
        &run(&["--rsh", "true", "h:true"]),
        255,
        &["ended before rdpipe began"],
    );
    // A host that cannot be reached ends the agents on the other hosts.
    let hosts = Hosts::new("[ $1 = bad ] && { echo no such pod >&2; exit 1; }");
    let end = hosts.run(&["a:sleep 100", "bad:cat", "c:> f"]);
    says(&end, 255, &["stage 2 (bad)", "no such pod"]);
    assert!(!hosts.has("c", "f"));
}

#[test]
fn an_interrupt_ends_the_pipeline() {
    let hosts = Hosts::new("");
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143), (Signal::HUP, 129)] {
        let stages = ["a:echo up >&2; sleep 1000", "b:cat > copy; touch ended"];
        let running = hosts.rdpipe(&stages).stdin(Stdio::null()).start();
        running.said("that it runs", |text| {
            text.contains("1 (a): up").then_some(())
        });
        let at = running.signal(signal);
        let end = running.end();
        end.exits(code);
        assert!(end.at - at < soon());
        assert!(!hosts.has("b", "ended"));
    }
}

/// Returns the process IDs that stage 1 prints on stderr after the word `pids`: its worker, then its own children.
pub(super) fn pids(running: &Running) -> Vec<u32> {
    running.said("its pids", |text| {
        let line = text
            .lines()
            .find_map(|line| line.split_once("pids ").filter(|_| text.ends_with('\n')));
        let pids = line?.1.split_whitespace().map(|pid| pid.parse().ok());
        pids.collect()
    })
}

pub(super) fn parent(pid: u32) -> u32 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("PPid:"));
    line.unwrap().trim().parse().unwrap()
}
