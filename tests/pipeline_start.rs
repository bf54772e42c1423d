//! How soon a pipeline over many hosts starts: they are brought up side by side.

mod hosts;
mod pair;

use std::time::{Duration, Instant};

use hosts::Network;

/// The hosts that the promise is about.
const HOSTS: usize = 8;

/// A pipeline of so many stages, one a host, each behind `--rsh` words in front of ssh.
fn run(network: &Network, stages: usize, rsh: Option<&str>) -> Duration {
    let mut arguments = Vec::new();
    if let Some(rsh) = rsh {
        arguments.extend(["--rsh".to_owned(), rsh.to_owned()]);
    }
    arguments.extend((1..=stages).map(|number| format!("h{number}:cat")));
    let since = Instant::now();
    let end = network.rdpipe(&arguments).start().end();
    assert_eq!(end.exits(0), "");
    end.at - since
}

/// The same number of `ssh host true`, at once.
fn run_ssh(network: &Network) -> Duration {
    let since = Instant::now();
    let running: Vec<_> = network
        .hosts()
        .map(|host| network.ssh(&host, "true").start())
        .collect();
    for running in running {
        running.end().exits(0);
    }
    since.elapsed()
}

#[test]
fn a_slow_way_to_every_host_is_gone_once() {
    let Some(network) = Network::new(HOSTS) else {
        return;
    };
    let config = network.own("ssh_config");
    network.install(
        "ctl",
        "slow",
        &format!("sleep 0.5; exec ssh -F {} \"$@\"", config.display()),
    );
    let slow = network.own("ctl/bin/slow").display().to_string();
    // The best of some: what else runs here only ever makes it worse.
    let best = |stages| (0..3).map(|_| run(&network, stages, Some(&slow))).min();
    let (one, eight) = (best(1).unwrap(), best(HOSTS).unwrap());
    println!("one stage {one:?}, {HOSTS} stages {eight:?}");
    let limit = one + Duration::from_secs(1) * busy();
    assert!(eight <= limit, "{one:?} and {eight:?}");
}

#[test]
fn no_slower_than_ssh_twice() {
    let Some(network) = Network::new(HOSTS) else {
        return;
    };
    let rounds: Vec<_> = (0..5)
        .map(|_| (run_ssh(&network), run(&network, HOSTS, None)))
        .collect();
    let ssh = rounds.iter().map(|round| round.0).min().unwrap();
    let rdpipe = rounds.iter().map(|round| round.1).min().unwrap();
    println!("{HOSTS} ssh at once {ssh:?}, a pipeline {rdpipe:?}");
    assert!(rdpipe <= ssh * 2 * busy(), "{ssh:?} and {rdpipe:?}");
}

/// By how much everything is slower here: a build for tests does its cryptography without optimisation, and on few
/// processors that counts.
fn busy() -> u32 {
    if cfg!(debug_assertions) { 2 } else { 1 }
}
