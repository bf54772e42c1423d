//! A pipeline over many hosts connects to all of them in parallel.

use crate::support::programs::hosts::{Network, Outcome};

/// The number of hosts.
const HOSTS: usize = 8;

#[test]
fn all_hosts_are_dialled_before_the_first_one_answers() {
    let Some(network) = Network::new(HOSTS) else {
        return;
    };
    let config = network.own("ssh_config");
    // Each ssh waits until all others have started: if they started one after another, the first would wait forever.
    // `scripts/bench` measures how long the start takes on an idle machine.
    let script = format!(
        "touch $0.$$; until [ $(ls $0.* | wc -l) -ge {HOSTS} ]; do sleep 0.02; done; exec ssh -F {} \"$@\"",
        config.display()
    );
    network.install("ctl", "slow", &script);
    let slow = network.own("ctl/bin/slow").display().to_string();
    let mut arguments = vec!["--rsh".to_owned(), slow];
    arguments.push("h1:echo through".to_owned());
    arguments.extend((2..=HOSTS).map(|number| format!("h{number}:cat")));
    network.rdpipe(&arguments).start().end().is("through\n");
}
