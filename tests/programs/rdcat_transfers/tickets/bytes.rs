//! Two rdcat processes pass every byte unchanged: in both directions at once, in turns, or in one direction only.

use std::{
    io::{BufRead, BufReader, Read, Write},
    process::Stdio,
};

use crate::support::programs::{
    held_bytes,
    hosts::Terminal,
    rdcat::{check, exchange, listener, pair, rdcat, ticket, write},
};

#[test]
fn a_gigabyte_passes_in_both_directions_at_once() {
    let said = exchange(pair("-v", "-v"), [1 << 30, 1 << 30]);
    for said in said {
        assert!(said.contains(" over TCP ("), "{said}");
        assert!(said.contains(&format!("Bytes {}\n", 2_u64 << 30)), "{said}");
        assert!(said.trim_end().ends_with(" GB/s"), "{said}");
    }
}

#[test]
fn lengths_around_the_chunk_size_arrive_whole() {
    for bytes in [
        [0, 0],
        [1, 0],
        [0, 1],
        [512 << 10, (512 << 10) + 1],
        [4095, 12_000_001],
    ] {
        exchange(pair("-q", "--chunk 4K"), bytes);
    }
}

#[test]
fn a_ticket_is_one_word_and_stdout_is_left_alone() {
    let listener = listener("").start();
    let ticket = ticket(&listener);
    assert!(ticket.starts_with("rdt1") && ticket.bytes().all(|c| c.is_ascii_alphanumeric()));
    rdcat("").arg(ticket).start().end().exits(0);
    let end = listener.end();
    let lines: Vec<_> = end.exits(0).lines().collect();
    assert!(
        lines[0].ends_with(": to connect, type on the other host:"),
        "{lines:?}"
    );
    assert!(
        lines[1].starts_with("  rdcat rdt1") && lines.len() == 2,
        "{lines:?}"
    );
    assert!(end.stdout.is_empty());
}

#[test]
fn json_shows_the_ticket() {
    let listener = rdcat("-l --bind 127.0.0.1 --json").start();
    let event = listener.said("an event", |text| {
        serde_json::from_str::<serde_json::Value>(text.lines().next()?).ok()
    });
    assert_eq!(event["event"], "listening");
    let ticket = event["ticket"].as_str().unwrap();
    rdcat("--json").arg(ticket).start().end().exits(0);
    assert!(listener.end().exits(0).contains("\"event\":\"end\""));
}

/// One direction ends with an end of file at the peer, and the other direction goes on.
#[test]
fn one_direction_ends_and_the_other_goes_on() {
    let [mut a, mut b] = pair("", "");
    let (mut out_a, mut out_b) = (a.take_stdout(), b.take_stdout());
    let mut stdin = b.stdin();
    a.stdin().write_all(b"all there is").unwrap();
    let mut all = String::new();
    out_b.read_to_string(&mut all).unwrap();
    assert_eq!(all, "all there is");
    assert!(a.runs() && b.runs());
    for line in ["later\n", "and later still\n"] {
        stdin.write_all(line.as_bytes()).unwrap();
        let mut found = vec![0; line.len()];
        out_a.read_exact(&mut found).unwrap();
        assert_eq!(found, line.as_bytes());
    }
    let more = write(stdin, 3, 20 << 20);
    assert_eq!(check(out_a, 3).join().unwrap(), 20 << 20);
    more.join().unwrap();
    assert_eq!((a.end().exits(0), b.end().exits(0)).1, "");
}

#[test]
fn each_line_of_a_conversation_arrives_at_once() {
    let [mut a, mut b] = pair("", "");
    let mut ends = [(a.stdin(), b.take_stdout()), (b.stdin(), a.take_stdout())];
    for turn in 0..100 {
        for (stdin, stdout) in &mut ends {
            let word = format!("word {turn}\n");
            stdin.write_all(word.as_bytes()).unwrap();
            let mut found = vec![0; word.len()];
            stdout.read_exact(&mut found).unwrap();
            assert_eq!(found, word.as_bytes());
        }
    }
    drop(ends.map(|(stdin, _)| stdin));
    a.end().exits(0);
    b.end().exits(0);
}

#[test]
fn a_terminal_is_an_input_like_any_other() {
    let mut terminal = Terminal::new();
    let mut listener = listener("").stdin(terminal.inside()).start_raw();
    let mut peer = rdcat("")
        .arg(ticket(&listener))
        .stdin(Stdio::piped())
        .start_raw();
    let mut out = BufReader::new(peer.take_stdout());
    for word in ["hello\n", "are you there?\n"] {
        terminal.types(word);
        let mut line = String::new();
        out.read_line(&mut line).unwrap();
        assert_eq!(line, word);
    }
    peer.stdin().write_all(b"yes\n").unwrap();
    let mut answer = String::new();
    listener.take_stdout().read_to_string(&mut answer).unwrap();
    assert_eq!(answer, "yes\n");
    // ^D
    terminal.types("\x04");
    listener.end().exits(0);
    peer.end().exits(0);
}

#[test]
fn a_one_way_transfer_leaves_the_unused_stdin_unread() {
    for (listening, dialing, sender_listens) in [
        ("--send", "", true),
        ("--recv", "", false),
        ("", "--send", false),
        ("", "--recv", true),
        ("--send", "--recv", true),
    ] {
        let [a, b] = pair(listening, dialing);
        let (mut from, mut to) = if sender_listens { (a, b) } else { (b, a) };
        let mut unread = to.stdin();
        let _ = unread.write_all(b"for another shell");
        let waiting = write(from.stdin(), 4, 3_000_001);
        assert_eq!(check(to.take_stdout(), 4).join().unwrap(), 3_000_001);
        waiting.join().unwrap();
        assert_eq!(held_bytes(&unread), 17, "{listening} {dialing}");
        from.end().exits(0);
        to.end().exits(0);
    }
}
