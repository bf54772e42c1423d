//! Tunnels between two guests. Debian's own servers and clients, unmodified, pass through them with `RDPIPE_FULL=1`;
//! `tests/programs/forwarded_programs/mod.rs` lists the settings.

use std::{
    io::{Read, Write},
    net::{Shutdown, TcpListener, TcpStream},
    thread,
};

use crate::{
    programs::{self, Rig, Way},
    support::programs::{generous, hosts::Network, random_bytes},
};

/// A request and its end arrive at a target behind the far guest, and the answer and its end come back.
#[test]
fn a_connection_is_carried_over_rdma() {
    let Some(network) = Network::of_guests() else {
        return;
    };
    // This machine, in the network of the guests, is client and target.
    let target = TcpListener::bind("10.77.0.100:0").expect("a free port");
    let port = target.local_addr().expect("it is bound").port();
    let line = format!(
        "exec rdforward -v --ssh-opt '-F {} -S none' --transport rdma --timeout 120 -L 10.77.0.1:9000:10.77.0.100:{port} h2",
        network.own("ssh_config").display()
    );
    let tunnel = network.ssh("h1", &line).start();
    tunnel.said("where it listens", |text| {
        text.contains("listening at").then_some(())
    });
    let answering = thread::spawn(move || {
        let (mut connection, peer) = target.accept().expect("a connection");
        let mut request = Vec::new();
        connection.read_to_end(&mut request).expect("an end");
        request.reverse();
        connection.write_all(&request).expect("it is read");
        peer.ip().to_string()
    });
    let mut request = random_bytes(2_000_001);
    let mut connection = TcpStream::connect("10.77.0.1:9000").expect("it listens");
    connection
        .set_read_timeout(Some(generous()))
        .expect("a time above zero");
    connection.write_all(&request).expect("it is read");
    connection.shutdown(Shutdown::Write).expect("it is open");
    let mut answer = Vec::new();
    connection.read_to_end(&mut answer).expect("an end");
    request.reverse();
    assert!(answer == request);
    assert_eq!(answering.join().expect("it has answered"), "10.77.0.2");
    let stop = network.ssh("h1", "kill $(pidof rdforward)").start();
    stop.end().exits(0);
    tunnel.end();
}

/// Makes a test of a body for a way.
macro_rules! over_rdma {
    ($($test:ident: $body:ident, $way:ident;)+) => {
        $(
            #[test]
            fn $test() {
                if let Some(rig) = Rig::of_guests() {
                    programs::$body(&rig, Way::$way);
                }
            }
        )+
    };
}

over_rdma! {
    postgres_through_a_listener: postgres, Listener;
    postgres_by_run: postgres, Run;
    redis_through_a_listener: redis, Listener;
    redis_by_run: redis, Run;
    nginx_through_a_listener: nginx, Listener;
    many_connections_through_a_listener: a_thousand_connections, Listener;
    many_connections_by_run: a_thousand_connections, Run;
    iperf_through_a_listener: iperf, Listener;
    rsync_through_a_listener: rsync, Listener;
    rsync_by_run: rsync, Run;
    git_through_a_listener: git, Listener;
    git_by_run: git, Run;
    curl_through_socks: curl, Socks;
}
