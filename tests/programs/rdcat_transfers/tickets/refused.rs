//! Tickets that are refused: wrong, damaged or used ones, and options that do not fit together.

use std::{
    io::{Read, Write},
    process::Stdio,
};

use data_encoding::BASE32_NOPAD;

use crate::support::programs::{
    Running,
    rdcat::{listener, pair, rdcat, ticket},
};

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
    let sum = twox_hash::XxHash3_64::oneshot(&bytes[..body]).to_be_bytes();
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
