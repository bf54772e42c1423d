//! Tickets, and a server with the keys of its clients.

use std::{
    fs,
    io::{Read, Write},
    os::unix::fs::PermissionsExt,
};

use rustix::process::Signal;

use super::{connect, echo, exchange, is_reset, port, rdforward, resets, used};
use crate::support::programs::{Place, Running, eventually, program};

/// Starts an rdforward that listens on the loopback address, and returns it with its ticket.
pub(super) fn listener(options: &[&str]) -> (Running, String) {
    let listener = rdforward(&["--listen", "-H", "127.0.0.1", "--transport", "tcp"])
        .args(options)
        .start();
    let ticket = listener.said("a ticket", |text| {
        let (_, rest) = text.split_once("\n  rdforward -L ")?;
        let (_, ticket) = rest.split_once('\n')?.0.split_once(' ')?;
        Some(ticket.to_owned())
    });
    (listener, ticket)
}

#[test]
fn a_ticket_makes_one_tunnel_to_what_is_allowed() {
    let allowed = echo();
    let (listener, ticket) = listener(&["--allow", &allowed.to_string()]);
    let forward = format!("0:localhost:{allowed}");
    let near = rdforward(&["-L", &forward])
        .env("RDFORWARD_TICKET", &ticket)
        .start();
    let local = port(&near, "here");
    assert_eq!(exchange(connect(local), b"hello"), b"hello");
    // The ticket is used up.
    let second = rdforward(&["-L", &forward, &ticket]).start().end();
    assert!(
        second.exits(255).contains("good for one connection"),
        "{}",
        second.exits(255)
    );
    let socket = used(local);
    listener.kill();
    is_reset(socket);
    near.end().exits(255);
}

#[test]
fn allow_refuses_other_ports_and_remote_listeners() {
    let (far, ticket) = listener(&["--allow", "1"]);
    let forward = format!("0:localhost:{}", echo());
    let near = rdforward(&["-L", &forward, &ticket]).start();
    resets(port(&near, "here"));
    near.said("the reason", |text| text.contains("--allow").then_some(()));
    near.signal(Signal::TERM);
    near.end().exits(143);
    far.end();
    let (far, ticket) = listener(&["--allow", "1"]);
    let near = rdforward(&["-R", "0:localhost:1", &ticket]).start().end();
    assert!(
        near.exits(1).contains("does not allow"),
        "{}",
        near.exits(1)
    );
    far.end();
}

/// Writes a file of keys that only its owner can read. Returns its path.
pub(crate) fn key_file(place: &Place, name: &str, text: &str) -> String {
    let path = place.file(name, text.as_bytes());
    fs::set_permissions(place.path(name), PermissionsExt::from_mode(0o600)).unwrap();
    path
}

/// Returns the address of a server, when it listens.
pub(super) fn address(server: &Running) -> String {
    let port: u16 = server.said("its port", |text| {
        let (_, rest) = text.split_once("listening on port ")?;
        rest.split_once(':')?.0.parse().ok()
    });
    format!("127.0.0.1:{port}")
}

#[test]
fn a_server_serves_clients_with_a_key_until_it_ends() {
    let place = Place::new();
    let key = |name: &str, text: &str| key_file(&place, name, text);
    let keys = key("keys", "alice secret-of-alice-3847\n");
    let allowed = echo();
    let server = rdforward(&["serve", "--listen-port", "0", "--transport", "tcp"])
        .args(["--allow", &allowed.to_string(), "--key-file", &keys])
        .start();
    let at = address(&server);
    let client = |key: &str, port: u16| {
        let forward = format!("0:localhost:{port}");
        rdforward(&["--key-file", key, "-L", &forward, &at]).start()
    };
    let stranger = client(&key("other", "mallory secret-of-mallory-99\n"), allowed).end();
    let said = stranger.exits(255);
    assert!(said.contains("does not know this key"), "{said}");
    let refused = client(&keys, 1);
    resets(port(&refused, "here"));
    refused.signal(Signal::TERM);
    refused.end().exits(143);
    let alice = client(&keys, allowed);
    let local = port(&alice, "here");
    assert_eq!(exchange(connect(local), b"hello"), b"hello");
    let mut socket = used(local);
    server.signal(Signal::TERM);
    assert!(socket.read(&mut [0]).is_err(), "an end and no reset");
    let said = alice.end();
    assert!(
        said.exits(255).contains("the server was stopped"),
        "{}",
        said.exits(255)
    );
    server.end().exits(0);
}

