//! `rdforward run`: a command whose connections go through the tunnel.

use std::io::{BufRead, BufReader, Write};

use rustix::process::Signal;

use super::echo;
use crate::support::programs::{Setup, local_hosts::Hosts};

/// An address that no host has (RFC 5737).
const ADDRESS: &str = "192.0.2.9";

/// Returns a run of this script of bash; h1 is the host of [`ADDRESS`].
fn run(hosts: &Hosts, script: &str) -> Setup {
    let address = format!("h1={ADDRESS},127.0.0.1");
    hosts
        .rdforward_run(&["--transport", "tcp", "--addr", &address])
        .args(["h1", "--", "bash", "-c", script])
}

#[test]
fn a_command_and_its_children_reach_the_host_and_its_status_is_kept() {
    let hosts = Hosts::new("");
    let talk = format!(
        "exec 3<>/dev/tcp/{ADDRESS}/{} && echo hello >&3 && read x <&3 && echo $x",
        echo()
    );
    let script = format!("{talk}; (bash -c '{talk}'); exit 7");
    let end = run(&hosts, &script).start().end();
    assert_eq!(end.exits(7), "");
    assert_eq!(String::from_utf8_lossy(&end.stdout), "hello\nhello\n");
}

#[test]
fn a_run_that_redirects_nothing_says_so() {
    let end = run(&Hosts::new(""), "exit 3").start().end();
    let said = end.exits(3);
    assert!(
        said.contains("no connection of the command went through the tunnel"),
        "{said}"
    );
}

#[test]
fn a_refused_connection_is_refused_in_the_command() {
    let hosts = Hosts::new("");
    let script = format!("exec 3<>/dev/tcp/{ADDRESS}/1 || exit 9");
    let end = run(&hosts, &script).start().end();
    let said = end.exits(9);
    assert!(said.contains("Connection refused"), "{said}");
}

#[test]
fn a_command_that_cannot_be_started_has_the_status_of_a_shell() {
    let hosts = Hosts::new("");
    for (command, status) in [("/nonexistent", 127), ("/etc/passwd", 126)] {
        let end = hosts
            .rdforward_run(&["--transport", "tcp", "h1", "--", command])
            .start()
            .end();
        assert!(end.exits(status).contains(command));
    }
}

#[test]
fn a_command_gets_the_limits_and_the_environment_of_rdforward() {
    let hosts = Hosts::new("");
    let script = "ulimit -Sn; ulimit -Sc; cat /proc/self/coredump_filter; echo $RDPIPE_KEY";
    let setup = |line: &str, arguments: &[&str]| {
        let key = "a-key-of-the-user-1234567890";
        hosts
            .rdforward_run_after(line, arguments)
            .env("RDPIPE_KEY", key)
    };
    let arguments = ["--transport", "tcp", "h1", "--", "bash", "-c", script];
    let line = "ulimit -Sn 200; ulimit -Sc 0; echo 0x31 >/proc/self/coredump_filter";
    let end = setup(line, &arguments).start().end();
    end.exits(0);
    assert_eq!(
        String::from_utf8_lossy(&end.stdout),
        "200\n0\n00000031\na-key-of-the-user-1234567890\n"
    );
}

#[test]
fn signals_reach_the_command() {
    let hosts = Hosts::new("");
    let script = "for s in INT QUIT USR1 USR2 HUP TERM; do trap \"echo got $s; exit 7\" $s; done
        echo ready; while :; do sleep 0.05; done";
    let arguments = ["--transport", "tcp", "h1", "--", "bash", "-c", script];
    for (signal, name) in [
        (Signal::INT, "INT"),
        (Signal::QUIT, "QUIT"),
        (Signal::USR1, "USR1"),
        (Signal::USR2, "USR2"),
        (Signal::HUP, "HUP"),
        (Signal::TERM, "TERM"),
    ] {
        let mut running = hosts.rdforward_run_after("true", &arguments).start_raw();
        let mut lines = BufReader::new(running.take_stdout()).lines();
        assert_eq!(lines.next().unwrap().unwrap(), "ready");
        running.signal(signal);
        assert_eq!(lines.next().unwrap().unwrap(), format!("got {name}"));
        running.end().exits(7);
    }
}

#[test]
fn a_command_dies_with_rdforward() {
    let hosts = Hosts::new("");
    let arguments = [
        "--transport",
        "tcp",
        "h1",
        "--",
        "bash",
        "-c",
        "echo ready; exec sleep 1000",
    ];
    let mut running = hosts.rdforward_run_after("true", &arguments).start_raw();
    let mut lines = BufReader::new(running.take_stdout()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "ready");
    running.signal(Signal::KILL);
    // The command has the other end of the pipe.
    assert!(lines.next().is_none());
}

/// The children of a command outlive a killed rdforward. They get an error from `connect()`, and do not wait for ever.
#[test]
fn a_child_of_the_command_cannot_connect_after_rdforward_was_killed() {
    let hosts = Hosts::new("");
    let connect = format!("read line; LC_ALL=C; exec 3<>/dev/tcp/{ADDRESS}/{}", echo());
    let script = format!("exec 4<&0; ({connect}) <&4 2>&1 & echo ready; exec sleep 1000");
    let arguments = ["--transport", "tcp", "h1", "--", "bash", "-c", &script];
    let (reader, mut writer) = std::io::pipe().unwrap();
    let run = hosts.rdforward_run_after("true", &arguments);
    let mut running = run.stdin(reader).start_raw();
    let mut lines = BufReader::new(running.take_stdout()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "ready");
    running.signal(Signal::KILL);
    drop(running.end());
    writer.write_all(b"go\n").unwrap();
    let said = lines.next().unwrap().unwrap();
    assert!(said.contains("Function not implemented"), "{said}");
}

#[test]
fn processes_that_the_command_leaves_behind_keep_the_tunnel() {
    let hosts = Hosts::new("");
    let talk = format!(
        "exec 3<>/dev/tcp/{ADDRESS}/{} && echo hello >&3 && read x <&3 && echo $x",
        echo()
    );
    let script = format!("(trap '' HUP; read line; {talk}) <&4 & exit 3");
    let (reader, mut writer) = std::io::pipe().unwrap();
    let running = run(&hosts, &format!("exec 4<&0; {script}"))
        .stdin(reader)
        .start();
    running.said("that the tunnel stays", |said| {
        said.contains("the tunnel stays for the processes")
            .then_some(())
    });
    writer.write_all(b"go\n").unwrap();
    let end = running.end();
    end.exits(3);
    assert_eq!(String::from_utf8_lossy(&end.stdout), "hello\n");
}
