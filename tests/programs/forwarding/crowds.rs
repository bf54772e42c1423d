//! Many connections: idle ones, short ones, and one that is never read, while others go on.

use std::{
    fs,
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    thread,
    time::Duration,
};

use rustix::process::{Resource, Rlimit, Signal, getrlimit, setrlimit};
use socket2::SockRef;

use super::{
    ends::agents,
    tunnel::{connect, echo, exchange, port, tunnel, used},
};
use crate::support::{
    is_full,
    process::status_kib,
    programs::{eventually, free_port, local_hosts::Hosts},
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
    let exchanged = || {
        for _ in 0..short {
            let mut socket = used(local);
            socket.write_all(b"y").unwrap();
            socket.read_exact(&mut [0]).unwrap();
        }
    };
    exchanged();
    let before = at_rest();
    let stuck = fill(unread_port);
    let crowd: Vec<_> = (0..idle).map(|_| used(local)).collect();
    let bytes: Vec<u8> = (0..20 << 20).map(|at: u32| at.to_le_bytes()[1]).collect();
    assert!(exchange(connect(local), &bytes) == bytes);
    let during = ends();
    exchanged();
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
