//! How a tunnel ends by a signal, or does not begin.

use std::net::TcpListener;

use rustix::process::{Pid, Signal, kill_process};

use super::tunnel::{echo, is_reset, port, tunnel, used};
use crate::support::programs::{Running, eventually, local_hosts::Hosts, program};

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

/// The number of tunnels whose agent is killed. The end of rdforward and that of its other threads race each other.
const KILLED_AGENTS: usize = 12;

#[test]
fn the_path_of_a_unix_socket_is_removed_however_the_tunnel_ends() {
    let hosts = Hosts::new("");
    let path = hosts.directory().join("socket");
    let forward = format!("{}:127.0.0.1:1", path.display());
    let start = |option: &str| {
        let running = tunnel(&hosts, &["-v", option, &forward]).start();
        running.said("the tunnel", |text| {
            text.contains("the tunnel is connected").then_some(())
        });
        eventually("the socket", || path.exists().then_some(()));
        running
    };
    for _ in 0..KILLED_AGENTS {
        let running = start("-L");
        kill_agents(&hosts);
        running.end().exits(255);
        assert!(!path.exists(), "the agent was killed");
    }
    let running = start("-L");
    running.signal(Signal::TERM);
    running.end().exits(143);
    assert!(!path.exists(), "a signal");
    for option in ["-L", "-R"] {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let second = format!("{}:127.0.0.1:1", taken.local_addr().unwrap().port());
        let running = tunnel(&hosts, &[option, &forward, option, &second]).start();
        assert!(running.end().exits(1).contains("cannot listen"));
        eventually("the path to go", || (!path.exists()).then_some(()));
    }
    let ends: [fn(&Running); 2] = [
        |running| _ = running.signal(Signal::TERM),
        |running| _ = running.kill(),
    ];
    for end in ends {
        let running = start("-R");
        end(&running);
        running.end();
        eventually("the path to go", || (!path.exists()).then_some(()));
    }
}

/// Kills the processes of the agent, the worker first.
fn kill_agents(hosts: &Hosts) {
    for id in agents(hosts).into_iter().rev() {
        let pid = Pid::from_raw(id).expect("the number of a process");
        // A worker ends by itself without its guard.
        let _ = kill_process(pid, Signal::KILL);
    }
}
