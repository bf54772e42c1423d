//! What ends a tunnel: the programs see a reset, and nothing is left running.

use rustix::process::{Pid, Signal, kill_process};

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
fn a_killed_rdforward_is_a_reset_and_leaves_no_agent() {
    let hosts = Hosts::new("");
    let target = format!("0:127.0.0.1:{}", echo());
    let running = tunnel(&hosts, &["-L", &target]).start();
    let socket = used(port(&running, "here"));
    assert!(!agents(&hosts).is_empty());
    running.kill();
    is_reset(socket);
    running.end().exits(-9);
    eventually("the agents end", || agents(&hosts).is_empty().then_some(()));
}

#[test]
fn a_killed_agent_is_a_reset_and_is_named() {
    let hosts = Hosts::new("");
    let target = format!("0:127.0.0.1:{}", echo());
    let running = tunnel(&hosts, &["-L", &target]).start();
    let socket = used(port(&running, "here"));
    for agent in agents(&hosts) {
        let _ = kill_process(Pid::from_raw(agent).unwrap(), Signal::KILL);
    }
    is_reset(socket);
    let end = running.end();
    assert!(end.exits(255).contains("h1"), "{}", end.exits(255));
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
