//! Hosts without rdpipe, or with another version: they receive the program in the session that starts the agent.

use std::{ffi::OsStr, fs, path::Path, process::Stdio};

use crate::support::programs::{
    End, Place, built, eventually,
    hosts::{Network, Outcome, SSH},
    program,
};

/// Makes hosts on which no rdpipe is in PATH.
pub(crate) fn without_rdpipe(count: usize) -> Option<Network> {
    let network = Network::new(count)?;
    let programs = Path::new(env!("CARGO_BIN_EXE_rdpipe")).parent().unwrap();
    for host in network.hosts() {
        network.on(
            &host,
            &format!("mount -t tmpfs tmpfs {}", programs.display()),
        );
        // Others may write to the homes of these hosts, so that rdpipe would run no program from there.
        network.on(&host, "chmod 755 .");
    }
    Some(network)
}

fn logins(network: &Network, host: &str) -> usize {
    let log = fs::read_to_string(network.own(&format!("{host}/sshd.log"))).unwrap();
    log.matches("Accepted publickey").count()
}

fn run<A: AsRef<OsStr>>(network: &Network, arguments: impl IntoIterator<Item = A>) -> End {
    network.rdpipe(arguments).start().end()
}

/// Checks that the program printed `text` and succeeded, whatever it said.
#[track_caller]
fn prints(end: &End, text: &str) {
    assert_eq!(
        (end.code(), String::from_utf8_lossy(&end.stdout).as_ref()),
        (0, text),
        "{}",
        end.stderr
    );
}

#[test]
fn the_programs_start_without_libibverbs() {
    for name in [
        "rdcat",
        "rdcp",
        "rdforward",
        "rdperf",
        "rdpipe",
        "rdrecv",
        "rdsend",
        "rdsh",
    ] {
        let setup = program(&built(name), "the loader").env("LD_TRACE_LOADED_OBJECTS", "1");
        let end = setup.start().end();
        end.exits(0);
        let text = String::from_utf8_lossy(&end.stdout);
        for line in text.lines() {
            let library = line.split_whitespace().next().unwrap_or_default();
            let library = library.rsplit('/').next().unwrap_or_default();
            let every_host_has_it = ["linux-vdso.", "ld-linux", "libc.", "libm.", "libgcc_s."];
            assert!(
                every_host_has_it
                    .iter()
                    .any(|start| library.starts_with(start)),
                "{name} needs {library}:\n{text}"
            );
        }
    }
}

#[test]
fn hosts_that_have_no_rdpipe_receive_it_once() {
    let Some(network) = without_rdpipe(3) else {
        return;
    };
    let refused = run(&network, ["--deploy", "never", "h1:echo x"]);
    refused.tells(255, &["there is no rdpipe on h1"]);
    let content = vec![7; 100_000];
    network.write("h1", "set.tar", &content);
    let before = logins(&network, "h1");
    for turn in 0..2 {
        let end = run(&network, ["h1:< set.tar", "h2:gzip -c", "h3:> set.tar.gz"]);
        assert_eq!(end.code(), 0, "{}", end.stderr);
        for host in ["h1", "h2", "h3"] {
            let text = format!("to {host}, which has no rdpipe; it is kept there as");
            assert_eq!(
                end.stderr.matches(&text).count(),
                1 - turn,
                "{}",
                end.stderr
            );
        }
        assert!(network.read("h3", "set.tar.gz").len() > 100);
    }
    // The upload has no session of its own.
    assert_eq!(logins(&network, "h1") - before, 2);
    // The other programs find the same file.
    let copied = network.rdcp(["-q", "h1:set.tar", "h2:copy"]).start().end();
    copied.exits(0);
    assert_eq!(network.read("h2", "copy"), content);
    network.rdcat(["h2:copy"]).start().end().is(content);
    let checked = network.rdperf(["--check", "h2"]).start().end();
    assert!(
        !checked.stderr.contains("sent rdpipe"),
        "{}",
        checked.stderr
    );
    assert!(!checked.stdout.is_empty(), "{}", checked.stderr);
    for host in network.hosts() {
        assert_eq!(
            network.on(&host, "ls .cache/rdpipe | wc -l").trim(),
            "1",
            "{host}"
        );
    }
}

