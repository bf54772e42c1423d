//! The network is cut at random moments, and a second run completes.

use std::time::{Duration, Instant};

use super::{
    compare::assert_no_partial_file,
    deaths::{WAYS, hosts, is_empty},
};
use crate::support::is_full;
use crate::support::limits::patience;
use crate::support::programs::Random;
use crate::support::programs::hosts::{GONE, Network, Outcome, Process};

/// After this much silence, the network counts as cut.
const SILENCE: Duration = Duration::from_secs(2);

#[test]
fn a_cut_network_leaves_no_partial_file_and_no_process() {
    let Some(network) = hosts() else {
        return;
    };
    let mut random = Random::new(0xC07);
    let rounds = if is_full() { 12 } else { 2 };
    let timeout = patience(SILENCE);
    let seconds = timeout.as_secs().to_string();
    for round in 0..rounds {
        // The first way is the one between two other hosts.
        let way = WAYS[round % WAYS.len()];
        let host = if round % 2 == 0 { "h1" } else { "h2" };
        let host = if round % WAYS.len() == 0 {
            host
        } else {
            way.host()
        };
        let mut since = Instant::now();
        let options = ["--timeout", &seconds];
        let end = way.spoilt(&network, &mut random, &options, |_| {
            since = Instant::now();
            network.on(host, "ip link set eth0 down");
        });
        // sshd goes on waiting for a client that it cannot reach; rdcp has no influence on that.
        network.assert_empty_but(since + timeout, GONE, Process::is_sshd);
        if end.code() != 0 {
            end.tells(255, &[host]);
        }
        assert_no_partial_file(&way.original(&network), &way.copy(&network));
        network.on(host, "ip link set eth0 up");
        end_sessions(&network);
        way.completes(&network);
    }
}

#[test]
fn a_cut_between_two_hosts_fails_the_copy_and_names_them() {
    let Some(network) = hosts() else {
        return;
    };
    let mut random = Random::new(0xB1);
    let timeout = patience(SILENCE);
    let seconds = timeout.as_secs().to_string();
    let way = WAYS[0];
    // The controller still reaches both.
    let routes = |what: &str| {
        network.on("h1", &format!("ip route {what} blackhole 10.77.0.2/32"));
        network.on("h2", &format!("ip route {what} blackhole 10.77.0.1/32"));
    };
    let mut since = Instant::now();
    let options = ["--timeout", &seconds];
    let end = way.spoilt(&network, &mut random, &options, |_| {
        since = Instant::now();
        routes("add");
    });
    network.assert_empty(since + timeout, GONE);
    if end.code() != 0 {
        end.tells(255, &["h1", "h2"]);
    }
    routes("del");
    way.completes(&network);
}

/// Kills the sessions of sshd that wait for a client that is gone.
fn end_sessions(network: &Network) {
    for host in network.hosts() {
        for process in network.processes(&host) {
            process.kill();
        }
    }
    is_empty(network);
}
