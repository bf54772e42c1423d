//! Small messages beside bulk data, over a slow link.

use std::{
    io::{self, Read, Write},
    os::unix::net::{UnixListener, UnixStream},
    path::Path,
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
};

use rustix::process::Signal;

use crate::support::programs::{eventually, generous, hosts::Network, skip};

/// The bulk data after which the rate of the link is known: most of a second at 50 Mbit/s.
const KNOWN_AFTER: u64 = 4 << 20;

/// The most bulk data that may arrive between a message and its answer, for the fastest of several: 168 ms at 50
/// Mbit/s. It was 2.4 MB when only bytes limited what is queued, and is a quarter of a megabyte now.
const MOST_BETWEEN: u64 = 1 << 20;

/// Starts a server on a thread, at a UNIX socket. Each of its connections is served by `serve`.
fn server(path: &Path, serve: fn(UnixStream) -> io::Result<()>) {
    let listener = UnixListener::bind(path).unwrap();
    thread::spawn(move || {
        for socket in listener.incoming() {
            // The connection ends with the tunnel.
            let _ = serve(socket.unwrap());
        }
    });
}

/// Limits what a host sends to 50 Mbit/s. Returns false where the system has no traffic control.
fn slow_down(network: &Network, host: &str) -> bool {
    let has_tc = Command::new("tc").arg("-V").output();
    let line =
        "tc qdisc add dev eth0 root tbf rate 50mbit burst 64k latency 50ms && echo slow || true";
    has_tc.is_ok_and(|output| output.status.success()) && network.on(host, line).trim() == "slow"
}

#[test]
fn a_small_message_overtakes_bulk_data_on_a_slow_link() {
    let Some(network) = Network::new(1) else {
        return;
    };
    if !slow_down(&network, "h1") {
        return skip("tc cannot slow the network down");
    }
    let path = |name: &str| network.own(name);
    server(&path("zeros"), |mut socket| {
        loop {
            socket.write_all(&[0; 1 << 12])?;
        }
    });
    server(&path("echo"), |mut socket| {
        let mut byte = [0];
        while socket.read(&mut byte)? > 0 {
            socket.write_all(&byte)?;
        }
        Ok(())
    });
    let forward = |near: &str, far: &str| {
        let [near, far] = [near, far].map(|name| path(name).display().to_string());
        format!("{near}:{far}")
    };
    let rdforward = network
        .rdforward(["-v", "--transport", "tcp"])
        .args([
            "-L",
            &forward("bulk", "zeros"),
            "-L",
            &forward("small", "echo"),
        ])
        .arg("h1")
        .start();
    rdforward.said("the tunnel", |text| {
        text.contains("the tunnel is connected").then_some(())
    });
    let arrived = read_all(&path("bulk"));
    let count = || arrived.load(Ordering::Relaxed);
    eventually("the rate is known", || {
        (count() > KNOWN_AFTER).then_some(())
    });
    let mut small = UnixStream::connect(path("small")).unwrap();
    small.set_read_timeout(Some(generous())).unwrap();
    let mut between: Vec<_> = (0..15)
        .map(|_| {
            let before = count();
            small.write_all(b"x").unwrap();
            small.read_exact(&mut [0]).unwrap();
            count() - before
        })
        .collect();
    between.sort_unstable();
    println!("bulk data before the answers: {between:?}");
    // On a busy machine programs delay some answers. None delays all of them, and a queue does.
    assert!(between[0] < MOST_BETWEEN, "{between:?}");
    rdforward.signal(Signal::TERM);
    rdforward.end().exits(143);
}

/// Connects to a UNIX socket, and counts what it sends, on a thread.
fn read_all(path: &Path) -> Arc<AtomicU64> {
    let mut socket = UnixStream::connect(path).unwrap();
    let arrived = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&arrived);
    thread::spawn(move || {
        let mut buffer = vec![0; 1 << 16];
        while let Ok(count @ 1..) = socket.read(&mut buffer) {
            counted.fetch_add(count as u64, Ordering::Relaxed);
        }
    });
    arrived
}
