//! The messages of the programs with `-q`, without options, with `-v` and with `--json`; a stderr that is not read
//! delays no byte.

use std::{io::Write, net::TcpStream, process::Stdio};

use serde_json::Value;

use crate::support::programs::{
    End, Place, free_port, hosts::Terminal, key, random_bytes, rdrecv, receiver, running::Unread,
    sender,
};

/// Sends a million bytes with these options at both ends. Returns the ends of the sender and the receiver.
fn run(options: &str) -> (End, End) {
    let place = Place::new();
    let input = place.file("in", &random_bytes(1_000_000));
    let receiver = receiver(options).start();
    let sender = sender(receiver.port(), options).arg(input).start();
    let sender = sender.end();
    sender.exits(0);
    let receiver = receiver.end();
    receiver.exits(0);
    (sender, receiver)
}

#[test]
fn verbose_ends_with_the_bandwidth() {
    let (sender, receiver) = run("-v");
    for end in [sender, receiver] {
        let lines: Vec<&str> = end.stderr.lines().collect();
        let prefix = format!("{}: ", end.name);
        assert!(
            lines.iter().all(|line| line.starts_with(&prefix)),
            "{lines:#?}"
        );
        let last = lines.last().unwrap();
        let (_, bandwidth) = last.split_once("Bandwidth ").expect(last);
        let number = bandwidth.strip_suffix(" GB/s").expect(last);
        assert_eq!(number.split_once('.').expect(last).1.len(), 3, "{last}");
        assert!(number.parse::<f64>().unwrap() > 0.0);
        for said in ["Bytes 1000000", "Seconds ", " over TCP ("] {
            assert!(end.stderr.contains(said), "{said}:\n{}", end.stderr);
        }
    }
}

#[test]
fn quiet_prints_only_errors() {
    let (sender, receiver) = run("");
    assert_eq!(sender.stderr, "");
    assert_eq!(receiver.stderr.lines().count(), 1, "{}", receiver.stderr);
    let (sender, receiver) = run("-q");
    assert_eq!(sender.stderr, "");
    // With port 0, rdrecv prints its port even with `-q`: without the port it would be of no use.
    assert_eq!(receiver.stderr.lines().count(), 1, "{}", receiver.stderr);
    let refused = crate::support::programs::sender(
        crate::support::programs::free_port(),
        "-q --connect-timeout 0.1",
    )
    .start();
    assert_eq!(refused.end().exits(255).lines().count(), 1);
}

#[test]
fn json_reports_the_whole_transfer() {
    let (sender, receiver) = run("--json");
    for end in [&sender, &receiver] {
        let event = events(end).pop().unwrap();
        assert_eq!(event["event"], "end");
        assert_eq!(event["bytes"], 1_000_000);
        assert!(event["seconds"].as_f64().unwrap() > 0.0);
        assert_eq!(event["transport"], "TCP");
        assert!(!event["transport_reason"].as_str().unwrap().is_empty());
        assert_eq!(event["exit"], 0);
        assert_eq!(event["error"], Value::Null);
        assert_eq!(event["program"], end.name);
    }
    let listening = &events(&receiver)[0];
    assert_eq!(listening["event"], "listening");
    assert!(listening["port"].as_u64().unwrap() > 0);
    assert_eq!(listening.get("key"), None);
}

#[test]
fn json_reports_a_failure() {
    let place = Place::new();
    let receiver = receiver("--json -o /dev/full").start();
    let input = place.file("in", b"some bytes");
    let sender = sender(receiver.port(), "--json").arg(input).start();
    let (sender, receiver) = (sender.end(), receiver.end());
    for (end, exit) in [(&sender, 3), (&receiver, 1)] {
        end.exits(exit);
        let event = events(end).pop().unwrap();
        assert_eq!(
            (&event["event"], &event["exit"]),
            (&"end".into(), &exit.into())
        );
        let error = event["error"].as_str().unwrap();
        assert!(
            error.contains("cannot write /dev/full at byte 0: No space left"),
            "{error}"
        );
    }
}

fn events(end: &End) -> Vec<Value> {
    let parse = |line: &str| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"));
    end.stderr.lines().map(parse).collect()
}

#[test]
fn with_v_a_receiver_names_a_connection_that_is_no_stream() {
    let place = Place::new();
    let input = place.file("in", b"bytes");
    let receiver = receiver("-v").start();
    let port = receiver.port();
    let mut stranger = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stranger.write_all(b"GET / HTTP/1.0\r\n\r\n").unwrap();
    receiver.said("what the connection was", |text| {
        text.contains("a connection that is no stream: ")
            .then_some(())
    });
    sender(port, "").arg(input).start().end().exits(0);
    receiver.end().exits(0);
}

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
