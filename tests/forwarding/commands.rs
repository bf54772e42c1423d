//! `rdforward run`: a command whose connections go through the tunnel.

use super::tunnel::echo;
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
