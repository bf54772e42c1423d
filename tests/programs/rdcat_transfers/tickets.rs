//! The promises of two rdcat processes that are joined by a ticket.

use std::{
    fs::{self, File},
    io::{BufRead, BufReader, Read, Write},
    os::unix::fs::PermissionsExt,
    process::Stdio,
};

use data_encoding::BASE32_NOPAD;
use rustix::process::Signal;

use crate::support::programs::{
    Place, Running, eventually, held_bytes,
    hosts::Terminal,
    rdcat::{check, exchange, listener, pair, rdcat, ticket, write},
    soon,
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

#[test]
fn two_ends_that_only_send_or_only_receive_are_refused() {
    for (option, what) in [("--send", "send"), ("--recv", "receive")] {
        let ends = pair(option, option).map(Running::end);
        for end in ends {
            let text = end.exits(255);
            assert!(
                text.contains(&format!("both ends are set to {what}")),
                "{text}"
            );
        }
    }
}

/// Returns `ticket` with another key and a valid checksum.
fn forged(ticket: &str) -> String {
    let encoded = ticket[4..].to_uppercase();
    let mut bytes = BASE32_NOPAD.decode(encoded.as_bytes()).unwrap();
    let key = bytes.len() - 4 - 32;
    bytes[key] ^= 1;
    let body = bytes.len() - 4;
    let sum = rdpipe_digest::xxh3_64(&bytes[..body]).to_be_bytes();
    bytes[body..].copy_from_slice(&sum[..4]);
    format!("rdt1{}", BASE32_NOPAD.encode(&bytes).to_lowercase())
}

#[test]
fn a_wrong_ticket_is_refused_and_the_right_one_stays_valid() {
    let listener = listener("").start();
    let ticket = ticket(&listener);
    let wrong = forged(&ticket);
    rdcat("")
        .arg(&wrong)
        .start()
        .end()
        .fails(255, &["the keys do not match", "127.0.0.1"]);
    // A damaged ticket is refused before rdcat connects.
    let mistyped = if ticket.ends_with('a') { "b" } else { "a" };
    let mistyped = format!("{}{mistyped}", &ticket[..ticket.len() - 1]);
    for broken in [
        &mistyped,
        &ticket[..ticket.len() - 1],
        &ticket[..20],
        &ticket[4..],
    ] {
        let end = rdcat("").arg(broken).start().end();
        let words = "this looks like a ticket, but a character is wrong or missing";
        end.fails(2, &[words]);
        assert!(!end.stderr.contains(broken), "{}", end.stderr);
    }
    assert!(listener.runs());
    // A ticket is accepted in capitals, and with the white space that copying adds.
    let pasted = format!(" {}\n", ticket.to_uppercase());
    rdcat("").arg(pasted).start().end().exits(0);
    listener.end().exits(0);
}

#[test]
fn a_ticket_is_valid_for_one_connection() {
    let mut listener = listener("").stdin(Stdio::piped()).start();
    let ticket = ticket(&listener);
    let mut first = rdcat("").arg(&ticket).stdin(Stdio::piped()).start_raw();
    let mut stdin = listener.stdin();
    stdin.write_all(b"x").unwrap();
    first.take_stdout().read_exact(&mut [0]).unwrap();
    let words = [
        "no rdcat -l waits at port ",
        "127.0.0.1: Connection refused",
        "good for one connection",
    ];
    rdcat("").arg(&ticket).start().end().fails(255, &words);
    // The refused connection does not disturb the first one.
    assert!(listener.runs() && first.runs());
    drop((stdin, first.stdin()));
    first.end().exits(0);
    listener.end().exits(0);
    rdcat("").arg(&ticket).start().end().fails(255, &words);
}

#[test]
fn of_many_connections_at_once_one_is_served() {
    let listener = listener("").start();
    let ticket = ticket(&listener);
    let all: Vec<_> = (0..6).map(|_| rdcat("").arg(&ticket).start()).collect();
    let codes: Vec<_> = all.into_iter().map(|rdcat| rdcat.end().code()).collect();
    assert_eq!(
        codes.iter().filter(|code| **code == 0).count(),
        1,
        "{codes:?}"
    );
    listener.end().exits(0);
}

#[test]
fn a_ticket_holds_the_address_that_is_given() {
    let wrong = listener("-H 127.0.0.9").start();
    // No program listens on 127.0.0.9 at this port.
    let end = rdcat("").arg(ticket(&wrong)).start().end();
    end.fails(255, &["127.0.0.9: Connection refused"]);
    let right = rdcat("-l -H 127.0.0.1").start();
    rdcat("").arg(ticket(&right)).start().end().exits(0);
    right.end().exits(0);
    // Without -H, rdcat listens on all addresses of this host, and the ticket holds all of them.
    let all = rdcat("-l").start();
    rdcat("").arg(ticket(&all)).start().end().exits(0);
    all.end().exits(0);
}

/// Checks that neither the arguments nor the environment of a running process contain the ticket.
#[track_caller]
fn assert_hidden(process: &Running, ticket: &str) {
    for what in ["cmdline", "environ"] {
        let bytes = fs::read(format!("/proc/{}/{what}", process.id())).unwrap();
        let shown = String::from_utf8_lossy(&bytes).to_lowercase();
        assert!(!shown.contains(&ticket[..20]), "{what}: {shown}");
    }
}

#[test]
fn a_ticket_is_hidden_from_processes_and_messages() {
    let place = Place::new();
    for way in ["argument", "environment", "file"] {
        let mut listener = listener("-v").stdin(Stdio::piped()).start();
        let ticket = ticket(&listener);
        let setup = match way {
            "argument" => rdcat("-v").arg(&ticket),
            "environment" => rdcat("-v").env("RDCAT_TICKET", &ticket),
            _ => {
                let file = place.file("ticket", format!("{ticket}\nand more\n").as_bytes());
                fs::set_permissions(&file, PermissionsExt::from_mode(0o600)).unwrap();
                rdcat("-v --ticket-file").arg(file)
            }
        };
        let rdcat = setup.env("RUST_LOG", "trace").start();
        listener.said("that a peer connected", |text| {
            text.contains(" connected from").then_some(())
        });
        assert_hidden(&rdcat, &ticket);
        assert_hidden(&listener, &ticket);
        drop(listener.stdin());
        let (rdcat, listener) = (rdcat.end(), listener.end());
        let said = rdcat.exits(0);
        assert!(!said.contains(&ticket), "{said}");
        assert_eq!(listener.exits(0).matches(&ticket).count(), 1);
    }
}

#[test]
fn a_ticket_file_that_another_user_can_read_or_change_is_refused() {
    let listener = listener("").start();
    let ticket = ticket(&listener);
    let place = Place::new();
    let file = place.file("ticket", ticket.as_bytes());
    for (mode, others) in [(0o620, "write"), (0o644, "read")] {
        fs::set_permissions(&file, PermissionsExt::from_mode(mode)).unwrap();
        let end = rdcat("--ticket-file").arg(&file).start().end();
        let why = format!("others can {others} it; chmod go= ");
        end.fails(2, &["the ticket file", &why]);
        assert!(!end.stderr.contains(&ticket));
    }
}

#[test]
fn a_ticket_in_the_wrong_place_is_not_printed() {
    let listener = listener("").start();
    let ticket = ticket(&listener);
    let place = Place::new();
    let short = place.file("short", &ticket.as_bytes()[..40]);
    fs::set_permissions(&short, PermissionsExt::from_mode(0o600)).unwrap();
    for setup in [
        rdcat("h1:x").arg(&ticket),
        rdcat("-l").arg(&ticket),
        rdcat("--ticket-file").arg(short),
        rdcat("--ticket-file /no/such/file"),
        rdcat("--ticket-file /dev/zero"),
        rdcat("").env("RDCAT_TICKET", &ticket[..40]),
        rdcat("").env("RDCAT_TICKET", ""),
        rdcat("-l -H some.host"),
        rdcat(format!("rdk1{}", &ticket[4..])),
    ] {
        let end = setup.start().end();
        assert!(!end.exits(2).contains(&ticket[4..20]), "{}", end.stderr);
    }
}
