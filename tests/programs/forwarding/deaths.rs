//! Whatever dies of a tunnel between two hosts, the programs at both ends see a reset, no process is left, and the
//! reason is named.

use std::time::{Duration, Instant};

use crate::support::programs::{
    Running, eventually,
    hosts::{GONE, Network, Outcome, Process},
    patience,
};

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

fn is_worker(process: &Process) -> bool {
    process.line.contains("--agent=worker")
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
    let ended = kills(|network, _| first(network, "h2", is_worker).kill());
    if let Some((code, said)) = ended {
        assert!(code == 255 && said.contains("h2: "), "{code}: {said}");
    }
}

#[test]
fn the_killed_guard_of_an_agent_is_a_reset() {
    let is_guard = |process: &Process| process.children().iter().any(is_worker);
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
