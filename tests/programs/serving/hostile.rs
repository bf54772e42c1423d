//! Clients that have a key and mean harm: what the server holds of them is bounded, goes with them, and keeps no other
//! client out.

use std::{
    fs,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use rdpipe::{
    Key,
    hostile::{Attack, Attacker, HostileClient, HostileTarget, TargetKind},
};

use tempfile::TempDir;

use super::{
    Served, add_client,
    copies::{assert_same, count, is_full},
};
use crate::{
    copies::trees,
    support::programs::{Held, Running, eventually, limit, peak_kib},
};

/// The most that a server with 64 MiB may have resident: its memory, and 64 MiB.
const MOST_KIB: u64 = (64 + 64) << 10;

/// The directory of the hostile client.
const PLACE: &str = "mallory/";

/// Starts a server with 64 MiB and a hostile client of the name `mallory` beside the others.
fn server(options: &[&str]) -> (Served, HostileTarget) {
    let options = [&["-m", "64M"], options].concat();
    server_in(tempfile::tempdir().unwrap(), &options)
}

/// Starts a server with a hostile client in a directory that has the keys of others.
fn server_in(place: TempDir, options: &[&str]) -> (Served, HostileTarget) {
    add_client(place.path(), "mallory");
    fs::create_dir_all(place.path().join("root").join(PLACE)).unwrap();
    let served = Served::start_in(place, options);
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

/// Copies a tree there and back as a client, and checks it. Returns how long the copies took.
#[track_caller]
fn copy_there_and_back(served: &Served, client: &str) -> Duration {
    let started = Instant::now();
    let (there, back) = (format!("@of-{client}"), format!("%of-{client}"));
    for (from, to) in [("%tree", &there), (&there, &back)] {
        served
            .client(client, &["-aT", from, to])
            .start()
            .end()
            .exits(0);
    }
    let took = started.elapsed();
    assert_same(&served.here("tree"), &served.here(&back[1..]));
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

/// The time in which everything of a client that has died is gone: a second, on a machine that is not busy, and less
/// than the four seconds after which an agent gives up work that does not end by itself.
const LEAVING: Duration = Duration::from_secs(3);

/// Waits until a server holds nothing any more of clients that have died, and has no temporary file below `root`.
#[track_caller]
pub(crate) fn assert_nothing_left(server: &Running, root: Option<&Path>, before: Held) {
    let started = Instant::now();
    loop {
        let now = Held::by(server);
        let files = root.map(temporary_files).unwrap_or_default();
        if now.is_within(before) && files.is_empty() {
            return println!("nothing was left after {:?}", started.elapsed());
        }
        assert!(
            started.elapsed() < limit(LEAVING),
            "{before:?}, and now {now:?} and {files:?}"
        );
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_hostile_client_takes_bounded_memory_and_leaves_nothing_behind() {
    let (served, target) = server(&["--max-clients", "8"]);
    trees::small(&served.here("tree/small"), 20, 3000);
    trees::large(&served.here("tree/large"), 3 << 20);
    let usual = copy_there_and_back(&served, "alice");
    let before = Held::by(&served.server);
    let seeds = count(3, 60) as u64;
    for seed in 0..seeds {
        let hostile = HostileClient::start(target.clone(), seed).unwrap();
        eventually("harm that was begun", || {
            (hostile.deeds().orders.get() > 8).then_some(())
        });
        let took = copy_there_and_back(&served, "alice");
        println!(
            "seed {seed}: {:?}, {took:?} after {usual:?} alone",
            hostile.deeds()
        );
        drop(hostile);
        assert_nothing_left(&served.server, Some(&served.root("")), before);
        assert_bounded(&served, &format!("seed {seed}"));
    }
    for name in ["a", "b", "c", "d", "e"] {
        let end = served.alice(&["%tree/large", &format!("@{PLACE}{name}")]);
        let end = end.start().end();
        assert!(!end.stderr.contains("another client"), "{end:?}");
    }
}

#[test]
fn sixty_four_clients_beside_a_hostile_one_are_all_served() {
    let place = tempfile::tempdir().unwrap();
    let names: Vec<_> = (0..64).map(|number| format!("client-{number}")).collect();
    for name in &names {
        add_client(place.path(), name);
    }
    let (served, target) = server_in(place, &["-m", "256M", "--max-clients", "16"]);
    trees::small(&served.here("tree/small"), 20, 3000);
    trees::large(&served.here("tree/large"), 3 << 20);
    copy_there_and_back(&served, "alice");
    let before = Held::by(&served.server);
    let usual = is_full().then(|| median(&all_copy(&served, &names, Duration::ZERO)));
    let hostile = HostileClient::start(target, 64).unwrap();
    let beside = all_copy(&served, &names, seconds());
    println!(
        "{} copies, half of them within {:?} ({usual:?} alone): {:?}",
        beside.len(),
        median(&beside),
        hostile.deeds()
    );
    drop(hostile);
    assert_nothing_left(&served.server, Some(&served.root("")), before);
    let peak = peak_kib(&served.server);
    assert!(peak < (256 + 64) << 10, "{peak} KiB");
    if let Some(usual) = usual {
        assert!(median(&beside) < 2 * usual);
    }
}

/// Returns the time for which clients copy beside a hostile one: as long as one copy of each takes, ten minutes if the
/// long tests were asked for, or what `RDPIPE_HOSTILE_SECONDS` says.
fn seconds() -> Duration {
    let given = std::env::var("RDPIPE_HOSTILE_SECONDS").ok();
    let seconds = given.map(|text| text.parse().expect("a number"));
    Duration::from_secs(seconds.unwrap_or(count(0, 600) as u64))
}

/// Makes every client copy a tree there and back, at the same time, once at least and again for this time. Returns how
/// long each copy took.
fn all_copy(served: &Served, names: &[String], time: Duration) -> Vec<Duration> {
    let end = Instant::now() + time;
    let copy = |name: &String| {
        let mut times = Vec::new();
        while times.is_empty() || Instant::now() < end {
            times.push(copy_there_and_back(served, name));
        }
        times
    };
    thread::scope(|scope| {
        let copying: Vec<_> = names
            .iter()
            .map(|name| scope.spawn(move || copy(name)))
            .collect();
        let times = copying
            .into_iter()
            .map(|copying| copying.join().expect("copies succeed"));
        times.flatten().collect()
    })
}

fn median(times: &[Duration]) -> Duration {
    let mut times = times.to_vec();
    times.sort();
    times[times.len() / 2]
}

/// The time after which a plan ends, if the server takes nothing.
const PATIENCE: Duration = Duration::from_secs(2);

/// Runs a plan against a server, and checks what is left of it.
#[track_caller]
fn withstands(attack: Attack, most: u64) {
    let (served, target) = server(&["--max-clients", "2"]);
    trees::small(&served.here("tree"), 3, 100);
    copy_there_and_back(&served, "alice");
    let before = Held::by(&served.server);
    let attacker = Attacker::run(attack, &target, most, PATIENCE).unwrap();
    let what = format!("{attack:?}: {} messages", attacker.taken());
    assert_bounded(&served, &what);
    drop(attacker);
    assert_nothing_left(&served.server, Some(&served.root("")), before);
    copy_there_and_back(&served, "alice");
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

#[test]
fn patterns_take_no_memory() {
    withstands(Attack::Patterns, 10);
}

#[test]
fn entries_that_were_not_written_take_no_memory() {
    withstands(Attack::NotWritten, 500_000);
}

#[test]
fn what_is_kept_until_the_end_of_a_copy_takes_no_memory() {
    withstands(Attack::LargeFiles, 2000);
    withstands(Attack::Folders, 2000);
    withstands(Attack::HardLinks, 200_000);
}
