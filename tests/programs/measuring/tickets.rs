//! `rdperf --listen` and its ticket.

use std::{
    fs,
    io::{BufRead, BufReader},
    time::Duration,
};

use rustix::process::Signal;

use super::{
    quick, rdperf,
    reports::{Report, rails, text, what},
};
use crate::support::programs::{
    Place, Running, Setup, free_port,
    hosts::{Network, Outcome},
};

/// Starts an rdperf that listens on the loopback address of this machine.
#[track_caller]
fn listener(options: &[&str]) -> Running {
    rdperf(&["--listen", "-H", "127.0.0.1"])
        .args(options)
        .start()
}

/// Returns the ticket that a listening rdperf has printed.
#[track_caller]
fn ticket(listener: &Running) -> String {
    listener.said("a ticket", |text| {
        let (_, rest) = text.split_once("\n  rdperf ")?;
        Some(rest.split_once('\n')?.0.to_owned())
    })
}

#[test]
fn two_processes_of_this_machine_measure_with_a_ticket() {
    let listener = listener(&[]);
    let ticket = ticket(&listener);
    let end = rdperf(&quick(&[
        "--json=-",
        "--measure",
        "bandwidth,connect",
        &ticket,
    ]))
    .start()
    .end();
    assert_eq!(end.exits(0), "");
    listener.end().exits(0);
    let report = Report::of(&end);
    let series = report.list("series");
    assert_eq!(series.len(), 6 + rails().len());
    for series in series {
        assert_eq!(
            (text(series, "from"), text(series, "to")),
            ("here", "127.0.0.1")
        );
    }
    assert_eq!(what(series.last().unwrap()), "connect tcp");
    // The ticket is a secret.
    assert!(
        report.text("command").ends_with(" TICKET"),
        "{:#}",
        report.0
    );
}

#[test]
fn a_ticket_comes_from_a_file_or_the_environment_too() {
    let place = Place::new();
    let checked = |given: &dyn Fn(&str) -> Setup| {
        let listener = listener(&[]);
        let end = given(&ticket(&listener))
            .args(["--check", "--transport", "tcp"])
            .start()
            .end();
        assert_eq!(end.exits(0), "");
        listener.end().exits(0);
    };
    checked(&|ticket| rdperf(&[]).env("RDPERF_TICKET", ticket));
    checked(&|ticket| {
        use std::os::unix::fs::PermissionsExt;
        let file = place.file("ticket", ticket.as_bytes());
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        rdperf(&["--ticket-file", &file])
    });
}

/// Returns the places in /proc, of all processes on all hosts, that contain a ticket.
fn shown(network: &Network) -> Vec<String> {
    let mut shown = Vec::new();
    for host in network.hosts().chain(["ctl".to_owned()]) {
        for process in network.processes(&host) {
            for file in ["cmdline", "environ"] {
                let content = fs::read(format!("/proc/{}/{file}", process.id)).unwrap_or_default();
                if content.windows(4).any(|window| window == b"rdt1") {
                    shown.push(format!("{file} of {process:?} on {host}"));
                }
            }
        }
    }
    shown
}

#[test]
fn a_ticket_reaches_another_host_and_shows_in_no_list_of_processes() {
    let Some(network) = Network::new(1) else {
        return;
    };
    let line = format!(
        "exec {} --listen -p 7000-7010",
        env!("CARGO_BIN_EXE_rdperf")
    );
    let listener = network.ssh("h1", &line).start();
    let ticket = ticket(&listener);
    let options = [
        "--time",
        "0.1",
        "--runs",
        "1000",
        "--measure",
        "bandwidth",
        "-v",
    ];
    let dialer = network
        .program(env!("CARGO_BIN_EXE_rdperf"), "rdperf")
        .args(options);
    let mut dialer = dialer.args(["--transport", "tcp", &ticket]).start_raw();
    // The checks are printed when the hosts are connected.
    let mut stdout = BufReader::new(dialer.take_stdout());
    let mut first = String::new();
    stdout.read_line(&mut first).expect("a line");
    assert!(first.starts_with("here: rdpipe "), "{first}");
    assert_eq!(shown(&network), Vec::<String>::new());
    dialer.said("a measurement", |text| text.contains("GB/s").then_some(()));
    assert_eq!(shown(&network), Vec::<String>::new());
    // ^C at the one end ends the other one.
    let since = dialer.signal(Signal::INT);
    dialer.end().tells(130, &["interrupted by", "SIGINT"]);
    listener.end();
    network.assert_empty(since, Duration::from_secs(5));
    // The search does find a ticket that is there.
    let decoy = network.ssh("h1", "sleep 1000; echo rdt1").start();
    crate::support::programs::eventually("a ticket to be found", || {
        (!shown(&network).is_empty()).then_some(())
    });
    drop(decoy);
}

