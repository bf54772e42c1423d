//! Pipelines with a failure: before the first byte flows, the message names host and cause; later, no stage after the
//! failure ends as if it had received everything, and every status is reported.

use std::{
    fs::OpenOptions,
    io::Write,
    path::Path,
    time::{Duration, Instant},
};

use rustix::process::Signal;

use crate::support::programs::{
    End, eventually, generous,
    hosts::{GONE, Network, Outcome, Terminal},
    install, patience,
};

/// Runs a pipeline, and checks that it fails with these words before a command starts, and that it leaves no process
/// and no file.
#[track_caller]
fn refused(network: &Network, arguments: &[&str], words: &[&str]) -> End {
    let end = network.rdpipe(arguments).start().end();
    end.tells(255, words);
    end.is_silent_on(&["panicked", "Broken pipe"]);
    network.assert_empty(end.at, GONE);
    for host in network.hosts() {
        assert!(
            network.names(&host).is_empty(),
            "{:?}",
            network.names(&host)
        );
    }
    end
}

/// Appends `text` to the ssh configuration of the network.
fn configure(network: &Network, text: &str) {
    let config = OpenOptions::new()
        .append(true)
        .open(network.own("ssh_config"));
    let written = config.and_then(|mut config| config.write_all(text.as_bytes()));
    written.expect("the test's own");
}

#[test]
fn an_unknown_host_is_named() {
    let Some(network) = Network::new(1) else {
        return;
    };
    let segments = ["h1:echo x | tee begun", "nosuch.invalid:> out"];
    refused(&network, &segments, &["nosuch.invalid", "resolve"]);
}

#[test]
fn a_refused_ssh_connection_is_reported() {
    let Some(network) = Network::new(1) else {
        return;
    };
    configure(
        &network,
        "Host closed\n    HostName 10.77.0.1\n    Port 2222\n",
    );
    let segments = ["h1:echo x | tee begun", "closed:> out"];
    refused(&network, &segments, &["closed", "refused"]);
}

#[test]
fn a_missing_ssh_key_is_reported_without_a_password_prompt() {
    let Some(network) = Network::new(1) else {
        return;
    };
    let since = Instant::now();
    let segments = ["h1:echo x | tee begun", "stranger@h1:> out"];
    // ssh must not ask for a password, because the user would not see the question.
    let end = refused(&network, &segments, &["stranger@h1", "denied", "key"]);
    end.is_silent_on(&["'s password:"]);
    assert!(end.at - since < generous());
}

#[test]
fn an_unknown_host_key_is_reported() {
    let Some(network) = Network::new(1) else {
        return;
    };
    configure(
        &network,
        "Host new\n    HostName 10.77.0.1\n    HostKeyAlias new\n",
    );
    refused(&network, &["new:> out"], &["new", "key"]);
}

#[test]
fn a_host_without_rdpipe_is_named() {
    let Some(network) = Network::new(2) else {
        return;
    };
    let programs = Path::new(env!("CARGO_BIN_EXE_rdpipe")).parent().unwrap();
    let hide = format!("mount -t tmpfs tmpfs {}", programs.display());
    network.on("h2", &hide);
    let segments = ["h1:echo x | tee begun", "h2:> out"];
    let never = [&["--deploy", "never"][..], &segments].concat();
    refused(&network, &never, &["h2", "rdpipe", "not found"]);
    let options = ["--remote-rdpipe", "/no/such/rdpipe"];
    let arguments = [&options[..], &segments].concat();
    refused(&network, &arguments, &["/no/such/rdpipe"]);
}

#[test]
fn a_host_with_another_version_is_named() {
    let Some(network) = Network::new(2) else {
        return;
    };
    network.install(
        "h2",
        "rdpipe",
        "printf '\\nrdpipe-agent 99 9.8.7\\n'; cat >/dev/null",
    );
    let segments = ["h1:echo x | tee begun", "h2:> out"];
    let ours = env!("CARGO_PKG_VERSION");
    refused(&network, &segments, &["h2", "9.8.7", ours]);
}

#[test]
fn output_of_a_login_profile_does_no_harm() {
    let Some(network) = Network::new(1) else {
        return;
    };
    network.install(
        "h1",
        "rdpipe",
        &format!(
            "echo Welcome to h1; printf 'no newline'; exec {} \"$@\"",
            env!("CARGO_BIN_EXE_rdpipe")
        ),
    );
    let end = network.rdpipe(["h1:echo all the same"]).start().end();
    assert_eq!(end.stdout, b"all the same\n");
    assert!(end.exits(0).contains("Welcome to h1"), "{}", end.stderr);
}

/// Makes `host` silently drop what arrives from address `from` at these ports, as a firewall does.
fn block(network: &Network, host: &str, from: &str, ports: &str) {
    // The kernel reads the table of local addresses first, so the new rule must come before it.
    network.on(
        host,
        &format!(
            "ip rule add pref 20 lookup local && ip rule del pref 0 && \
         ip rule add pref 10 from {from} ipproto tcp dport {ports} blackhole"
        ),
    );
}

