//! How a tunnel ends by a signal, or does not begin.

use rustix::process::Signal;

use super::tunnel::{echo, is_reset, port, tunnel, used};
use crate::support::programs::{eventually, local_hosts::Hosts, program};

/// Returns the processes of agents whose working directory is that of this host.
pub(super) fn agents(hosts: &Hosts) -> Vec<i32> {
    let directory = hosts.directory().join("h1");
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let ids = processes.filter_map(|process| process.file_name().to_str()?.parse().ok());
    ids.filter(|id: &i32| {
        std::fs::read_link(format!("/proc/{id}/cwd")).is_ok_and(|cwd| cwd == directory)
    })
    .collect()
}

#[test]
fn a_signal_resets_connections() {
    let hosts = Hosts::new("");
    let target = format!("0:127.0.0.1:{}", echo());
    let running = tunnel(&hosts, &["-L", &target]).start();
    let socket = used(port(&running, "here"));
    running.signal(Signal::TERM);
    is_reset(socket);
    running.end().exits(143);
    eventually("the agents end", || agents(&hosts).is_empty().then_some(()));
}

#[test]
fn a_host_that_cannot_be_reached_is_named() {
    let end = program(env!("CARGO_BIN_EXE_rdforward"), "rdforward")
        .args(["--rsh", "/bin/false", "-L", "0:127.0.0.1:1", "missing"])
        .start()
        .end();
    assert!(end.exits(255).contains("missing"), "{}", end.exits(255));
}
