//! The examples of verbs between two guests, typed as docs/verbs.md shows them.

use crate::support::programs::{
    Running, built,
    examples::{ShownCommand, shown_runs, steps},
    hosts::Network,
    key,
};

/// Starts a command of the page on a guest. The page calls the hosts hostA and hostB.
fn start(network: &Network, host: &str, shown: &ShownCommand) -> Running {
    let program = built(&format!("examples/{}", shown.program));
    let arguments = shown.arguments.join(" ").replace("hostB", "10.77.0.2");
    let line = format!("RDPIPE_KEY={} exec {program} {arguments}", key());
    network.ssh(host, &line).start()
}

#[test]
fn two_hosts_print_what_the_page_shows() {
    let Some(network) = Network::of_guests() else {
        return;
    };
    let runs = shown_runs();
    assert!(runs.len() >= 2);
    for [on_b, on_a] in runs {
        let listener = start(&network, "h2", &on_b);
        assert_eq!(listener.port().to_string(), on_b.arguments[1]);
        let dialer = start(&network, "h1", &on_a).end();
        let listener = listener.end();
        for (end, shown) in [(&listener, &on_b), (&dialer, &on_a)] {
            end.exits(0);
            println!("{}", String::from_utf8_lossy(&end.stdout));
            assert_eq!(steps(&end.stdout), shown.steps);
        }
    }
}
