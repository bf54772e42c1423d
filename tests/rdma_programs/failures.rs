//! Failures of the source, the sink and the control connection of a stream over RDMA; and one end of a pair is killed
//! or stopped: the other end detects it, although a queue pair does not report the death of its peer.
//! `rdsend_rdrecv/deaths.rs` tests this over TCP.

use std::{
    fs::{File, OpenOptions},
    io::Write,
    process::Stdio,
    time::{Duration, Instant},
};

use rustix::process::Signal;

use crate::support::programs::{
    Act, Connection, Doomed, Place, Plan, Proxy, Towards, Victim, generous, lacks_rdma, patience,
    random_bytes, receiver, sender, soon, written,
};

#[test]
fn a_full_output_device_fails_both_ends() {
    if lacks_rdma() {
        return;
    }
    let place = Place::new();
    place.file("in", &random_bytes(17 << 20));
    let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
    let receiver = receiver("--transport rdma").stdout(full).start();
    let sender = sender(receiver.port(), "--transport rdma").arg(place.path("in"));
    let cause = "cannot write stdout at byte 0: No space left on device";
    let words = ["127.0.0.1 gave up at byte ", cause];
    sender.start().end().fails(3, &words);
    receiver.end().fails(1, &[cause]);
}

#[test]
fn an_unreadable_input_fails_both_ends() {
    if lacks_rdma() {
        return;
    }
    let place = Place::new();
    let receiver = receiver(format!("--transport rdma -o {}", place.old())).start();
    let sender = sender(receiver.port(), "--transport rdma");
    let sender = sender.stdin(File::open(place.directory()).unwrap()).start();
    let cause = "cannot read standard input at byte 0: Is a directory";
    sender.end().fails(1, &[cause]);
    receiver.end().fails(3, &[" gave up at byte 0: ", cause]);
    place.assert_untouched(&[]);
}

#[test]
fn a_cut_control_connection_fails_both_ends() {
    if lacks_rdma() {
        return;
    }
    for towards in [Towards::Acceptor, Towards::Dialer] {
        let place = Place::new();
        let receiver = receiver(format!("--transport rdma -o {}", place.old())).start();
        let proxy = Proxy::start(([127, 0, 0, 1], receiver.port()).into(), None);
        let timeout = patience(Duration::from_secs(4)).as_secs_f64();
        let options = format!("--transport rdma --timeout {timeout} --chunk 16K --depth 4");
        let mut sender = sender(proxy.port(), options).stdin(Stdio::piped()).start();
        let mut input = sender.stdin();
        let piece = random_bytes(64 << 10);
        // This is more than both pools hold, so the handshake is over after these writes.
        for _ in 0..8 {
            input.write_all(&piece).expect("nothing is cut yet");
        }
        proxy.plan_from_here(Plan {
            connection: Connection::Control,
            towards,
            // A few messages later: keepalives to the acceptor, credits to the dialer.
            at: 100,
            act: Act::Cut,
        });
        let began = Instant::now();
        // The write fails when the sender has ended.
        while input.write_all(&piece).is_ok() {
            assert!(began.elapsed() < generous(), "it goes on and on");
        }
        let gone = Instant::now();
        let has_acted = proxy.has_acted();
        let (sender, receiver) = (sender.end(), receiver.end());
        assert!(has_acted, "{towards:?}: {sender:?}, {receiver:?}");
        let late = receiver.at.saturating_duration_since(gone);
        assert!(late < soon(), "{late:?}");
        sender.fails(
            255,
            &["sending to 127.0.0.1 failed at byte ", "the other end died"],
        );
        receiver.fails(255, &["receiving from ", "the other end died"]);
        place.assert_untouched(&[]);
    }
}

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