#[test]
fn a_host_whose_rdpipe_has_another_version_receives_this_one() {
    let Some(network) = Network::new(1) else {
        return;
    };
    network.on("h1", "chmod 755 .");
    network.install("h1", "rdpipe", "echo 'error: invalid value' >&2; exit 2");
    let end = run(&network, ["h1:echo done"]);
    prints(&end, "done\n");
    assert!(
        end.stderr
            .contains("to h1, whose own rdpipe has another version"),
        "{}",
        end.stderr
    );
    // Its own version runs where the user wants that.
    run(&network, ["--deploy", "never", "h1:echo done"]).tells(255, &["h1"]);
    // With the same version nothing is sent, unless the user wants it.
    network.install(
        "h1",
        "rdpipe",
        &format!("exec {} \"$@\"", env!("CARGO_BIN_EXE_rdpipe")),
    );
    network.on("h1", "rm -r .cache");
    let end = run(&network, ["h1:echo done"]);
    end.is("done\n");
    assert!(!end.stderr.contains("sent rdpipe"), "{}", end.stderr);
    let end = run(
        &network,
        ["--deploy", "always", "h1:readlink /proc/$PPID/exe"],
    );
    let text = String::from_utf8_lossy(&end.stdout);
    assert!(text.contains("/.cache/rdpipe/"), "{text}{}", end.stderr);
}

#[test]
fn every_login_shell_starts_the_script() {
    let Some(network) = without_rdpipe(1) else {
        return;
    };
    for shell in ["/bin/dash", "/usr/bin/tcsh", "/usr/bin/fish", "/bin/bash"] {
        if !Path::new(shell).exists() {
            println!("SKIPPED: no {shell} here");
            continue;
        }
        let change = format!(
            "sed 's|^\\(root:.*:\\).*|\\1{shell}|' /etc/passwd > p; cat p > /etc/passwd; rm -rf p .cache"
        );
        network.on("h1", &change);
        for _ in 0..2 {
            let end = network.rdcat(["h1:/etc/hostname"]).start().end();
            assert_eq!(end.code(), 0, "{shell}: {}", end.stderr);
        }
    }
}

#[test]
fn a_key_that_allows_the_agent_alone_starts_it() {
    let Some(network) = Network::new(1) else {
        return;
    };
    let file = network.own("user_key.pub");
    let key = fs::read_to_string(&file).unwrap();
    fs::write(&file, format!("restrict,command=\"rdpipe --agent\" {key}")).unwrap();
    run(&network, ["h1:echo done"]).is("done\n");
}

#[test]
fn a_program_of_rsh_may_join_the_words_or_run_them() {
    let Some(network) = without_rdpipe(1) else {
        return;
    };
    let ssh = format!("{SSH} -F {}", network.own("ssh_config").display());
    prints(&run(&network, ["--rsh", &ssh, "h1:echo done"]), "done\n");
    let place = Place::new();
    place.program("rsh", b"#!/bin/sh\nshift\nexec \"$@\"\n");
    let rsh = place.path("rsh").display().to_string();
    for _ in 0..2 {
        let setup =
            program(&built("rdpipe"), "rdpipe").args(["--rsh", &rsh, "elsewhere:echo data"]);
        let setup = setup
            .env("PATH", "/usr/bin:/bin")
            .env("HOME", place.directory());
        prints(&setup.stdin(Stdio::null()).start().end(), "data\n");
    }
    assert!(place.path(".cache/rdpipe").is_dir());
}

#[test]
fn a_home_that_cannot_hold_or_run_the_program_is_named() {
    let Some(network) = without_rdpipe(2) else {
        return;
    };
    for (host, options, texts) in [
        (
            "h1",
            "size=1m,mode=700",
            ["No space left on device", "XDG_CACHE_HOME"],
        ),
        ("h2", "noexec,mode=700", ["Permission denied", "noexec"]),
    ] {
        network.on(
            host,
            &format!("mkdir .cache && mount -t tmpfs -o {options} tmpfs .cache"),
        );
        let end = run(&network, [&format!("{host}:echo x")]);
        end.tells(255, &[host, texts[0], texts[1], "install"]);
        // The shell of the host tells the reason, and then removes what it has received.
        eventually(&format!("an empty cache of {host}"), || {
            network
                .on(host, "find .cache -type f")
                .is_empty()
                .then_some(())
        });
    }
}
