//! Many connections: idle ones, short ones, and one that is never read, while others go on; and small messages beside
//! bulk data, over a slow link.

use std::{
    fs,
    io::{self, Read, Write},
    net::{TcpListener, TcpStream},
    os::unix::net::{UnixListener, UnixStream},
    path::Path,
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use rustix::process::{Resource, Rlimit, Signal, getrlimit, setrlimit};
use socket2::SockRef;

use super::{connect, echo, ends::agents, exchange, port, tunnel, used};
use crate::support::{
    is_full,
    process::status_kib,
    programs::{eventually, free_port, generous, hosts::Network, local_hosts::Hosts, skip},
};

/// What a process has in use.
#[derive(Debug, Clone, Copy)]
struct InUse {
    descriptors: usize,
    kib: u64,
}

impl InUse {
    fn of(process: i32) -> Self {
        Self {
            descriptors: fs::read_dir(format!("/proc/{process}/fd")).unwrap().count(),
            kib: status_kib(&process.to_string(), "VmRSS:"),
        }
    }
}

/// A server that accepts connections and never reads them. Returns its port.
fn never_reading() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        let _kept: Vec<_> = listener.incoming().collect();
    });
    port
}

/// Writes until the tunnel takes no more.
fn fill(port: u16) -> TcpStream {
    let mut socket = connect(port);
    socket
        .set_write_timeout(Some(Duration::from_secs(1)))
        .unwrap();
    let block = vec![0; 1 << 16];
    while socket.write_all(&block).is_ok() {}
    socket
}

#[test]
fn many_connections_leave_no_descriptor_and_no_memory() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        ..limit
    };
    setrlimit(Resource::Nofile, raised).unwrap();
    let (idle, short) = if is_full() {
        (1000, 10_000)
    } else {
        (300, 2000)
    };
    // The agent has to raise its own limit: it needs more descriptors than these.
    let hosts = Hosts::new("ulimit -Sn 200");
    let target = format!("0:127.0.0.1:{}", echo());
    let unread_port = free_port();
    let unread = format!("{unread_port}:127.0.0.1:{}", never_reading());
    let running = tunnel(&hosts, &["-v", "-L", &target, "-L", &unread]).start();
    let local = port(&running, "here");
    running.said("the tunnel", |text| {
        text.contains("the tunnel is connected").then_some(())
    });
    let ends = || {
        let mut ends = agents(&hosts);
        ends.push(i32::try_from(running.id()).unwrap());
        ends.sort_unstable();
        ends.into_iter().map(InUse::of).collect::<Vec<_>>()
    };
    let without_connections = ends();
    let at_rest = || {
        eventually("all connections to be closed", || {
            let now = ends();
            assert_eq!(now.len(), without_connections.len(), "a process has ended");
            let are_closed = now
                .iter()
                .zip(&without_connections)
                .all(|(now, then)| now.descriptors <= then.descriptors);
            are_closed.then_some(now)
        })
    };
    let exchanged = |count| {
        for _ in 0..count {
            let mut socket = used(local);
            socket.write_all(b"y").unwrap();
            socket.read_exact(&mut [0]).unwrap();
        }
    };
    exchanged(short / 4);
    let before = at_rest();
    let stuck = fill(unread_port);
    let crowd: Vec<_> = (0..idle).map(|_| used(local)).collect();
    let bytes: Vec<u8> = (0..20 << 20).map(|at: u32| at.to_le_bytes()[1]).collect();
    assert!(exchange(connect(local), &bytes) == bytes);
    let during = ends();
    exchanged(short);
    for mut socket in &crowd {
        socket.write_all(b"z").unwrap();
    }
    for mut socket in &crowd {
        socket.read_exact(&mut [0]).unwrap();
    }
    // Its server never reads the bytes that wait, so only a reset ends the connection.
    SockRef::from(&stuck)
        .set_linger(Some(Duration::ZERO))
        .unwrap();
    drop((crowd, stuck));
    let after = at_rest();
    println!("before: {before:?}\nwith {idle} idle ones: {during:?}\nafter: {after:?}");
    for (after, before) in after.iter().zip(&before) {
        assert!(after.kib <= before.kib + 16 * 1024, "{after:?} {before:?}");
    }
    running.signal(Signal::TERM);
    running.end().exits(143);
}

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
