//! The keys of the edges of a pipeline appear neither in /proc nor in memory while the pipeline runs.

use std::{fs, os::unix::fs::FileExt, process::Stdio};

use crate::support::programs::hosts::{Network, Outcome};
use crate::support::programs::local_hosts::rdpipe;
use crate::support::programs::{eventually, skip};

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

/// Returns the number of generated keys in the memory of a process, as text, or none if this user may not read it.
fn keys_in_memory(id: u32) -> Option<usize> {
    let is_of_key = |byte: &u8| matches!(byte, b'a'..=b'z' | b'2'..=b'7');
    let maps = fs::read_to_string(format!("/proc/{id}/maps")).ok()?;
    let memory = fs::File::open(format!("/proc/{id}/mem")).ok()?;
    let mut count = 0;
    for line in maps.lines().filter(|line| line.contains(" rw")) {
        let (start, end) = line.split_once(' ')?.0.split_once('-')?;
        let start = u64::from_str_radix(start, 16).ok()?;
        let end = u64::from_str_radix(end, 16).ok()?;
        // A part of a mapping may be unmapped by now.
        let mut bytes = vec![0; usize::try_from(end - start).ok()?];
        let length = memory.read_at(&mut bytes, start).unwrap_or(0);
        let keys = bytes[..length]
            .windows(60)
            .filter(|window| window.starts_with(KEY) && window[KEY.len()..].iter().all(is_of_key));
        count += keys.count();
    }
    Some(count)
}

/// Returns the children of a process, their children, and so on.
fn descendants(id: u32) -> Vec<u32> {
    let tasks = fs::read_dir(format!("/proc/{id}/task"));
    let tasks = tasks.into_iter().flatten().flatten();
    let children = tasks.map(|task| fs::read_to_string(task.path().join("children")));
    let children: String = children.map(Result::unwrap_or_default).collect();
    let children = children.split_whitespace().flat_map(str::parse);
    children
        .flat_map(|child| [vec![child], descendants(child)].concat())
        .collect()
}

#[test]
fn no_text_of_a_key_stays_in_memory_when_the_edges_are_connected() {
    let made = rdpipe::Key::generate().unwrap().text();
    match keys_in_memory(std::process::id()) {
        None => return skip("this user may not read the memory of its processes"),
        Some(count) => assert!(count > 0, "the search misses {}", made.len()),
    }
    let command = ":echo up >&2; cat";
    let mut running = rdpipe(&[command, ":cat"]).stdin(Stdio::piped()).start();
    let stdin = running.stdin();
    running.said("that it runs", |text| text.contains("up\n").then_some(()));
    let mut all = descendants(running.id());
    all.push(running.id());
    // Two guards, two workers, and the controller, beside the commands.
    assert!(all.len() >= 5, "{all:?}");
    for id in all {
        let line = fs::read_to_string(format!("/proc/{id}/cmdline")).unwrap_or_default();
        let count = keys_in_memory(id).expect("its memory can be read");
        assert_eq!(count, 0, "in {line:?}");
    }
    drop(stdin);
    running.end().exits(0);
}