/// A server tries each of the keys that rdpipe did not make, and refuses words that are in every dictionary.
#[test]
fn a_server_finds_keys_that_people_chose_and_refuses_short_ones() {
    let place = Place::new();
    let alice = key_file(&place, "alice", "alice secret-of-alice-3847\n");
    let bob = key_file(&place, "bob", "secret-of-bob-77163\n");
    let mallory = key_file(&place, "mallory", "mallory hunter2\n");
    let both = "alice secret-of-alice-3847\nbob secret-of-bob-77163\n";
    let keys = key_file(&place, "keys", both);
    let serve = |keys: &str| {
        rdforward(&["serve", "--listen-port", "0", "--transport", "tcp"])
            .args(["--allow", &echo().to_string(), "--key-file", keys])
            .start()
    };
    let refused = serve(&mallory).end();
    let said = refused.exits(1);
    assert!(said.contains("line 1: a key of fewer than 16"), "{said}");
    assert!(!said.contains("hunter2"), "{said}");
    let server = serve(&keys);
    let at = address(&server);
    let client = |key: &str| rdforward(&["--key-file", key, "-L", "0:localhost:1", &at]).start();
    for key in [&alice, &bob] {
        port(&client(key), "here");
    }
    let stranger = client(&mallory).end();
    let said = stranger.exits(255);
    for part in ["can be guessed", "does not know this key"] {
        assert!(said.contains(part) && !said.contains("hunter2"), "{said}");
    }
    server.signal(Signal::TERM);
    server.end().exits(0);
}

/// A client asks for what it does not get, again and again.
#[test]
fn a_client_does_not_fill_the_log_of_a_server_and_each_line_names_it() {
    let place = Place::new();
    let alice = key_file(&place, "alice", "alice secret-of-alice-3847\n");
    let both = "alice secret-of-alice-3847\nbob secret-of-bob-77163\n";
    let keys = key_file(&place, "keys", both);
    let server = rdforward(&["serve", "--listen-port", "0", "--transport", "tcp", "-v"])
        .args(["--allow", &echo().to_string(), "--key-file", &keys])
        .start();
    let at = address(&server);
    let tunnel = rdforward(&["--key-file", &alice, "-L", "0:localhost:1", &at]).start();
    let local = port(&tunnel, "here");
    for _ in 0..300 {
        resets(local);
    }
    let log = server.said("that lines were left out", |text| {
        text.contains("of alice were left out")
            .then(|| text.to_owned())
    });
    let refused = log.lines().filter(|line| line.contains("not among those"));
    let refused: Vec<_> = refused.collect();
    assert!(!refused.is_empty() && refused.len() < 200, "{log}");
    let named = |line: &&str| line.contains("alice (127.0.0.1): ");
    assert!(refused.iter().all(named), "{log}");
}

