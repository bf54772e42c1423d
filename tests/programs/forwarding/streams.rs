//! Tunnels of several streams.

use std::{fs, net::TcpStream};

use rustix::process::Signal;

use super::{
    connect, echo, exchange, is_reset, port, rdforward, tunnel, used,
    without_ssh::{address, key_file, listener},
};
use crate::support::programs::{Place, Running, eventually, local_hosts::Hosts};

/// Waits until a program has said that its tunnel has so many streams.
#[track_caller]
fn has_streams(running: &Running, streams: u32) {
    let said = format!("the tunnel has {streams} streams\n");
    running.said("the streams", |text| text.contains(&said).then_some(()));
}

/// Returns the number of threads of a program that carry streams of a tunnel.
fn tunnel_threads(running: &Running) -> usize {
    let tasks = fs::read_dir(format!("/proc/{}/task", running.id())).unwrap();
    let names = tasks.map(|task| fs::read_to_string(task.unwrap().path().join("comm")));
    names
        .filter(|name| matches!(name, Ok(name) if name == "tunnel\n"))
        .count()
}

/// Opens so many connections, over each of which a byte has gone there and back.
fn many(port: u16, count: usize) -> Vec<TcpStream> {
    (0..count).map(|_| used(port)).collect()
}

#[test]
fn a_tunnel_has_the_streams_that_the_user_asks_for_each_with_a_thread() {
    let hosts = Hosts::new("");
    let forward = format!("0:127.0.0.1:{}", echo());
    for (option, place) in [("-L", "here"), ("-R", "on the other host")] {
        let near = tunnel(&hosts, &["-v", "--streams", "4", option, &forward]).start();
        let local = port(&near, place);
        has_streams(&near, 4);
        // A thread has the name of the one that started it until it has set its own.
        eventually("four threads", || {
            (tunnel_threads(&near) == 4).then_some(())
        });
        let sockets = many(local, 8);
        let bytes: Vec<_> = (0..3 << 20).map(|at: u32| at.to_le_bytes()[1]).collect();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| assert_eq!(exchange(connect(local), &bytes), bytes));
            }
        });
        near.signal(Signal::TERM);
        sockets.into_iter().for_each(is_reset);
        near.end().exits(143);
    }
}

#[test]
fn the_connections_of_a_command_use_all_streams() {
    let hosts = Hosts::new("");
    let talk = format!(
        "exec {{c}}<>/dev/tcp/192.0.2.9/{} && echo hello >&$c && read -u $c x && echo $x",
        echo()
    );
    let connected = hosts.directory().join("connected");
    let wait = format!("until [ -e {} ]; do sleep 0.05; done", connected.display());
    let script = format!("{wait}; for i in 1 2 3 4 5 6; do {talk}; done");
    let options = [
        "--transport",
        "tcp",
        "--addr",
        "h1=192.0.2.9,127.0.0.1",
        "-v",
        "--streams",
        "3",
    ];
    let near = hosts
        .rdforward_run(&options)
        .args(["h1", "--", "bash", "-c", &script])
        .start();
    has_streams(&near, 3);
    fs::write(&connected, "").unwrap();
    let end = near.end();
    end.exits(0);
    assert_eq!(String::from_utf8_lossy(&end.stdout), "hello\n".repeat(6));
}

#[test]
fn a_ticket_and_a_server_lead_to_tunnels_of_several_streams() {
    let allowed = echo();
    let forward = format!("0:localhost:{allowed}");
    let (far, ticket) = listener(&["-v", "--allow", &allowed.to_string()]);
    let near = rdforward(&["-v", "--streams", "3", "-L", &forward, &ticket]).start();
    let local = port(&near, "here");
    has_streams(&near, 3);
    has_streams(&far, 3);
    let sockets = many(local, 6);
    far.kill();
    sockets.into_iter().for_each(is_reset);
    near.end().exits(255);

    let place = Place::new();
    let keys = key_file(&place, "keys", "alice secret-of-alice-3847\n");
    // A client that chooses no number has one stream where its host has few processors.
    for (of_server, of_client, streams) in [("4", "3", 3), ("2", "4", 2)] {
        let server = rdforward(&["serve", "-v", "--listen-port", "0", "--transport", "tcp"])
            .args([
                "--allow",
                &allowed.to_string(),
                "--key-file",
                &keys,
                "--streams",
                of_server,
            ])
            .start();
        let at = address(&server);
        let near = rdforward(&[
            "-v",
            "--key-file",
            &keys,
            "--streams",
            of_client,
            "-L",
            &forward,
            &at,
        ])
        .start();
        let local = port(&near, "here");
        has_streams(&near, streams);
        has_streams(&server, streams);
        let sockets = many(local, 6);
        server.signal(Signal::TERM);
        sockets.into_iter().for_each(is_reset);
        let said = near.end();
        assert!(
            said.exits(255).contains("the server was stopped"),
            "{}",
            said.exits(255)
        );
        let said = server.end();
        let tunnels = said.exits(0).matches("(127.0.0.1): connected\n").count();
        assert_eq!(tunnels, 1, "{}", said.exits(0));
    }
}

/// Each end gives the reason over all streams, so that the other end names it whichever it receives first.
#[test]
fn the_reason_of_an_end_is_that_of_every_stream() {
    let place = Place::new();
    let keys = key_file(&place, "keys", "alice secret-of-alice-3847\n");
    let allowed = echo();
    let server = rdforward(&[
        "serve",
        "--listen-port",
        "0",
        "--transport",
        "tcp",
        "--streams",
        "4",
    ])
    .args(["--allow", &allowed.to_string(), "--key-file", &keys])
    .start();
    let at = address(&server);
    let forward = format!("0:localhost:{allowed}");
    for _ in 0..5 {
        let near = rdforward(&[
            "-v",
            "--key-file",
            &keys,
            "--streams",
            "4",
            "-L",
            &forward,
            &at,
        ])
        .start();
        let _sockets = many(port(&near, "here"), 8);
        has_streams(&near, 4);
        near.signal(Signal::TERM);
        near.end().exits(143);
    }
    // A client may be interrupted before the server has all of its streams, and says so on a line of its own.
    let is_end =
        |line: &&str| line.contains("rdforward was interrupted") && !line.contains(" and no more");
    let ends = |text: &str| text.lines().filter(is_end).count();
    server.said("the ends of all clients", |text| {
        (ends(text) >= 5).then_some(())
    });
    server.signal(Signal::TERM);
    let said = server.end();
    assert_eq!(ends(said.exits(0)), 5, "{}", said.exits(0));
}
