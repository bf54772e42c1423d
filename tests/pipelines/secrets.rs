//! The keys of the edges of a pipeline do not appear in /proc while the pipeline runs.

use std::fs;

use crate::support::programs::eventually;
use crate::support::programs::hosts::{Network, Outcome};

/// The first bytes of every key that rdpipe generates.
const KEY: &[u8] = b"rdk1";

/// Returns the places in /proc, of all processes on all hosts, that contain something like a key.
fn found(network: &Network) -> Vec<String> {
    let hosts = network.hosts().chain(["ctl".to_owned()]);
    let mut found = Vec::new();
    for host in hosts {
        for process in network.processes(&host) {
            for file in ["cmdline", "environ"] {
                let file = format!("/proc/{}/{file}", process.id);
                let content = fs::read(&file).unwrap_or_default();
                if content.windows(KEY.len()).any(|window| window == KEY) {
                    found.push(format!("{file} of {process:?} on {host}"));
                }
            }
        }
    }
    found
}

#[test]
fn no_argument_or_environment_shows_a_key() {
    let Some(network) = Network::new(3) else {
        return;
    };
    let made = rdpipe::Key::generate().unwrap();
    assert!(made.text().as_bytes().starts_with(KEY));
    // The test searches /proc from the first process on, again and again, to find a key that shows only for a moment.
    let segments = [
        ":while sleep 0.02; do echo more; done",
        "h1:cat",
        "h2:tee copy",
        "h3:cat > copy",
    ];
    let running = network.rdpipe(segments).start();
    eventually("something to arrive", || {
        assert_eq!(found(&network), Vec::<String>::new());
        let copy = network.file("h3", "copy").metadata();
        copy.is_ok_and(|copy| copy.len() > 0).then_some(())
    });
    assert_eq!(found(&network), Vec::<String>::new());
    // The environment of a command and of its parent contains no key either.
    let end = network
        .rdpipe(["h1:env; cat /proc/$PPID/environ"])
        .start()
        .end();
    end.exits(0);
    assert!(!end.stdout.windows(KEY.len()).any(|window| window == KEY));
    running.kill();
    running.end().is_silent_on(&["rdk1"]);
    // The search does find a key that is there.
    let decoy = network
        .ssh("h1", "RDPIPE_KEY=rdk1example sleep 1000")
        .start();
    eventually("a key to be found", || {
        found(&network)
            .iter()
            .any(|place| place.contains("environ"))
            .then_some(())
    });
    drop(decoy);
}
