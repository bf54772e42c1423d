//! Where rdsh does more than ssh: it leaves no process behind, it tells of output that it could not write, and it says
//! what to do in place of what it does not do.

use std::{os::unix::fs::symlink, process::Stdio};

use super::script;
use crate::support::programs::{
    built,
    hosts::{GONE, Network, Outcome, SSH},
    limit,
};

#[test]
fn a_death_of_rdsh_ends_the_command() {
    let Some(network) = Network::new(1) else {
        return;
    };
    for signal in ["KILL", "TERM"] {
        let line = format!(
            "mkfifo f; $R h1 'echo up; cat >copy; sleep 600' <>f >g & \
             exec 3<>g; read -r l <&3; kill -{signal} $!; wait $! 2>/dev/null"
        );
        let end = script(&network, false, &format!("mkfifo g; {line}"))
            .start()
            .end();
        assert_ne!(end.code(), 0, "{}", end.stderr);
        network.assert_empty(end.at, GONE);
    }
}

#[test]
fn the_command_ends_with_its_connection_and_a_line_says_so() {
    let Some(network) = Network::new(1) else {
        return;
    };
    let running = script(&network, false, "exec $R h1 'exec sleep 600'").start();
    network.process("h1", "sleep 600");
    let worker = network.process("h1", "--agent=worker");
    worker.kill();
    let end = running.end();
    end.tells(255, &["rdsh: ", "h1", "killed by signal 9"]);
    network.assert_empty(end.at, GONE);
}

#[test]
fn output_that_cannot_be_written_is_a_failure() {
    let Some(network) = Network::new(1) else {
        return;
    };
    let end = script(&network, false, "$R h1 'echo out' >/dev/full")
        .start()
        .end();
    end.fails(255, &["cannot write standard output", "No space left"]);
    let end = script(&network, false, "$R h1 cat </").start().end();
    end.fails(255, &["cannot read standard input", "Is a directory"]);
}

#[test]
fn what_only_ssh_does_is_named() {
    let Some(network) = Network::new(1) else {
        return;
    };
    for (line, words) in [
        ("$R -L 1:a:2 h1 true", &["rdforward -L"][..]),
        ("$R -N h1", &["rdforward"]),
        ("$R -fn h1 true", &["background"]),
        ("$R h1", &["COMMAND", "use ssh"]),
        ("$R -Z h1 true", &["-Z is no option of ssh"]),
        ("$R --rsh 'env' -p 22 h1 true", &["option of ssh", "--rsh"]),
        ("RDSH_OPTIONS=\"'\" $R h1 true", &["RDSH_OPTIONS"]),
        ("PATH=/nowhere $R h1 true", &["there is no ssh in PATH"]),
    ] {
        script(&network, false, line)
            .start()
            .end()
            .fails(255, words);
    }
    let end = script(&network, false, "$R --no-such h1 true")
        .start()
        .end();
    end.tells(255, &["--no-such", "Usage: rdsh"]);
}

#[test]
fn options_of_rdsh_reach_the_streams() {
    let Some(network) = Network::new(1) else {
        return;
    };
    let line = "RDSH_OPTIONS='--verbose --addr h1=10.77.0.1 --timeout 20' \
                $R --transport=tcp -q --port 7691-7692 --encrypt never h1 'echo out; ss -tnH >&2'";
    let end = script(&network, false, line).start().end();
    // Either stream may have the first port, and that of the input may be over when the command looks.
    end.tells(0, &["the data is not encrypted", "10.77.0.1]:769"]);
    assert_eq!(end.stdout, b"out\n");
    let line = "seq 300000 | $R --via-ssh always h1 'cksum; exit 3'";
    let end = script(&network, false, line).start().end();
    assert_eq!((end.exits(3), end.stdout.len() > 10), ("", true));
    let end = script(
        &network,
        false,
        "$R --remote-rdpipe /nowhere/rdpipe h1 true",
    )
    .start()
    .end();
    end.tells(255, &["there is no rdpipe on h1"]);
}

/// Runs programs that know no other name than `ssh`, by a link.
#[test]
fn a_link_named_ssh_is_rdsh_and_finds_the_real_one() {
    let Some(network) = Network::new(1) else {
        return;
    };
    let links = network.file("ctl", "links");
    std::fs::create_dir(&links).unwrap();
    symlink(built("rdpipe"), links.join("ssh")).unwrap();
    let path = format!(
        "PATH={}:$PATH; R=\"ssh -F {}\"",
        links.display(),
        network.own("ssh_config").display()
    );
    let run = |line: &str| {
        script(&network, false, &format!("{path}; {line}"))
            .start()
            .end()
    };
    run("echo in | $R h1 'cat; echo out'").is("in\nout\n");
    // A master, as syncoid starts one; its question and its end.
    let line = "$R -M -S $PWD/s -o ControlPersist=1m h1 exit && $R -S $PWD/s h1 echo -n && \
                $R -S $PWD/s h1 'echo over the master' && $R h1 -S $PWD/s -O exit 2>/dev/null";
    run(line).is("over the master\n");
    // A login is ssh's own.
    run("echo 'echo from a login' | $R -T h1 2>/dev/null").is("from a login\n");
    assert!(std::path::Path::new(SSH).exists());
}

#[test]
fn a_host_without_rdpipe_receives_it() {
    let Some(network) = crate::deployment::without_rdpipe(1) else {
        return;
    };
    for _ in 0..2 {
        let end = script(&network, false, "echo in | $R h1 'cat; exit 3'")
            .start()
            .end();
        assert_eq!((end.exits(3), &end.stdout[..]), ("", &b"in\n"[..]));
    }
}

/// Types a password on the terminal of rdsh, which ssh asks for.
#[test]
fn ssh_may_ask_a_question_on_the_terminal() {
    let Some(network) = Network::new(1) else {
        return;
    };
    let mut terminal = crate::support::programs::hosts::Terminal::new();
    let known = network.own("none");
    let setup = network
        .program("/usr/bin/setsid", "rdsh")
        .args([
            "--ctty",
            &built("rdsh"),
            "-oStrictHostKeyChecking=ask",
            "-F",
        ])
        .arg(network.own("ssh_config"))
        .arg(format!("-oUserKnownHostsFile={}", known.display()))
        .args(["h1", "echo", "out"])
        .stdin(terminal.inside())
        .stdout(Stdio::piped());
    let running = setup.start();
    terminal.shows("(yes/no");
    terminal.types("yes\n");
    assert!(running.ends_within(limit(GONE)), "it asks again");
    let end = running.end();
    assert_eq!(
        (end.code(), &end.stdout[..]),
        (0, &b"out\n"[..]),
        "{}",
        end.stderr
    );
}
