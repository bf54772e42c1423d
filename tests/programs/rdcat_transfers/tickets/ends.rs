//! The behaviour of one end when the other one is killed, closes its output, fails, or is interrupted.

use std::{
    fs::File,
    io::{BufRead, BufReader, Read, Write},
    process::Stdio,
};

use rustix::process::Signal;

use crate::support::programs::{
    eventually, held_bytes,
    rdcat::{listener, pair, rdcat, ticket, write},
    soon,
};

#[test]
fn a_killed_peer_is_detected_at_once() {
    for kill_listener in [true, false] {
        for busy in [true, false] {
            let [mut a, mut b] = pair("", "");
            let (mut stdin_a, stdin_b) = (a.stdin(), b.stdin());
            let mut out_b = b.take_stdout();
            stdin_a.write_all(b"x").unwrap();
            out_b.read_exact(&mut [0]).unwrap();
            let filling = std::thread::spawn(move || {
                if busy {
                    let _ = stdin_a.write_all(&vec![0; 64 << 20]);
                }
                stdin_a
            });
            let (dead, other) = if kill_listener { (a, b) } else { (b, a) };
            let killed = dead.kill();
            let end = other.end();
            let late = end.at.saturating_duration_since(killed);
            assert!(late < soon(), "{late:?}");
            let text = end.exits(255);
            assert!(text.contains("the other end died"), "{text}");
            drop((stdin_b, out_b, dead));
            filling.join().unwrap();
        }
    }
}

#[test]
fn a_closed_stdout_ends_both_ends() {
    for listener_leaves in [true, false] {
        let [a, b] = pair("", "");
        let (mut leaver, mut other) = if listener_leaves { (a, b) } else { (b, a) };
        let idle = leaver.stdin();
        let mut line = String::new();
        let mut stdout = BufReader::new(leaver.take_stdout());
        let mut stdin = other.stdin();
        let writing = std::thread::spawn(move || while stdin.write_all(b"y\n").is_ok() {});
        stdout.read_line(&mut line).unwrap();
        drop(stdout);
        let leaver = leaver.end();
        let said = leaver.exits(141).lines();
        assert_eq!(
            said.filter(|line| !line.contains("rdcat rdt1") && !line.contains("to connect"))
                .count(),
            0
        );
        let text = other.end();
        assert!(
            text.exits(141).contains("stopped reading after byte "),
            "{text:?}"
        );
        writing.join().unwrap();
        drop((idle, line));
    }
}

#[test]
fn an_output_that_fails_is_reported_to_the_peer() {
    let full = File::options().write(true).open("/dev/full").unwrap();
    let mut listener = listener("").stdin(Stdio::piped()).start();
    let failing = rdcat("").arg(ticket(&listener)).stdin(Stdio::piped());
    let mut failing = failing.stdout(full).start();
    let idle = failing.stdin();
    let mut stdin = listener.stdin();
    stdin.write_all(b"x").unwrap();
    failing.end().fails(
        1,
        &["cannot write standard output at byte 0: No space left"],
    );
    let text = listener.end();
    assert!(text.exits(3).contains("No space left"), "{text:?}");
    drop((idle, stdin));
}

#[test]
fn success_waits_for_the_reader_at_the_other_end() {
    let [mut a, mut b] = pair("--send", "");
    let out = b.take_stdout();
    let writing = write(a.stdin(), 5, 3 << 20);
    // A pipe and a pool hold all bytes, and the test has read none of them.
    writing.join().unwrap();
    eventually("a full pipe", || (held_bytes(&out) > 0).then_some(()));
    assert!(a.runs());
    b.kill();
    assert_ne!(a.end().code(), 0);
    drop(out);
}

#[test]
fn a_signal_is_reported_to_the_peer() {
    let [mut a, mut b] = pair("", "");
    let stdins = (a.stdin(), b.stdin());
    let (stdin_a, mut stdin_b) = stdins;
    stdin_b.write_all(b"x").unwrap();
    a.take_stdout().read_exact(&mut [0]).unwrap();
    a.signal(Signal::TERM);
    let end = a.end();
    assert!(end.exits(143).contains("interrupted by SIGTERM"), "{end:?}");
    let text = b.end();
    assert!(text.exits(3).contains("interrupted by SIGTERM"), "{text:?}");
    drop((stdin_a, stdin_b));
    // A signal also ends an rdcat that waits for its peer.
    let waiting = listener("").start();
    ticket(&waiting);
    waiting.signal(Signal::INT);
    waiting.end().exits(130);
}
