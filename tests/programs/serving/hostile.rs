//! Clients that have a key and mean harm: what the server holds of them is bounded, goes with them, and keeps no other
//! client out.

use std::{
    fs,
    path::Path,
    time::{Duration, Instant},
};

use rdpipe::{
    Key,
    hostile::{Attack, Attacker, HostileClient, HostileTarget, TargetKind},
};

use super::{
    Served, add_client,
    copies::{as_before, count, held},
};
use crate::{
    copies::trees,
    support::programs::{eventually, peak_kib, soon},
};

/// The memory of the server.
const MEMORY: [&str; 2] = ["-m", "64M"];

/// The most that such a server may have resident: its memory, and 64 MiB.
const MOST_KIB: u64 = (64 + 64) << 10;

/// The directory of the hostile client.
const PLACE: &str = "mallory/";

/// Starts a server with a hostile client of the name `mallory` beside the others.
fn server(options: &[&str]) -> (Served, HostileTarget) {
    let place = tempfile::tempdir().unwrap();
    add_client(place.path(), "mallory");
    fs::create_dir_all(place.path().join("root").join(PLACE)).unwrap();
    let served = Served::start_in(place, &[&MEMORY, options].concat());
    let line = fs::read_to_string(served.key_of("mallory")).unwrap();
    let key = line.split_whitespace().nth(1).expect("a key");
    let target = HostileTarget {
        address: ([127, 0, 0, 1], served.port).into(),
        key: Key::parse(key).unwrap(),
        kind: TargetKind::Copies(PLACE.to_owned()),
    };
    (served, target)
}

/// Checks that the server has never had more memory than it may.
#[track_caller]
fn assert_bounded(served: &Served, what: &str) {
    let peak = peak_kib(&served.server);
    println!("{what}: at most {} MiB", peak >> 10);
    assert!(peak < MOST_KIB, "{what}: {} MiB", peak >> 10);
}

/// Copies a tree there and back as alice, and checks it.
#[track_caller]
fn copy_there_and_back(served: &Served, number: usize) -> Duration {
    let started = Instant::now();
    let (there, back) = (format!("@honest-{number}"), format!("%back-{number}"));
    let end = served.alice(&["-aT", "%tree", &there]).start().end();
    end.exits(0);
    served.alice(&["-aT", &there, &back]).start().end().exits(0);
    let took = started.elapsed();
    super::copies::assert_same(&served.here("tree"), &served.here(&back[1..]));
    fs::remove_dir_all(served.here(&back[1..])).unwrap();
    fs::remove_dir_all(served.root(&there[1..])).unwrap();
    took
}

/// Returns the paths of temporary files below a directory that no later run continues.
fn temporary_files(directory: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            found.extend(temporary_files(&entry.path()));
        } else if name.starts_with(".rdcp-") {
            found.push(entry.path().display().to_string());
        }
    }
    found
}

/// Waits until the server holds nothing any more of clients that have died.
#[track_caller]
fn assert_nothing_left(served: &Served, before: (u64, usize, u64)) {
    let started = Instant::now();
    let left = || {
        let now = held(served);
        let files = temporary_files(&served.root(""));
        (as_before(now, before) && files.is_empty())
            .then_some(())
            .ok_or(format!(
                "{before:?}, and {now:?} after {:?}: {files:?}",
                started.elapsed()
            ))
    };
    while let Err(left) = left() {
        assert!(started.elapsed() < soon(), "{left}");
        std::thread::sleep(Duration::from_millis(5));
    }
    println!("nothing was left after {:?}", started.elapsed());
}

#[test]
fn a_hostile_client_takes_bounded_memory_and_leaves_nothing_behind() {
    let (served, target) = server(&["--max-clients", "8"]);
    trees::small(&served.here("tree/small"), 20, 3000);
    trees::large(&served.here("tree/large"), 3 << 20);
    let usual = copy_there_and_back(&served, 0);
    let before = held(&served);
    let seeds = count(3, 60) as u64;
    for seed in 0..seeds {
        let hostile = HostileClient::start(target.clone(), seed).unwrap();
        eventually("harm that was begun", || {
            (hostile.deeds().orders.get() > 8).then_some(())
        });
        let took = copy_there_and_back(&served, 1);
        println!(
            "seed {seed}: {:?}, {took:?} after {usual:?} alone",
            hostile.deeds()
        );
        drop(hostile);
        assert_nothing_left(&served, before);
        assert_bounded(&served, &format!("seed {seed}"));
    }
    copy_there_and_back(&served, 2);
}

/// The time after which a plan ends, if the server takes nothing.
const PATIENCE: Duration = Duration::from_secs(2);

/// Runs a plan against a server, and checks what is left of it.
#[track_caller]
fn withstands(attack: Attack, most: u64) {
    let (served, target) = server(&["--max-clients", "2"]);
    trees::small(&served.here("tree"), 3, 100);
    copy_there_and_back(&served, 0);
    let before = held(&served);
    let attacker = Attacker::run(attack, &target, most, PATIENCE).unwrap();
    let what = format!("{attack:?}: {} messages", attacker.taken());
    assert_bounded(&served, &what);
    drop(attacker);
    assert_nothing_left(&served, before);
    copy_there_and_back(&served, 1);
}

#[test]
fn pings_whose_answers_are_not_read_take_no_memory() {
    withstands(Attack::Pings, 1_000_000);
    withstands(Attack::PingsInTurn, 1_000_000);
}

#[test]
fn messages_that_no_copy_expects_take_no_memory() {
    withstands(Attack::Applications, 3000);
}

#[test]
fn failures_that_are_not_read_take_no_memory() {
    withstands(Attack::FailingFiles, 150_000);
}

#[test]
fn names_without_an_end_take_no_memory() {
    withstands(Attack::Names, 1000);
    withstands(Attack::FolderNames, 1000);
}

#[test]
fn questions_whose_answers_are_not_read_take_no_memory() {
    withstands(Attack::Questions, 1000);
}
