//! `-L` and `-R`, what is printed about connections, and ports that cannot listen.

use std::{io::Read, net::TcpListener};

use rustix::process::Signal;
use serde_json::Value;

use super::{connect, echo, exchange, port, resets, tunnel};
use crate::support::programs::{eventually, free_port, local_hosts::Hosts, random_bytes};

#[test]
fn a_local_and_a_remote_port_carry_every_byte() {
    let (hosts, bytes) = (Hosts::new(""), random_bytes(3 << 20));
    let target = format!("0:127.0.0.1:{}", echo());
    let running = tunnel(&hosts, &["-L", &target, "-R", &target]).start();
    running.said("that it is ready", |text| {
        text.contains("ready: connections are forwarded")
            .then_some(())
    });
    for place in ["here", "on the other host"] {
        let back = exchange(connect(port(&running, place)), &bytes);
        assert!(back == bytes, "{place}: {} bytes came back", back.len());
    }
    running.signal(Signal::TERM);
    let end = running.end();
    assert!(end.exits(143).contains("interrupted by"));
}

/// Returns the session of a process in `/proc`, which is 0 where its leader is outside this PID namespace.
fn session(process: &str) -> u32 {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap();
    // The name of the process may contain spaces; the session is field 6 of proc_pid_stat(5).
    let (_, fields) = stat.rsplit_once(") ").unwrap();
    fields.split(' ').nth(3).unwrap().parse().unwrap()
}

/// Returns the process whose command line has all of these words.
fn process_with(words: &[&str]) -> Option<rustix::process::Pid> {
    let processes = std::fs::read_dir("/proc").unwrap();
    let mut ids = processes.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let id = ids.find(|id: &i32| {
        let line = std::fs::read(format!("/proc/{id}/cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).into_owned();
        words
            .iter()
            .all(|word| line.split('\0').any(|other| other == *word))
    });
    id.and_then(rustix::process::Pid::from_raw)
}

#[test]
fn the_program_goes_into_the_background_when_it_forwards() {
    let (hosts, bytes) = (Hosts::new(""), random_bytes(100_000));
    let listen = free_port();
    let local = format!("{listen}:127.0.0.1:{}", echo());
    let remote = format!("0:127.0.0.1:{}", echo());
    let end = tunnel(&hosts, &["-f", "-L", &local, "-R", &remote])
        .start()
        .end();
    let said = end.exits(0);
    assert!(
        said.contains("listening at ") && said.contains("ready: "),
        "{said}"
    );
    // No test waits for it: what it forwards is there when the first process has ended.
    let socket = std::net::TcpStream::connect(("127.0.0.1", listen)).unwrap();
    assert!(exchange(socket, &bytes) == bytes);
    let id = process_with(&["--in-background", &local]).expect("a process in the background");
    assert_ne!(session("self"), session(&id.as_raw_nonzero().to_string()));
    rustix::process::kill_process(id, Signal::TERM).unwrap();
    eventually("the end of the process", || {
        process_with(&["--in-background", &local])
            .is_none()
            .then_some(())
    });
    // What fails before is the end of the first process.
    let hosts = Hosts::new("echo no route >&2; exit 7");
    let end = tunnel(&hosts, &["-f", "-L", &local]).start().end();
    assert!(end.exits(255).contains("no route"));
    assert!(process_with(&["--in-background", &local]).is_none());
}

#[test]
fn connections_are_reported_in_words_and_in_json() {
    let hosts = Hosts::new("");
    let target = format!("0:127.0.0.1:{}", echo());
    let running = tunnel(&hosts, &["-v", "-L", &target]).start();
    exchange(connect(port(&running, "here")), b"12345");
    running.said("the end of the connection", |text| {
        text.contains("closed, sent 5 B, received 5 B")
            .then_some(())
    });
    running.signal(Signal::TERM);
    running.end().exits(143);
    let local = TcpListener::bind("127.0.0.1:0").unwrap();
    let listen = local.local_addr().unwrap().port();
    drop(local);
    let target = format!("{listen}:127.0.0.1:{}", echo());
    let running = tunnel(&hosts, &["--json", "-L", &target]).start();
    exchange(connect_when_there(listen), b"12345");
    let closed = running.said("the end of the connection", |text| {
        let events = text
            .lines()
            .filter_map(|line| serde_json::from_str::<Value>(line).ok());
        events.into_iter().find(|event| event["event"] == "closed")
    });
    assert_eq!(
        (&closed["bytes_sent"], &closed["bytes_received"]),
        (&5.into(), &5.into())
    );
    running.signal(Signal::TERM);
    running.end().exits(143);
}

/// Connects to a port at which a program that was just started will listen.
fn connect_when_there(port: u16) -> std::net::TcpStream {
    crate::support::programs::eventually("the port listens", || {
        std::net::TcpStream::connect(("127.0.0.1", port)).ok()
    })
}

#[test]
fn a_refused_target_is_a_reset_and_a_warning() {
    let hosts = Hosts::new("");
    let unused = TcpListener::bind("127.0.0.1:0").unwrap();
    let target = format!("0:127.0.0.1:{}", unused.local_addr().unwrap().port());
    drop(unused);
    let running = tunnel(&hosts, &["-L", &target]).start();
    resets(port(&running, "here"));
    running.said("a warning", |text| text.contains("refused").then_some(()));
    running.signal(Signal::TERM);
    running.end().exits(143);
}

#[test]
fn a_port_that_is_taken_ends_the_program() {
    let hosts = Hosts::new("");
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken_port = taken.local_addr().unwrap().port();
    let forward = format!("{taken_port}:127.0.0.1:1");
    let words = ["cannot listen at", &taken_port.to_string(), "in use"];
    tunnel(&hosts, &["-L", &forward])
        .start()
        .end()
        .fails(1, &words);
    let end = tunnel(&hosts, &["-R", &forward]).start().end();
    let said = end.exits(1);
    assert!(said.contains("the other host cannot listen at"), "{said}");
    assert!(said.contains(&taken_port.to_string()), "{said}");
}

#[test]
fn a_listener_is_for_this_host_only() {
    let hosts = Hosts::new("");
    let target = format!("0:127.0.0.1:{}", echo());
    let running = tunnel(&hosts, &["-L", &target]).start();
    let listening = format!("{:04X}", port(&running, "here"));
    let mut table = String::new();
    let mut file = std::fs::File::open("/proc/self/net/tcp").unwrap();
    file.read_to_string(&mut table).unwrap();
    // The state 0A is that of a socket that listens.
    let addresses: Vec<_> = table
        .lines()
        .filter_map(|line| {
            let mut words = line.split_whitespace().skip(1);
            let (local, state) = (words.next()?, words.nth(1)?);
            let (address, port) = local.split_once(':')?;
            (state == "0A" && port == listening).then(|| address.to_owned())
        })
        .collect();
    // A table that changes while it is read may show a socket twice.
    assert!(!addresses.is_empty() && addresses.iter().all(|address| address == "0100007F"));
    running.signal(Signal::TERM);
    running.end().exits(143);
}
