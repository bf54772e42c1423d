//! What ends a run: ^C, and the death of each of its processes.

use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::{
    checks::{cut, lacks_firewall},
    reports::{Report, lines, rails},
};
use crate::support::programs::{
    Running, eventually,
    hosts::{GONE, Network, Outcome, Process},
    patience,
};

/// Starts a run between h1 and h2 that does not end by itself, and waits until something was measured.
#[track_caller]
fn measuring(network: &Network, options: &[&str]) -> Running {
    let endless = [
        "-v",
        "--time",
        "0.1",
        "--runs",
        "1000",
        "--measure",
        "bandwidth",
        "--transport",
        "tcp",
    ];
    let rdperf = network
        .rdperf(endless)
        .args(options)
        .args(["h1", "h2"])
        .start();
    rdperf.said("a measurement", |text| {
        (text.matches(" GB/s").count() >= 6 + rails().len()).then_some(())
    });
    rdperf
}

#[test]
fn what_was_measured_is_printed_after_an_interruption() {
    let Some(network) = Network::new(2) else {
        return;
    };
    let rdperf = measuring(&network, &[]);
    let since = rdperf.signal(Signal::INT);
    let end = rdperf.end();
    end.tells(130, &["interrupted by", "SIGINT"]);
    end.is_silent_on(&["panicked"]);
    network.assert_empty(since, GONE);
    let lines = lines(&end);
    assert!(
        lines
            .iter()
            .any(|line| line.starts_with("stream, one way ")),
        "{lines:#?}"
    );
    // A measurement that is missing may be the one that shows the limit.
    assert!(
        !lines.iter().any(|line| line.contains("the limit")),
        "{lines:#?}"
    );
    // The report for programs says how the run ended.
    let rdperf = measuring(&network, &["--json=-"]);
    let since = rdperf.signal(Signal::TERM);
    let end = rdperf.end();
    end.exits(143);
    network.assert_empty(since, GONE);
    let report = Report::of(&end);
    assert_eq!(report.0["exit"], 143);
    assert_eq!(report.list("series").len(), 5 + rails().len());
    assert_eq!(report.text("verdict"), "");
    assert!(
        report.list("errors")[0]
            .as_str()
            .is_some_and(|error| error.contains("SIGTERM"))
    );
}

#[test]
fn an_interruption_during_the_checks_leaves_nothing() {
    let Some(network) = Network::new(2) else {
        return;
    };
    let rdperf = network.rdperf(["h1", "h2"]).start();
    network.process("h1", "--agent");
    let since = rdperf.signal(Signal::INT);
    let end = rdperf.end();
    end.tells(130, &["interrupted by", "SIGINT"]);
    network.assert_empty(since, GONE);
}

#[test]
fn a_network_that_is_cut_ends_the_run_with_the_reason() {
    let Some(network) = Network::new(2) else {
        return;
    };
    if lacks_firewall(&network) {
        return;
    }
    let silence = patience(Duration::from_secs(1)).as_secs().to_string();
    let options = [
        "-v",
        "--time",
        "0.1",
        "--runs",
        "1000",
        "--timeout",
        &silence,
    ];
    let rdperf =
        network
            .rdperf(options)
            .args(["--measure", "latency", "--transport", "tcp", "h1", "h2"]);
    let rdperf = rdperf.start();
    rdperf.said("a measurement", |text| text.contains("µs").then_some(()));
    cut(&network, "h2", "10.77.0.1");
    let end = rdperf.end();
    // Each measurement has failed.
    end.tells(
        255,
        &[
            "h1 to h2, TCP, 64 B, stream: ",
            "socket, events: ",
            "socket, busy: ",
        ],
    );
    network.assert_empty(end.at, GONE);
    assert!(
        lines(&end)
            .iter()
            .any(|line| line.starts_with("TCP 64 B, "))
    );
}

/// A process of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Killed {
    Rdperf,
    RdperfAndSsh,
    Worker,
    Guard,
    SshClient,
    SshSession,
    Everything,
}

impl Killed {
    const ALL: [Self; 7] = [
        Self::Rdperf,
        Self::RdperfAndSsh,
        Self::Worker,
        Self::Guard,
        Self::SshClient,
        Self::SshSession,
        Self::Everything,
    ];

    /// Returns the processes to kill besides rdperf itself: those of h2, or of ctl.
    fn found(self, network: &Network) -> Vec<Process> {
        let first = |host: &str, is_it: &dyn Fn(&Process) -> bool| {
            eventually("the process to kill", || {
                let mut all = network.processes(host);
                all.retain(is_it);
                all.truncate(1);
                (!all.is_empty()).then_some(all)
            })
        };
        match self {
            Self::Rdperf => Vec::new(),
            Self::RdperfAndSsh => network.processes("ctl"),
            Self::Worker => first("h2", &Process::is_worker),
            Self::Guard => first("h2", &|process| {
                process.children().iter().any(Process::is_worker)
            }),
            Self::SshClient => first("ctl", &|process| {
                process.line.contains("ssh") && process.line.contains(" h2 ")
            }),
            Self::SshSession => first("h2", &|process| process.line.starts_with("sshd: root")),
            Self::Everything => network.processes("h2"),
        }
    }
}

#[test]
fn a_process_that_is_killed_leaves_no_other_one() {
    let Some(network) = Network::new(2) else {
        return;
    };
    for killed in Killed::ALL {
        let rdperf = measuring(&network, &[]);
        let victims = killed.found(&network);
        let since = Instant::now();
        let is_rdperf = matches!(killed, Killed::Rdperf | Killed::RdperfAndSsh);
        if is_rdperf {
            rdperf.kill();
        }
        for victim in victims {
            victim.kill();
        }
        let end = rdperf.end();
        println!(
            "{killed:?}: {}",
            end.stderr
                .lines()
                .filter(|line| !line.contains(" GB/s"))
                .collect::<Vec<_>>()
                .join("\n")
        );
        network.assert_empty(since, GONE);
        end.is_silent_on(&["panicked"]);
        if is_rdperf {
            end.exits(-9);
            continue;
        }
        end.tells(255, &["h2: "]);
        // What was measured is printed.
        let lines = lines(&end);
        assert!(
            lines
                .iter()
                .any(|line| line.starts_with("stream, one way ")),
            "{killed:?}: {lines:#?}"
        );
    }
}

#[test]
fn a_reader_that_goes_away_ends_the_run_quietly() {
    let Some(network) = Network::new(2) else {
        return;
    };
    let mut rdperf = network.rdperf(["h1", "h2"]).start_raw();
    drop(rdperf.take_stdout());
    let end = rdperf.end();
    assert_eq!(end.exits(141), "");
    network.assert_empty(end.at, GONE);
}