#[test]
fn a_ticket_is_good_for_one_run() {
    let listener = listener(&[]);
    let ticket = ticket(&listener);
    let options = [
        "--time",
        "0.1",
        "--runs",
        "1000",
        "--measure",
        "connect",
        "-v",
    ];
    let first = rdperf(&options)
        .args(["--transport", "tcp", &ticket])
        .start();
    first.said("a measurement", |text| {
        text.contains(", connect: ").then_some(())
    });
    // The first run goes on while the second one fails.
    let second = rdperf(&["--check", &ticket]).start().end();
    second.tells(255, &["ticket"]);
    second.is_silent_on(&[&ticket, "panicked"]);
    assert!(first.runs());
    first.signal(Signal::INT);
    first.end().exits(130);
    listener.end();
    let third = rdperf(&["--check", &ticket]).start().end();
    third.tells(255, &["no rdperf --listen waits", "good for one run"]);
    third.is_silent_on(&[&ticket]);
}

#[test]
fn another_ticket_is_refused() {
    let port = free_port();
    let ports = format!("{port}-{}", port.saturating_add(20));
    let first = listener(&["-p", &ports]);
    let old = ticket(&first);
    first.kill();
    drop(first);
    let second = listener(&["-p", &ports]);
    let new = ticket(&second);
    assert_ne!(old, new);
    let end = rdperf(&["--check", &old]).start().end();
    end.tells(255, &["ticket"]);
    end.is_silent_on(&["panicked", &old]);
    // A damaged ticket is found before anything is sent.
    let damaged = format!("{}x", &old[..old.len() - 1]);
    let end = rdperf(&["--check", &damaged]).start().end();
    end.exits(2);
    end.is_silent_on(&[&damaged]);
}

#[test]
fn the_host_that_listens_keeps_its_files_and_its_distance() {
    let listener = listener(&[]);
    let ticket = ticket(&listener);
    for (option, path) in [
        ("--read", "127.0.0.1:/etc/hostname"),
        ("--write", "127.0.0.1:/tmp"),
        // By default the last host writes.
        ("--write", "/tmp"),
    ] {
        let end = rdperf(&[option, path, &ticket]).start().end();
        end.tells(2, &["ticket", "files"]);
        end.is_silent_on(&[&ticket]);
    }
    // The listener still waits. It dials nothing, so only one direction is checked, and this end reads its own files.
    let end = rdperf(&quick(&["--json=-", "--read", "/dev/zero", &ticket]))
        .start()
        .end();
    end.exits(0);
    listener.end().exits(0);
    let report = Report::of(&end);
    assert!(report.subjects("firewall-tcp").is_empty() && report.subjects("reach").is_empty());
    let read = &report.list("series")[0];
    assert_eq!(
        (what(read), text(read, "from")),
        ("read".to_owned(), "here")
    );
}

#[test]
fn a_listener_without_a_peer_ends_with_the_signal() {
    let listener = listener(&[]);
    ticket(&listener);
    listener.signal(Signal::INT);
    listener.end().tells(130, &["interrupted by", "SIGINT"]);
    // One port is too few: one is for the session.
    let end = rdperf(&["--listen", "-p", "7000"]).start().end();
    end.tells(2, &["two ports"]);
}