#[test]
fn a_port_blocked_in_one_direction_is_no_failure() {
    let Some(network) = Network::new(3) else {
        return;
    };
    // h1 cannot connect to h2, so h2 connects to h1.
    block(&network, "h2", "10.77.0.1", "7000-7010");
    let arguments = [
        "-v",
        "-p",
        "7000-7010",
        "h1:echo through",
        "h2:cat",
        "h3:cat",
    ];
    let end = network.rdpipe(arguments).start().end();
    end.exits(0);
    assert_eq!(end.stdout, b"through\n");
}

#[test]
fn a_port_blocked_in_both_directions_is_reported() {
    let Some(network) = Network::new(3) else {
        return;
    };
    block(&network, "h2", "10.77.0.1", "7000-7010");
    block(&network, "h1", "10.77.0.2", "7000-7010");
    let segments = ["h1:echo x | tee begun", "h2:tee begun", "h3:> out"];
    let arguments = [&["--via-ssh", "never", "-p", "7000-7010"][..], &segments].concat();
    let words = ["h1", "h2", "10.77.0.1", "10.77.0.2", "700"];
    refused(&network, &arguments, &words);
}

#[test]
fn two_hosts_without_a_route_are_named() {
    let Some(network) = Network::new(2) else {
        return;
    };
    network.on("h1", "ip route add unreachable 10.77.0.2/32");
    let arguments = ["--via-ssh", "never", "h1:echo x | tee begun", "h2:> out"];
    refused(&network, &arguments, &["h1", "h2", "10.77.0.2"]);
}

#[test]
fn a_full_disk_is_reported_first() {
    let Some(network) = Network::new(2) else {
        return;
    };
    network.on("h2", "mkdir small && mount -t tmpfs -o size=1m tmpfs small");
    let end = network
        .rdpipe(["h1:head -c 20000000 /dev/zero", "h2:> small/out"])
        .start()
        .end();
    end.tells(1, &["h2", "small/out", "No space left"]);
    let first = end.stderr.lines().next().unwrap_or("");
    assert!(first.contains("No space left"), "{}", end.stderr);
    assert_eq!(network.on("h2", "ls small"), "");
}

#[test]
fn an_unreadable_file_is_named() {
    let Some(network) = Network::new(2) else {
        return;
    };
    let file = network.write("h1", "secret", b"private\n");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    std::fs::set_permissions(file, mode).unwrap();
    // A copy of rdpipe where the other user may run it.
    let own = network.own("h1/bin/rdpipe");
    install(Path::new(env!("CARGO_BIN_EXE_rdpipe")), &own);
    let end = network
        .rdpipe(["guest@h1:< secret", "h2:> out"])
        .start()
        .end();
    end.tells(1, &["h1", "secret", "Permission denied"]);
    assert!(network.names("h2").is_empty());
    let end = network.rdpipe(["h1:< missing", "h2:> out"]).start().end();
    end.tells(1, &["h1", "missing", "No such file"]);
    assert!(network.names("h2").is_empty());
}

/// A slow source that goes on until the test ends it.
const TRICKLE: &str = "while sleep 0.02; do echo more; done";

/// Waits until bytes have arrived in a file on a host.
fn flows(network: &Network, host: &str, file: &str) {
    eventually("something to arrive", || {
        let file = network.file(host, file).metadata();
        file.is_ok_and(|file| file.len() > 0).then_some(())
    });
}

#[test]
fn a_cut_connection_between_hosts_fails_the_pipeline() {
    let Some(network) = Network::new(2) else {
        return;
    };
    // The two hosts cannot reach each other any more; the controller still reaches both.
    let seconds = patience(Duration::from_secs(2)).as_secs().to_string();
    let source = format!("h1:{TRICKLE}");
    let segments = [
        "--timeout",
        &seconds,
        &source,
        "h2:cat > copy && touch happy",
    ];
    let running = network.rdpipe(segments).start();
    flows(&network, "h2", "copy");
    network.on("h1", "ip route add blackhole 10.77.0.2/32");
    network.on("h2", "ip route add blackhole 10.77.0.1/32");
    let end = running.end();
    assert_eq!(network.names("h2"), ["copy"], "{}", end.stderr);
    end.tells(255, &["h1", "h2"]);
    network.assert_empty(end.at, GONE);
}

#[test]
fn a_stage_that_ignores_sigterm_is_ended() {
    let Some(network) = Network::new(2) else {
        return;
    };
    let source = format!("h1:{TRICKLE}");
    let sink = "h2:trap '' TERM; cat > copy && touch happy";
    let running = network.rdpipe([&source, sink]).start();
    flows(&network, "h2", "copy");
    network.shell("h1", TRICKLE).kill();
    running.end().tells(137, &["h1"]);
    assert_eq!(network.names("h2"), ["copy"]);
}

#[test]
fn control_c_on_the_terminal_ends_the_pipeline() {
    let Some(network) = Network::new(2) else {
        return;
    };
    if crate::support::programs::is_ignored(Signal::INT) {
        crate::support::programs::skip("SIGINT is ignored here");
        return;
    }
    let mut terminal = Terminal::new();
    let source = format!("h1:{TRICKLE}");
    let running = network
        .on_terminal(&terminal, [&source, "h2:cat > copy && touch happy"])
        .start();
    flows(&network, "h2", "copy");
    terminal.types("\x03");
    let end = running.end();
    end.exits(130);
    assert_eq!(network.names("h2"), ["copy"]);
    network.assert_empty(end.at, GONE);
}