#[test]
fn a_client_whose_key_is_revoked_loses_its_tunnel() {
    let place = Place::new();
    let alice = key_file(&place, "alice", "alice secret-of-alice-3847\n");
    let both = "alice secret-of-alice-3847\nbob secret-of-bob-77163\n";
    let keys = key_file(&place, "keys", both);
    let allowed = echo();
    let server = rdforward(&["serve", "--listen-port", "0", "--transport", "tcp"])
        .args(["--allow", &allowed.to_string(), "--key-file", &keys])
        .start();
    let at = address(&server);
    let forward = format!("0:localhost:{allowed}");
    let client = || rdforward(&["--key-file", &alice, "-L", &forward, &at]).start();
    let tunnel = client();
    let socket = used(port(&tunnel, "here"));
    key_file(&place, "keys", "bob secret-of-bob-77163\n");
    server.said("a revoked client", |text| {
        text.contains("revoked alice").then_some(())
    });
    is_reset(socket);
    let said = tunnel.end();
    let said = said.exits(255);
    assert!(said.contains("the key was revoked"), "{said}");
    let said = client().end();
    let said = said.exits(255);
    assert!(said.contains("does not know this key"), "{said}");
    server.signal(Signal::TERM);
    server.end().exits(0);
}

/// A key file may be that of `rdcp --serve` too.
#[test]
fn a_client_whose_line_limits_it_to_copies_gets_no_tunnel() {
    let place = Place::new();
    let alice = key_file(&place, "alice", "alice secret-of-alice-3847\n");
    let keys = key_file(&place, "keys", "alice secret-of-alice-3847\n");
    let server = rdforward(&["serve", "--listen-port", "0", "--transport", "tcp"])
        .args(["--allow", "1", "--key-file", &keys])
        .start();
    let at = address(&server);
    let client = || rdforward(&["--key-file", &alice, "-L", "0:localhost:1", &at]).start();
    let tunnel = client();
    port(&tunnel, "here");
    let limited = key_file(
        &place,
        "limited",
        "alice secret-of-alice-3847 append /run\n",
    );
    fs::rename(limited, keys).unwrap();
    for refused in [tunnel, client()] {
        let said = refused.end();
        let said = said.exits(255);
        assert!(said.contains("this client gets no tunnel"), "{said}");
    }
    server.signal(Signal::TERM);
    server.end().exits(0);
}

#[test]
fn a_client_that_floods_a_server_leaves_room_for_others() {
    let place = Place::new();
    let alice = key_file(&place, "alice", "alice secret-of-alice-3847\n");
    let bob = key_file(&place, "bob", "bob secret-of-bob-77163\n");
    let both = "alice secret-of-alice-3847\nbob secret-of-bob-77163\n";
    let keys = key_file(&place, "keys", both);
    let allowed = echo();
    // A quarter of 120 descriptors is for the server, and a quarter of the others for each client.
    let most = 23;
    let server = program("/usr/bin/prlimit", "rdforward")
        .args(["--nofile=120:120", env!("CARGO_BIN_EXE_rdforward")])
        .args(["serve", "--listen-port", "0", "--transport", "tcp"])
        .args(["--allow", &allowed.to_string(), "--key-file", &keys])
        .start();
    let at = address(&server);
    let client = |key: &str| {
        let forward = format!("0:localhost:{allowed}");
        rdforward(&["--key-file", key, "-L", &forward, &at]).start()
    };
    // Two tunnels of one client share its places.
    let floods = [client(&alice), client(&alice)];
    let ports = floods.each_ref().map(|flood| port(flood, "here"));
    let kept: Vec<_> = (0..most).map(|number| used(ports[number % 2])).collect();
    for port in ports {
        for _ in 0..50 {
            resets(port);
        }
    }
    floods[0].said("the reason", |text| {
        text.contains("too many connections").then_some(())
    });
    let other = client(&bob);
    let local = port(&other, "here");
    assert_eq!(exchange(connect(local), b"hello"), b"hello");
    drop(kept);
    eventually("a place", || {
        let mut socket = connect(ports[0]);
        let answered = socket
            .write_all(b"x")
            .and_then(|()| socket.read_exact(&mut [0]));
        answered.is_ok().then_some(())
    });
    server.signal(Signal::TERM);
    for client in floods.into_iter().chain([other]) {
        client.end().exits(255);
    }
}
