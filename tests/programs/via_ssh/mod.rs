//! Hosts between which only ssh works: the data goes through ssh, and nothing stays behind.

use std::{
    fs,
    io::{Read, Write},
    net::{Ipv4Addr, TcpStream},
    path::Path,
    time::Duration,
};

use crate::{
    measuring::checks::{lacks_firewall, swallow},
    support::programs::{
        End, built, eventually,
        hosts::{GONE, Network, Outcome, text},
        patience,
    },
};

/// Words of the line that says which data goes through ssh.
const THROUGH: &str = "goes through ssh";

/// Drops what begins a TCP connection that arrives at `host`, apart from those of ssh.
#[track_caller]
fn close(network: &Network, host: &str) {
    let begins = "iifname != lo tcp flags & (syn|ack) == syn tcp dport != 22 drop";
    network.on(
        host,
        &format!(
            "nft add table inet closed && \
             nft 'add chain inet closed arriving {{ type filter hook input priority 0; }}' && \
             nft 'add rule inet closed arriving {begins}'"
        ),
    );
}

/// Makes hosts of which each accepts only connections of ssh.
fn closed(count: usize) -> Option<Network> {
    let network = Network::new(count)?;
    if lacks_firewall(&network) {
        return None;
    }
    for host in network.hosts() {
        close(&network, &host);
    }
    Some(network)
}

/// Checks that the program wrote `stdout`, and said of these pairs, and of no others, that their
/// data goes through ssh.
#[track_caller]
fn is_through_ssh(network: &Network, end: &End, stdout: &[u8], pairs: &[&str]) {
    let text = end.exits(0);
    assert_eq!(text.matches(THROUGH).count(), pairs.len(), "{text}");
    for pair in pairs {
        let told = format!("{pair} cannot reach each other, so their data goes through ssh");
        assert!(text.contains(&told), "{pair}: {text}");
    }
    assert!(
        text.contains("-p 7691-7699") && text.contains("--addr"),
        "{text}"
    );
    assert!(end.stdout == stdout, "{} bytes came out", end.stdout.len());
    network.assert_empty(end.at, GONE);
}

#[test]
fn a_pipeline_a_copy_and_a_file_go_through_ssh_where_no_port_is_open() {
    let Some(network) = closed(3) else {
        return;
    };
    let content = text(3 << 20);
    network.write("h1", "set", &content);
    let segments = ["h1:< set", "h2:tr a-z A-Z", "h3:tr A-Z a-z"];
    let end = network.rdpipe(segments).start().end();
    let pairs = [
        "stage 1 (h1) and stage 2 (h2)",
        "stage 2 (h2) and stage 3 (h3)",
        "stage 3 (h3) and rdpipe",
    ];
    is_through_ssh(&network, &end, &content, &pairs);
    // All streams of a copy are one pair.
    let end = network.rdcp(["h1:set", "h2:copy"]).start().end();
    let pairs = ["the source on h1 and the destination on h2"];
    is_through_ssh(&network, &end, b"", &pairs);
    assert!(network.read("h2", "copy") == content);
    let end = network.rdcat(["h2:copy"]).start().end();
    is_through_ssh(&network, &end, &content, &["h2 and rdcat"]);
    // From this machine, whose own ports are open: the data goes to it directly.
    network.write("ctl", "here", &content);
    let end = network.rdcp(["-q", "here", "h3:there"]).start().end();
    assert_eq!(end.exits(0), "");
    assert!(network.read("h3", "there") == content);
}

#[test]
fn a_tunnel_goes_through_ssh_where_no_port_is_open() {
    let Some(network) = closed(1) else {
        return;
    };
    let port = network.on(
        "h1",
        "setsid socat TCP-LISTEN:0,bind=127.0.0.1,fork EXEC:cat >/dev/null 2>&1 & \
         until ss -Hltnp | grep socat; do sleep 0.1; done",
    );
    let port = port.split("127.0.0.1:").nth(1).unwrap();
    let port = port.split_whitespace().next().unwrap();
    let forward = format!("0:127.0.0.1:{port}");
    let running = network.rdforward(["-L", &forward, "h1"]).start();
    let near = running.said("its port", |text| {
        let port = text.split("listening at ").nth(1)?;
        port.split(|c: char| !c.is_ascii_digit())
            .next()?
            .parse()
            .ok()
    });
    running.said("the way", |text| text.contains(THROUGH).then_some(()));
    running.said("that it is ready", |text| {
        text.contains("ready").then_some(())
    });
    let content = text(2 << 20);
    network.within("ctl", || {
        // Both directions of several connections at once.
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    let mut sent = TcpStream::connect((Ipv4Addr::LOCALHOST, near)).unwrap();
                    let mut echo = sent.try_clone().unwrap();
                    let reading = scope.spawn(move || {
                        let mut found = Vec::new();
                        echo.read_to_end(&mut found).unwrap();
                        found
                    });
                    sent.write_all(&content).unwrap();
                    sent.shutdown(std::net::Shutdown::Write).unwrap();
                    assert!(reading.join().unwrap() == content);
                });
            }
        });
    });
    running.signal(rustix::process::Signal::TERM);
    let end = running.end();
    network.assert_empty_but(end.at, GONE, |process| process.line.contains("socat"));
}

#[test]
fn a_command_of_rdsh_goes_through_ssh_where_no_port_is_open() {
    let Some(network) = closed(1) else {
        return;
    };
    let config = network.own("ssh_config");
    let rdsh = network
        .program(&built("rdsh"), "rdsh")
        .arg("-F")
        .arg(config);
    let end = rdsh
        .args(["h1", "seq 100000; echo said >&2; exit 3"])
        .start()
        .end();
    let text = end.exits(3);
    assert!(text.contains("said"), "{text}");
    let lines = String::from_utf8_lossy(&end.stdout).lines().count();
    assert_eq!(lines, 100_000, "{text}");
    network.assert_empty(end.at, GONE);
}

