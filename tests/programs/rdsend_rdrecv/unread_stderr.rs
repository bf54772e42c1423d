//! A stderr that is not read delays no byte.

use std::{io::Write, process::Stdio};

use crate::support::programs::hosts::Terminal;
use crate::support::programs::unread::Unread;
use crate::support::programs::{Place, free_port, key, rdrecv, receiver, sender};

#[test]
fn a_sender_whose_stderr_is_not_read_sends_all_the_same() {
    let place = Place::new();
    let input = place.file("in", b"all of it");
    let receiver = receiver("").start();
    let (unread, stderr) = Unread::full();
    let sender = sender(receiver.port(), format!("-v -i {input}"));
    let sender = sender.stderr(stderr).start();
    let end = receiver.end();
    end.exits(0);
    assert_eq!(end.stdout, b"all of it");
    assert!(sender.runs(), "it ended without its messages");
    let said = unread.read();
    sender.end().exits(0);
    let said = said.join().expect("it reads on");
    for words in ["connected to ", "Bytes 9"] {
        assert!(said.contains(words), "no {words:?} in:\n{said}");
    }
}

#[test]
fn a_receiver_whose_stderr_is_not_read_confirms_all_the_same() {
    let port = free_port();
    let (unread, stderr) = Unread::full();
    let receiver = rdrecv(format!("{port} {} -v", key()))
        .stderr(stderr)
        .start();
    let place = Place::new();
    let input = place.file("in", b"all of it");
    // The sender tries again until the receiver listens.
    loop {
        let end = sender(port, format!("-i {input}")).start().end();
        if end.code() == 0 {
            break;
        }
        assert!(end.stderr.contains("refused"), "{}", end.stderr);
        assert!(receiver.runs(), "the receiver ended");
    }
    let said = unread.read();
    let end = receiver.end();
    end.exits(0);
    assert_eq!(end.stdout, b"all of it");
    assert!(said.join().expect("it reads on").contains("Bytes 9"));
}

#[test]
fn a_terminal_stopped_over_a_progress_bar_does_not_delay_the_confirmation() {
    let port = free_port();
    let mut terminal = Terminal::new();
    let receiver = rdrecv(format!("{port} {}", key()))
        .stderr(terminal.inside())
        .env("TERM", "xterm")
        .start();
    let mut sender = loop {
        let sender = sender(port, "-v").stdin(Stdio::piped()).start();
        let is_connected = sender.said("whether it is connected", |text| {
            let is_connected = text.contains("connected to");
            (is_connected || text.contains("refused")).then_some(is_connected)
        });
        if is_connected {
            break sender;
        }
        assert!(receiver.runs(), "the receiver ended");
    };
    let mut stdin = sender.stdin();
    stdin.write_all(b"some of it").expect("it reads");
    terminal.shows("B/s");
    terminal.stop(true);
    drop(stdin);
    sender.end().exits(0);
    assert!(receiver.runs(), "it ended without clearing its bar");
    terminal.stop(false);
    // Without a reader the terminal takes a few kilobytes, and the rest of the bar is less.
    let end = receiver.end();
    end.exits(0);
    assert_eq!(end.stdout, b"some of it");
}
