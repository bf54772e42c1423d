//! A terminal or a pager that does not read the messages delays only what writes them.

use std::{
    fs,
    io::{Read, Write},
    process::Stdio,
    thread,
    time::{Duration, Instant},
};

use rustix::process::Signal;

use crate::support::programs::hosts::Network;
use crate::support::programs::local_hosts::{Hosts, rdpipe};
use crate::support::programs::running::Unread;
use crate::support::programs::{Running, Setup, eventually, patience};

/// The lines that [`noise`] writes for each unit: 30 kB.
const LINES: usize = 2000;

/// Returns a command that writes so many lines to stderr.
fn noise(lines: usize) -> String {
    format!("yes 'line of noise.' | head -n {lines} >&2")
}

/// Runs a pipeline whose first stage fills stderr beside passing bytes. Passes bytes through it for several timeouts
/// while stderr is not read, then reads stderr. Checks that every line arrives.
fn passes_bytes_while_stderr_is_not_read(setup: Setup, lines: usize, timeout: Duration) {
    let (unread, stderr) = Unread::empty();
    let mut running = setup.stdin(Stdio::piped()).stderr(stderr).start_raw();
    let (mut stdin, mut stdout) = (running.stdin(), running.take_stdout());
    let since = Instant::now();
    while since.elapsed() < 3 * timeout {
        stdin.write_all(b"through\n").expect("the pipeline runs");
        let mut line = [0; 8];
        if let Err(error) = stdout.read_exact(&mut line) {
            let said = unread.read().join().expect("it reads on");
            let said = said
                .lines()
                .filter(|line| !line.ends_with("line of noise."));
            let said: Vec<&str> = said.collect();
            panic!(
                "the pipeline depends on stderr: {error}\n{}",
                said.join("\n")
            );
        }
        assert_eq!(&line, b"through\n");
        // Without a pause, ten thousand lines a second would each wake eight processes, and keep all others waiting.
        thread::sleep(Duration::from_millis(10));
    }
    drop(stdin);
    let said = unread.read();
    running.end().exits(0);
    let said = said.join().expect("it reads on");
    let noise = said.lines().filter(|line| line.ends_with("line of noise."));
    assert_eq!(noise.count(), lines, "{} bytes", said.len());
}

/// A timeout that the tests wait out several times. It is long enough for a busy machine, which answers late.
fn timeout() -> Duration {
    Duration::from_secs(patience(Duration::from_secs(2)).as_secs() + 2)
}

#[test]
fn a_terminal_that_does_not_read_does_not_kill_the_pipeline() {
    let seconds = timeout().as_secs().to_string();
    let lines = 20 * LINES;
    let first = format!(":({}) & cat; wait", noise(lines));
    let setup = rdpipe(&["--timeout", &seconds, &first, ":cat"]);
    passes_bytes_while_stderr_is_not_read(setup, lines, timeout());
}

#[test]
fn a_terminal_that_does_not_read_does_not_make_a_host_look_lost() {
    let Some(network) = Network::new(2) else {
        return;
    };
    // More than ssh takes from a host while its stderr is not read: its window is 2 MiB, for stdout and stderr
    // together.
    let lines = 300 * LINES;
    let seconds = timeout().as_secs().to_string();
    let first = format!("h1:({}) & cat; wait", noise(lines));
    let setup = network.rdpipe(["--timeout", &seconds, &first, "h2:cat"]);
    passes_bytes_while_stderr_is_not_read(setup, lines, timeout());
}

/// Waits until rdpipe has no children and only its three lasting threads left: its pipeline has ended.
fn pipeline_ended(running: &Running) {
    let tasks = format!("/proc/{}/task", running.id());
    eventually("a pipeline to end", || {
        let tasks = fs::read_dir(&tasks).ok()?.flatten();
        let mut children = tasks.map(|task| fs::read_to_string(task.path().join("children")));
        let mut threads = 0;
        let has_children = children.any(|children| {
            threads += 1;
            !children.is_ok_and(|children| children.is_empty())
        });
        (!has_children && threads <= 3).then_some(())
    });
}

#[test]
fn the_last_messages_arrive_when_stderr_is_read_again() {
    let hosts = Hosts::new("");
    let (unread, stderr) = Unread::full();
    let command = format!(
        "a:touch up; {}; echo last words >&2; echo; exit 3",
        noise(LINES)
    );
    let running = hosts.rdpipe(&[&command]).stderr(stderr).start();
    eventually("the command to start", || {
        hosts.has("a", "up").then_some(())
    });
    pipeline_ended(&running);
    assert!(running.runs(), "it ended without its messages");
    let said = unread.read();
    running.end().exits(3);
    let said = said.join().expect("it reads on");
    let (noise, rest) = said.split_at(said.find("1 (a): last words").expect("it was said"));
    assert_eq!(noise.lines().count(), LINES);
    for words in ["stage 1 (a) exited with 3", "waited for input"] {
        assert!(rest.contains(words), "no {words:?} in:\n{rest}");
    }
}

#[test]
fn a_signal_ends_rdpipe_although_its_stderr_is_not_read() {
    let hosts = Hosts::new("");
    let (_unread, stderr) = Unread::full();
    let running = hosts
        .rdpipe(&["a:touch up; sleep 1000"])
        .stderr(stderr)
        .start();
    eventually("the command to start", || {
        hosts.has("a", "up").then_some(())
    });
    running.signal(Signal::TERM);
    running.end().exits(143);
}

#[test]
fn a_signal_ends_the_wait_for_a_reader_of_the_last_messages() {
    // The signal may overtake the report of the last thread.
    let is_kept = (0..10).any(|_| {
        let hosts = Hosts::new("");
        let (_unread, stderr) = Unread::full();
        let running = hosts.rdpipe(&["a:touch up; exit 3"]).stderr(stderr).start();
        eventually("the command to start", || {
            hosts.has("a", "up").then_some(())
        });
        pipeline_ended(&running);
        running.signal(Signal::TERM);
        let status = running.end().code();
        assert!(matches!(status, 3 | 143), "{status}");
        status == 3
    });
    assert!(is_kept, "the signal changed the exit status each time");
}

#[test]
fn the_output_ends_although_the_messages_are_not_read() {
    let (unread, stderr) = Unread::full();
    let mut running = rdpipe(&[":echo done; exit 3"]).stderr(stderr).start_raw();
    let mut output = String::new();
    let read = running.take_stdout().read_to_string(&mut output);
    read.expect("a pipe");
    assert_eq!(output, "done\n");
    assert!(running.runs(), "it ended without its messages");
    let said = unread.read();
    running.end().exits(3);
    let said = said.join().expect("it reads on");
    assert!(said.contains("exited with 3"), "{said}");
}

#[test]
fn a_pager_that_quits_does_not_end_the_pipeline() {
    let (unread, stderr) = Unread::empty();
    drop(unread);
    let end = rdpipe(&[&format!(":{}; echo done", noise(20 * LINES))])
        .stderr(stderr)
        .start()
        .end();
    end.exits(0);
    assert_eq!(end.stdout, b"done\n");
}
