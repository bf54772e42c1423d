//! Whichever process of a pipeline is killed, no process stays on any host, and rdpipe names the cause.

use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::support::programs::hosts::{GONE, Network, Outcome, Process, Terminal};
use crate::support::programs::{Running, eventually, is_ignored, patience, skip};

/// Three stages that pass bytes until the test ends them. They have background processes: children, one in a session of
/// its own, and some whose parent has exited.
const STAGES: [&str; 3] = [
    "h1:sleep 1001 & while sleep 0.02; do echo more; done",
    "h2:sleep 1002 & setsid sleep 1003 & (setsid sh -c 'sleep 1004 & sleep 1005 & exit' &) ; cat; exit",
    "h3:sleep 1006 & cat > copy && touch happy; wait",
];

/// The background processes that must run on h1, h2 and h3 while bytes flow.
const COMPANY: [(&str, &str); 6] = [
    ("h1", "sleep 1001"),
    ("h2", "sleep 1002"),
    ("h2", "sleep 1003"),
    ("h2", "sleep 1004"),
    ("h2", "sleep 1005"),
    ("h3", "sleep 1006"),
];

/// Waits until bytes have arrived at the last stage and all background processes run.
fn flows(network: &Network) {
    eventually("something to arrive", || {
        let copy = network.file("h3", "copy").metadata();
        copy.is_ok_and(|copy| copy.len() > 0).then_some(())
    });
    for (host, line) in COMPANY {
        network.process(host, line);
    }
}

/// Starts the pipeline and calls `kill`. Checks that no process is left on any host, that rdpipe exits with `code`, and
/// that the first line of its stderr contains `words`.
fn kills(options: &[&str], code: i32, words: &[&str], kill: impl FnOnce(&Network, &Running)) {
    let Some(network) = Network::new(3) else {
        return;
    };
    let running = network.rdpipe([options, &STAGES].concat()).start();
    flows(&network);
    let since = Instant::now();
    kill(&network, &running);
    network.assert_empty(since, GONE);
    let end = running.end();
    assert_eq!(network.names("h3"), ["copy"], "{}", end.stderr);
    end.tells(code, words);
    // The first line must name the cause, not a consequence.
    let first = end.stderr.lines().next().unwrap_or("").to_owned();
    for word in words {
        assert!(
            first.contains(word),
            "not {word:?} first, but:\n{}",
            end.stderr
        );
    }
}

#[test]
fn a_killed_controller_leaves_no_process() {
    let Some(network) = Network::new(3) else {
        return;
    };
    let running = network.rdpipe(STAGES).start();
    flows(&network);
    let since = running.kill();
    network.assert_empty(since, GONE);
    assert_eq!(network.names("h3"), ["copy"]);
}

#[test]
fn a_controller_killed_with_all_ssh_leaves_no_process() {
    let Some(network) = Network::new(3) else {
        return;
    };
    let running = network.rdpipe(STAGES).start();
    flows(&network);
    let since = running.kill();
    for process in network.processes("ctl") {
        process.kill();
    }
    network.assert_empty(since, GONE);
    assert_eq!(network.names("h3"), ["copy"]);
}

#[test]
fn a_killed_worker_leaves_no_process() {
    for host in ["h1", "h2", "h3"] {
        kills(&[], 255, &[host, "signal 9"], |network, _| {
            network.process(host, "--agent=worker").kill();
        });
    }
}

#[test]
fn a_killed_guard_leaves_no_process() {
    for host in ["h1", "h2", "h3"] {
        kills(&[], 255, &[host], |network, _| guard(network, host).kill());
    }
}

/// Returns the guard on a host, which is the parent of the worker.
fn guard(network: &Network, host: &str) -> Process {
    let all = network.processes(host);
    let is_guard = |process: &&Process| {
        let mut children = process.children().into_iter();
        children.any(|child| child.line.contains("--agent=worker"))
    };
    let guard = all.iter().find(is_guard);
    guard.expect("a worker has a parent").clone()
}

#[test]
fn a_killed_ssh_session_leaves_no_process() {
    for host in ["h1", "h2", "h3"] {
        kills(&[], 255, &[host], |network, _| {
            network.process(host, "sshd: root").kill();
        });
    }
}

#[test]
fn a_killed_ssh_client_leaves_no_process() {
    kills(&[], 255, &["h2"], |network, _| {
        let all = network.processes("ctl");
        let ssh = all
            .iter()
            .find(|p| p.line.contains(" h2 "))
            .expect("an ssh");
        ssh.kill();
    });
}

#[test]
fn a_killed_command_leaves_no_process() {
    let victims = [
        ("h1", "while sleep"),
        ("h2", "setsid sleep 1003 &"),
        ("h3", "touch happy"),
    ];
    for (host, line) in victims {
        kills(&[], 137, &[host, "signal 9"], |network, _| {
            network.shell(host, line).kill();
        });
    }
}

#[test]
fn an_interrupt_leaves_no_process() {
    if is_ignored(Signal::INT) {
        skip("SIGINT is ignored here");
        return;
    }
    kills(&[], 130, &["SIGINT"], |_, running| {
        running.signal(Signal::INT);
    });
}

#[test]
fn a_closed_terminal_leaves_no_process() {
    let Some(network) = Network::new(3) else {
        return;
    };
    if is_ignored(Signal::HUP) {
        skip("SIGHUP is ignored here");
        return;
    }
    let terminal = Terminal::new();
    let running = network.on_terminal(&terminal, STAGES).start();
    flows(&network);
    let since = Instant::now();
    drop(terminal);
    network.assert_empty(since, GONE);
    running.end().exits(129);
    assert_eq!(network.names("h3"), ["copy"]);
}

#[test]
fn a_cut_network_leaves_no_process() {
    for host in ["h1", "h2", "h3"] {
        let Some(network) = Network::new(3) else {
            return;
        };
        let timeout = patience(Duration::from_secs(3));
        let seconds = timeout.as_secs().to_string();
        let running = network
            .rdpipe([&["--timeout", &seconds][..], &STAGES].concat())
            .start();
        flows(&network);
        let since = Instant::now() + timeout;
        network.on(host, "ip link set eth0 down");
        // sshd goes on waiting for a client that it cannot reach; rdpipe has no influence on that.
        network.assert_empty_but(since, GONE, Process::is_sshd);
        running.end().tells(255, &[host]);
        assert_eq!(network.names("h3"), ["copy"]);
    }
}

#[test]
fn a_host_that_crashes_leaves_no_process_on_the_others() {
    // All processes are killed at once, those of sshd too, as in a crash; but the network of the host still answers.
    kills(&[], 255, &["h2"], |network, _| {
        for process in network.processes("h2") {
            process.kill();
        }
    });
}
