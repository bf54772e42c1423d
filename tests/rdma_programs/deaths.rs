//! One end of a pair over RDMA is killed or stopped: the other end detects it, although a queue pair does not report
//! the death of its peer. `rdsend_rdrecv/deaths.rs` and `deaths_at_points.rs` test this over TCP.

use std::{io::Write, process::Stdio, time::Duration};

use rustix::process::Signal;

use crate::support::programs::{
    Doomed, Place, Victim, lacks_rdma, patience, random_bytes, receiver, sender, soon, written,
};

const OPTIONS: &str = "--transport rdma";

/// The length of the file: several pools.
const FILE_BYTES: usize = 40 << 20;

/// The number of kills of each end: few, because an emulated machine takes seconds for each.
const ROUNDS: usize = 5;

#[test]
fn a_sender_killed_at_random_moments_is_detected() {
    die_at_random_moments(Victim::Sender, 0x5eed_0011);
}

#[test]
fn a_receiver_killed_at_random_moments_is_detected() {
    die_at_random_moments(Victim::Receiver, 0x5eed_0012);
}

fn die_at_random_moments(victim: Victim, seed: u64) {
    if lacks_rdma() {
        return;
    }
    let copy = Doomed {
        options: OPTIONS,
        bytes: FILE_BYTES,
    };
    let caught = copy.die_at_random_moments(victim, seed, ROUNDS, FILE_BYTES / 2);
    assert!(caught > 0, "none was caught in the middle");
}

#[test]
#[cfg(feature = "fault-injection")]
fn a_process_killed_at_any_point_is_detected() {
    if lacks_rdma() {
        return;
    }
    for victim in [Victim::Sender, Victim::Receiver] {
        let copy = Doomed {
            options: OPTIONS,
            // The file is larger than a pool, so the sender cannot finish while its receiver is stopped.
            bytes: (12 << 20) + 7,
        };
        copy.die_at_every_point(victim);
    }
}

#[test]
fn a_silent_peer_counts_as_dead_after_the_timeout() {
    if lacks_rdma() {
        return;
    }
    let timeout = patience(Duration::from_secs(2));
    let silence = format!("received nothing from the other end for {timeout:.1?}");
    for stop_sender in [true, false] {
        let place = Place::new();
        let options = format!("--transport rdma --timeout {}", timeout.as_secs_f64());
        let receiver = receiver(format!("{options} -o {}", place.old())).start();
        let sender = sender(receiver.port(), &options).stdin(Stdio::piped());
        let mut sender = sender.start();
        // The input stays open and idle, so the stream is in its middle when one end is stopped.
        let mut input = sender.stdin();
        input.write_all(&random_bytes(3 << 20)).unwrap();
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
        assert!(late < timeout + soon(), "{late:?}");
        end.fails(255, &[&silence, "at byte "]);
        stopped.signal(Signal::CONT);
        drop(input);
        let end = stopped.end();
        assert_ne!(end.code(), 0, "{end:?}");
        place.assert_untouched(&[]);
    }
}
