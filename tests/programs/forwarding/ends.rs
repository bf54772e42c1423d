//! How a tunnel ends by a signal, or does not begin. Whatever dies of a tunnel between two hosts, the programs at both
//! ends see a reset, no process is left, and the reason is named.

use std::{
    net::TcpListener,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};

use super::{echo, is_reset, port, rdforward, tunnel, used};
use crate::support::programs::{
    Running, eventually,
    hosts::{GONE, Network, Outcome, Process},
    local_hosts::Hosts,
    patience, program,
};

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

/// The port of the tunnel on ctl. The network of each test is its own.
const PORT: &str = "17022";

/// A tunnel from ctl to h2, and a program on ctl that is connected to a server on h2 and waits for it.
struct Connected {
    rdforward: Running,
    client: Running,
}

impl Connected {
    /// The server is sshd: it greets its client, and waits for an answer.
    #[track_caller]
    fn start(network: &Network, options: &[&str]) -> Self {
        let forward = format!("{PORT}:10.77.0.2:22");
        let rdforward = network
            .rdforward(["-v", "--transport", "tcp", "-L", &forward])
            .args(options)
            .arg("h2")
            .start();
        rdforward.said("the tunnel", |text| {
            text.contains("the tunnel is connected").then_some(())
        });
        let script = format!(
            "exec 3<>/dev/tcp/127.0.0.1/{PORT}; read -r -u 3 line; echo \"$line\" >&2; read -r -u 3"
        );
        let client = network.program("/bin/bash", "bash");
        let client = client.args(["-c", &script]).env("LC_ALL", "C").start();
        client.said("the greeting", |text| {
            text.contains("SSH-2.0").then_some(())
        });
        Self { rdforward, client }
    }

    /// Checks that both programs see a reset and that only processes stay which may, and returns how rdforward ended
    /// and what it said.
    #[track_caller]
    fn sees_reset(
        self,
        network: &Network,
        since: Instant,
        limit: Duration,
        may_stay: fn(&Process) -> bool,
    ) -> (i32, String) {
        let client = self.client.end();
        println!(
            "the client ended after {:?}",
            client.at.saturating_duration_since(since)
        );
        assert!(
            client.stderr.contains("Connection reset by peer"),
            "{}",
            client.stderr
        );
        let end = self.rdforward.end();
        println!("{}", end.stderr);
        network.assert_empty_but(since, limit, may_stay);
        end.is_silent_on(&["panicked"]);
        eventually("the server to see a reset", || {
            let log = network.read("h2", "../sshd.log");
            let log = String::from_utf8_lossy(&log).into_owned();
            log.contains("Connection reset by 10.77.0.2").then_some(())
        });
        (end.code(), end.stderr)
    }
}

fn first(network: &Network, host: &str, is_it: impl Fn(&Process) -> bool) -> Process {
    eventually("the process to kill", || {
        network.processes(host).into_iter().find(&is_it)
    })
}

/// Kills what `kill` names, and returns how rdforward ended and what it said.
#[track_caller]
fn kills(kill: impl FnOnce(&Network, &Running)) -> Option<(i32, String)> {
    let network = Network::new(2)?;
    let connected = Connected::start(&network, &[]);
    let since = Instant::now();
    kill(&network, &connected.rdforward);
    Some(connected.sees_reset(&network, since, GONE, |_| false))
}

#[test]
fn a_killed_rdforward_is_a_reset() {
    if let Some((code, _)) = kills(|_, rdforward| _ = rdforward.kill()) {
        assert_eq!(code, -9);
    }
}

#[test]
fn a_killed_agent_is_a_reset() {
    let ended = kills(|network, _| first(network, "h2", Process::is_worker).kill());
    if let Some((code, said)) = ended {
        assert!(code == 255 && said.contains("h2: "), "{code}: {said}");
    }
}

#[test]
fn the_killed_guard_of_an_agent_is_a_reset() {
    let is_guard = |process: &Process| process.children().iter().any(Process::is_worker);
    let ended = kills(|network, _| first(network, "h2", is_guard).kill());
    if let Some((code, said)) = ended {
        assert!(code == 255 && said.contains("h2: "), "{code}: {said}");
    }
}

#[test]
fn a_killed_ssh_is_a_reset() {
    let is_ssh = |process: &Process| process.line.contains("ssh") && process.line.contains(" h2 ");
    let ended = kills(|network, _| first(network, "ctl", is_ssh).kill());
    if let Some((code, said)) = ended {
        assert!(code == 255 && said.contains("h2: "), "{code}: {said}");
    }
}

#[test]
fn a_killed_session_of_sshd_is_a_reset() {
    let is_session = |process: &Process| process.line.starts_with("sshd: root");
    let ended = kills(|network, _| first(network, "h2", is_session).kill());
    if let Some((code, said)) = ended {
        assert!(code == 255 && said.contains("h2: "), "{code}: {said}");
    }
}

#[test]
fn a_host_that_vanishes_is_a_reset_after_the_timeout() {
    let Some(network) = Network::new(2) else {
        return;
    };
    let timeout = patience(Duration::from_secs(2));
    let seconds = timeout.as_secs().to_string();
    let connected = Connected::start(&network, &["--timeout", &seconds]);
    let since = Instant::now();
    network.on("h2", "ip link set eth0 down");
    // sshd goes on waiting for a client that it cannot reach; rdforward has no influence on that.
    let (code, said) = connected.sees_reset(&network, since + timeout, GONE, Process::is_sshd);
    assert!(code == 255 && said.contains("h2: "), "{code}: {said}");
}

#[test]
fn wrong_use_gets_a_plain_sentence() {
    for (arguments, words) in [
        (&["h1"][..], "nothing to forward; give -L, -R or -D"),
        (&["-L", "80", "h1"], "there is no target after the port"),
        (&["run", "h1"], "there is no command"),
        (&["serve", "--allow", "1"], "--key-file"),
        (&["-R", "1:a:2", "h1:7"], "a server listens for no client"),
        (&["-L", "1:a:2"], "HOST"),
    ] {
        let end = rdforward(arguments).start().end();
        let said = end.exits(2);
        assert!(said.contains(words), "{arguments:?}: {said}");
    }
}
