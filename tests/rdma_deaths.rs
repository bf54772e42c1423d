//! As `pair_deaths.rs` and `pair_points.rs`, over RDMA, where a queue pair tells nobody that its peer has died.
#![cfg(feature = "rdma")]

mod pair;

use std::{io::Write, process::Stdio, time::Duration};

use pair::{
    OLD, Place, Random, Running, SOON, Setup, Victim, assert_no_loss, eventually, kill_at,
    lacks_rdma, patient, pattern, rdsend, receiver, sender, write_position,
};
use rustix::process::Signal;

/// Several pools long.
const FILE_BYTES: usize = 40 << 20;

/// Kills of each end: a few, for an emulated machine takes seconds for each.
const ROUNDS: usize = 5;

fn programs(place: &Place) -> [Setup; 2] {
    let options = format!("--transport rdma -o {}", place.old());
    [receiver(options), rdsend("--transport rdma 127.0.0.1")]
}

/// Waits until the target has been written so far, or is there.
fn written(place: &Place, receiver: &Running, moment: u64) {
    eventually("so many bytes", || {
        let at = write_position(receiver, place.directory());
        let over = !receiver.runs() || place.read("old") != OLD;
        (over || at >= Some(moment)).then_some(())
    });
}

#[test]
fn the_sender_dies_at_random_moments() {
    die_at_random_moments(Victim::Sender, 0x5eed_0011);
}

#[test]
fn the_receiver_dies_at_random_moments() {
    die_at_random_moments(Victim::Receiver, 0x5eed_0012);
}

fn die_at_random_moments(victim: Victim, seed: u64) {
    if lacks_rdma() {
        return;
    }
    let data = pattern(FILE_BYTES);
    let mut random = Random(seed);
    let mut caught = 0;
    for round in 0..ROUNDS {
        let place = Place::new();
        place.file("in", &data);
        let moment = random.below(FILE_BYTES as u64 / 2);
        let ends = kill_at(&place, victim, programs(&place), |_, receiver| {
            written(&place, receiver, moment);
        });
        println!("round {round}, byte {moment}: {:?}", ends[1].stderr);
        caught += usize::from(ends[1].code() != 0);
        assert_no_loss(&place, victim, &ends, &data);
    }
    assert!(caught > 0, "none was caught in the middle");
}

#[test]
#[cfg(feature = "fault-injection")]
fn they_die_at_every_point() {
    if lacks_rdma() {
        return;
    }
    for point in [
        "after-hello",
        "first-chunk-sent",
        "before-fin",
        "after-fin",
        "before-confirmation-received",
    ] {
        die_at(Victim::Sender, point);
    }
    for point in [
        "after-hello",
        "first-chunk-received",
        "before-commit",
        "before-confirmation-sent",
    ] {
        die_at(Victim::Receiver, point);
    }
}

#[cfg(feature = "fault-injection")]
fn die_at(victim: Victim, point: &str) {
    let data = pattern((6 << 20) + 7);
    let place = Place::new();
    place.file("in", &data);
    let [to, from] = programs(&place);
    let programs = match victim {
        Victim::Sender => [to, from.stop_at(point)],
        Victim::Receiver => [to.stop_at(point), from],
    };
    let ends = kill_at(&place, victim, programs, |sender, receiver| match victim {
        Victim::Sender => sender.stopped(),
        Victim::Receiver => receiver.stopped(),
    });
    println!("{victim:?} at {point}: {}", ends[1].stderr);
    assert_no_loss(&place, victim, &ends, &data);
    let survivor = ends[1].code();
    match (victim, point) {
        (Victim::Sender, "after-hello" | "first-chunk-sent" | "before-fin") => {
            assert_eq!((survivor, &place.read("old")[..]), (255, OLD));
        }
        (Victim::Receiver, "before-commit") => {
            assert_eq!((survivor, &place.read("old")[..]), (4, OLD));
        }
        (Victim::Receiver, "before-confirmation-sent") => {
            assert!(survivor == 4 && place.read("old") == data);
        }
        (Victim::Receiver, _) => assert_eq!(survivor, 255),
        _ => {}
    }
}

#[test]
fn a_silent_end_counts_as_dead_after_the_timeout() {
    if lacks_rdma() {
        return;
    }
    let limit = Duration::from_secs(2);
    for stop_sender in [true, false] {
        let place = Place::new();
        let options = "--transport rdma --timeout 2";
        let receiver = receiver(format!("{options} -o {}", place.old())).start();
        let sender = sender(receiver.port(), options).stdin(Stdio::piped());
        let mut sender = sender.start();
        // Not at its end, and not busy either: what is stopped is known to be in the middle.
        let mut input = sender.stdin();
        input.write_all(&pattern(3 << 20)).unwrap();
        written(&place, &receiver, 1);
        let (stopped, other) = if stop_sender {
            (sender, receiver)
        } else {
            (receiver, sender)
        };
        let since = stopped.signal(Signal::STOP);
        let end = other.end();
        let late = end.at - since;
        println!("after {late:?}: {}", end.stderr);
        assert!(late < limit + patient(SOON), "{late:?}");
        end.fails(
            255,
            &["nothing was heard from the other end for 2.0s", "at byte "],
        );
        stopped.signal(Signal::CONT);
        drop(input);
        let end = stopped.end();
        assert_ne!(end.code(), 0, "{end:?}");
        place.assert_untouched(&[]);
    }
}
