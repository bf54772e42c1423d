//! How soon a pipeline over many hosts starts: they are brought up side by side.

#![cfg(feature = "cli")]

mod hosts;
mod pair;

use std::time::{Duration, Instant};

use hosts::Network;

/// The hosts that the promise is about.
const HOSTS: usize = 8;

/// A pipeline of so many stages, one a host, each behind `--rsh` words in front of ssh.
fn run(network: &Network, stages: usize, rsh: &str) -> Duration {
    let mut arguments = vec!["--rsh".to_owned(), rsh.to_owned()];
    arguments.extend((1..=stages).map(|number| format!("h{number}:cat")));
    let since = Instant::now();
    let end = network.rdpipe(&arguments).start().end();
    assert_eq!(end.exits(0), "");
    end.at - since
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
    let best = |stages| (0..3).map(|_| run(&network, stages, &slow)).min();
    let (one, eight) = (best(1).unwrap(), best(HOSTS).unwrap());
    println!("one stage {one:?}, {HOSTS} stages {eight:?}");
    // One after the other they would take 3.5 s more. How much it is where nothing else runs, scripts/bench tells.
    let limit = one + Duration::from_secs(2);
    assert!(eight <= limit, "{one:?} and {eight:?}");
}
