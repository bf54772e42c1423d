//! A capture of everything that crosses between two programs holds nothing of contents and forwarded bytes.

use std::{
    fs,
    io::{Read, Write},
    net::{Shutdown, TcpListener},
    thread,
};

use rustix::process::Signal;

use super::{
    ALWAYS, NEVER, local,
    on_path::{Tape, markers, recording},
    warns,
};
use crate::{
    forwarding::{self, rdforward, without_ssh::key_file},
    support::programs::{
        Place, free_port,
        rdcat::{rdcat, ticket},
        receiver, sender,
    },
};

/// Checks that the tape of an encrypted transfer holds no marker, and that of one without encryption nearly all of them,
/// so the test measures something: a frame may end within a marker.
#[track_caller]
fn assert_hidden(tape: &Tape, option: &str, sets: &[(&str, &[String])]) {
    for (what, markers) in sets {
        let found = tape.count(markers);
        let expected = if option == NEVER { markers.len() } else { 0 };
        let is_near = found == expected || (expected > 0 && found + 10 > expected);
        assert!(is_near, "{what}, {option}: {found} of {}", markers.len());
    }
}

#[test]
fn what_rdsend_sends_crosses_unreadable() {
    let markers = markers(1000);
    for option in [ALWAYS, NEVER] {
        let place = Place::new();
        let file = place.file("file", markers.join(" ").as_bytes());
        let receiver = receiver(format!("-v {option} -o {}", place.old())).start();
        let (relay, tape) = recording(local(receiver.port()), None);
        let sender = sender(relay.port(), format!("-v {option} -i {file}"));
        for end in [sender.start().end(), receiver.end()] {
            let said = end.exits(0);
            assert!(!said.contains("marker-"), "{said}");
        }
        assert_eq!(place.read("old"), place.read("file"));
        assert_hidden(&tape, option, &[("contents", &markers)]);
    }
}

#[test]
fn what_a_tunnel_forwards_crosses_unreadable() {
    let markers = markers(2000);
    let (there, back) = markers.split_at(1000);
    let answer = back.join(" ");
    let target = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = target.local_addr().unwrap().port();
    thread::spawn(move || {
        for socket in target.incoming() {
            let mut socket = socket.unwrap();
            let _ = socket.read_to_end(&mut Vec::new());
            let _ = socket.write_all(answer.as_bytes());
            let _ = socket.shutdown(Shutdown::Write);
        }
    });
    for option in [ALWAYS, NEVER] {
        let words: Vec<_> = option.split(' ').collect();
        let place = Place::new();
        let keys = key_file(&place, "keys", "alice secret-of-alice-3847\n");
        let server = rdforward(&["serve", "--listen-port", "0", "--transport", "tcp"]);
        let server = server.args(["--allow", &port.to_string(), "--key-file", &keys]);
        let server = server.args(&words).start();
        let (relay, tape) = recording(local(server.port()), None);
        let near = rdforward(&["--key-file", &keys, "-L", &format!("0:localhost:{port}")]);
        let near = near.args(&words).arg(format!("127.0.0.1:{}", relay.port()));
        let near = near.start();
        let socket = forwarding::connect(forwarding::port(&near, "here"));
        let read = forwarding::exchange(socket, there.join(" ").as_bytes());
        assert_eq!(read, back.join(" ").as_bytes());
        near.signal(Signal::TERM);
        near.end().exits(143);
        assert_hidden(&tape, option, &[("there", there), ("back", back)]);
        server.signal(Signal::TERM);
        assert_eq!(warns(&server.end()), option == NEVER);
    }
}

/// The ticket leads to another address of this machine, where the relay listens at the same port.
#[test]
fn what_a_pair_of_rdcat_exchanges_crosses_unreadable() {
    let markers = markers(2000);
    let (there, back) = markers.split_at(1000);
    for option in [ALWAYS, NEVER] {
        let place = Place::new();
        let input = |name: &str, markers: &[String]| {
            place.file(name, markers.join(" ").as_bytes());
            fs::File::open(place.path(name)).unwrap()
        };
        let port = free_port();
        let listening = format!("--listen --bind 127.0.0.1 -p {port} -H 127.0.0.2 {option}");
        let listener = rdcat(listening).stdin(input("back", back)).start();
        let (relay, tape) = recording(local(port), Some(([127, 0, 0, 2], port).into()));
        let dialer = rdcat(option).arg(ticket(&listener));
        let dialer = dialer.stdin(input("there", there)).start().end();
        let listener = listener.end();
        drop(relay);
        dialer.exits(0);
        listener.exits(0);
        assert_eq!(dialer.stdout, back.join(" ").as_bytes());
        assert_eq!(listener.stdout, there.join(" ").as_bytes());
        assert_hidden(&tape, option, &[("there", there), ("back", back)]);
        for end in [dialer, listener] {
            assert_eq!(warns(&end), option == NEVER);
        }
    }
}
