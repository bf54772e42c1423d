//! Many clients: at once, and one after another. Memory, threads and descriptors stay what they were.

use std::fs;

use crate::{
    copies::trees,
    serving::served::Served,
    support::{
        process::status_kib,
        programs::{eventually, peak_kib, pinned_kib},
    },
};

/// Returns `small`, or `full` if the long tests were asked for.
fn count(small: usize, full: usize) -> usize {
    if std::env::var_os("RDPIPE_FULL").is_some() {
        full
    } else {
        small
    }
}

/// What a server holds: threads, descriptors, resident KiB.
fn held(served: &Served) -> (u64, usize, u64) {
    let id = served.server.id().to_string();
    let status = fs::read_to_string(format!("/proc/{id}/status")).expect("it runs");
    let threads = status
        .lines()
        .find_map(|line| line.strip_prefix("Threads:"));
    let threads = threads.expect("the kernel counts").trim().parse().unwrap();
    let descriptors = fs::read_dir(format!("/proc/{id}/fd"))
        .expect("it runs")
        .count();
    (threads, descriptors, status_kib(&id, "RssAnon:"))
}

/// Waits until the server has no more threads and descriptors than before.
#[track_caller]
fn assert_as_before(served: &Served, before: (u64, usize, u64)) {
    let what = format!("threads and descriptors as before: {before:?}");
    eventually(&what, || {
        let now = held(served);
        // tokio keeps some threads that could block, for ten seconds.
        (now.0 <= before.0 + 4 && now.1 <= before.1).then_some(())
    });
}

#[test]
fn sixty_four_clients_at_once_are_served_within_the_memory() {
    let served = Served::start(&["--memory", "256M"]);
    let megabytes = count(4, 256);
    trees::large(&served.here("file"), (megabytes as u64) << 20);
    // The server says that it listens before it has started all of its threads. After a copy it has.
    served.alice(&["%file", "@first"]).start().end().exits(0);
    let before = held(&served);
    let copies: Vec<_> = (0..64)
        .map(|number| {
            let client = if number % 2 == 0 { "alice" } else { "bob" };
            let there = format!("@copy-{number}");
            served.client(client, &["%file", &there]).start()
        })
        .collect();
    for copy in copies {
        copy.end().exits(0);
    }
    let expected = fs::read(served.here("file")).unwrap();
    for number in 0..64 {
        let copy = served.root(&format!("copy-{number}"));
        assert!(fs::read(&copy).unwrap() == expected, "{}", copy.display());
        fs::remove_file(copy).unwrap();
    }
    assert_as_before(&served, before);
    let peak = peak_kib(&served.server) - before.2;
    println!("peak: {peak} KiB beyond {} KiB", before.2);
    assert!(peak < 256 << 10, "{peak} KiB");
}

#[test]
fn clients_one_after_another_leave_nothing_behind() {
    let served = Served::start(&[]);
    fs::write(served.here("file"), vec![7; 10_000]).unwrap();
    let copy = |round: usize| {
        let arguments = if round % 2 == 0 {
            ["%file", "@file"]
        } else {
            ["@file", "%back"]
        };
        served.alice(&arguments).start().end().exits(0);
    };
    (0..10).for_each(copy);
    let before = held(&served);
    (0..count(60, 1000)).for_each(copy);
    assert_as_before(&served, before);
    let after = held(&served);
    println!("{before:?} then {after:?}");
    assert!(after.2 < before.2 + (8 << 10), "{before:?} then {after:?}");
    assert_eq!(pinned_kib(&served.server), 0);
}