#[test]
fn data_goes_in_the_direction_that_is_open() {
    let Some(network) = Network::new(2) else {
        return;
    };
    if lacks_firewall(&network) {
        return;
    }
    // The reader listens at first, and the ends then swap.
    swallow(&network, "h2", "10.77.0.1");
    let end = network
        .rdpipe(["h1:echo data", "h2:cat > copy"])
        .start()
        .end();
    assert_eq!(end.exits(0), "");
    assert_eq!(network.read("h2", "copy"), b"data\n");
}

#[test]
fn a_key_that_allows_the_agent_alone_and_no_forwarding_suffices() {
    let Some(network) = closed(2) else {
        return;
    };
    let file = network.own("user_key.pub");
    let key = fs::read_to_string(&file).unwrap();
    fs::write(&file, format!("restrict,command=\"rdpipe --agent\" {key}")).unwrap();
    let end = network.rdpipe(["h1:echo data", "h2:cat"]).start().end();
    let pairs = [
        "rdpipe and stage 1 (h1)",
        "stage 1 (h1) and stage 2 (h2)",
        "stage 2 (h2) and rdpipe",
    ];
    is_through_ssh(&network, &end, b"data\n", &pairs);
}

#[test]
fn hosts_without_rdpipe_receive_it_and_run_relays() {
    let Some(network) = closed(2) else {
        return;
    };
    let programs = Path::new(env!("CARGO_BIN_EXE_rdpipe")).parent().unwrap();
    for host in network.hosts() {
        network.on(
            &host,
            &format!("mount -t tmpfs tmpfs {}", programs.display()),
        );
        network.on(&host, "chmod 755 .");
    }
    let end = network
        .rdpipe(["h1:echo data", "h2:cat > copy"])
        .start()
        .end();
    end.tells(0, &["sent rdpipe", THROUGH]);
    assert_eq!(network.read("h2", "copy"), b"data\n");
}

#[test]
fn the_user_chooses_whether_data_goes_through_ssh() {
    let Some(network) = closed(2) else {
        return;
    };
    let segments = ["h1:echo data", "h2:cat > copy"];
    let end = network
        .rdpipe(["--via-ssh", "never"].iter().chain(&segments))
        .start()
        .end();
    end.tells(
        255,
        &[
            "cannot reach each other",
            "does not answer on port",
            "a firewall?",
        ],
    );
    end.is_silent_on(&["ssh"]);
    network.assert_empty(end.at, GONE);
    for host in network.hosts() {
        network.on(&host, "nft delete table inet closed");
    }
    let report = network.file("ctl", "report");
    let json = format!("--json={}", report.display());
    let end = network
        .rdpipe(["--via-ssh", "always", &json])
        .args(segments)
        .start()
        .end();
    assert_eq!(end.exits(0), "");
    assert_eq!(network.read("h2", "copy"), b"data\n");
    let report = fs::read_to_string(report).unwrap();
    assert!(report.matches("through ssh").count() >= 2, "{report}");
}

#[test]
fn a_pair_that_only_ssh_joins_is_named_by_a_check() {
    let Some(network) = closed(2) else {
        return;
    };
    let end = network.rdperf(["--check", "h1", "h2"]).start().end();
    let text = String::from_utf8_lossy(&end.stdout).into_owned();
    assert!(text.contains("through ssh"), "{text}");
    let end = network
        .rdperf(["--via-ssh", "never", "--check", "h1", "h2"])
        .start()
        .end();
    let text = String::from_utf8_lossy(&end.stdout).into_owned();
    assert!(!text.contains("through ssh"), "{text}");
}

/// Starts a pipeline whose data flows through ssh without end.
#[track_caller]
fn endless(network: &Network) -> crate::support::programs::Running {
    let running = network
        .rdpipe(["h1:yes", "h2:cat > copy; touch over"])
        .start();
    eventually("data on h2", || {
        let copy = network.file("h2", "copy").metadata();
        copy.is_ok_and(|file| file.len() > 0).then_some(())
    });
    running
}

#[test]
fn a_killed_relay_is_named_and_nothing_stays_behind() {
    let Some(network) = closed(2) else {
        return;
    };
    for host in ["h1", "h2"] {
        let running = endless(&network);
        // The agents of the relays are the last that were started.
        network.process(host, "--agent=worker").kill();
        let end = running.end();
        end.tells(255, &["through ssh any more", host, "killed by signal 9"]);
        network.assert_empty(end.at, GONE);
        network.on("h2", "rm -f copy && ! test -e over");
    }
}

#[test]
fn an_interrupted_run_through_ssh_leaves_nothing_behind() {
    let Some(network) = closed(2) else {
        return;
    };
    for signal in [rustix::process::Signal::INT, rustix::process::Signal::KILL] {
        let running = endless(&network);
        running.signal(signal);
        let end = running.end();
        network.assert_empty(end.at, GONE);
        network.on("h2", "rm copy");
    }
}

#[test]
fn a_reader_that_pauses_keeps_no_keepalive_back() {
    let Some(network) = closed(2) else {
        return;
    };
    let silence = patience(Duration::from_secs(2)).as_secs_f64();
    let pause = 1.5 * silence;
    let end = network
        .rdpipe([
            "--timeout",
            &silence.to_string(),
            "h1:head -c 40000000 /dev/zero",
            &format!("h2:sleep {pause}; wc -c > count"),
        ])
        .start()
        .end();
    end.tells(0, &[THROUGH]);
    assert_eq!(network.read("h2", "count"), b"40000000\n");
}
