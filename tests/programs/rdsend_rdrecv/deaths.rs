//! Whichever end is killed, at whatever moment, the other end reports it within a second, and no partial file
//! counts as complete.

use std::{io::Read, process::Stdio, time::Duration};

use rustix::{pipe::fcntl_getpipe_size, process::Signal};

use crate::support::programs::{
    Doomed, Place, Victim, eventually, held_bytes, patience, receiver, sender, soon, write_position,
};

/// A copy of a file that is large enough for most kills to hit the transfer in its middle.
const COPY: Doomed = Doomed {
    options: "",
    bytes: 48 << 20,
};

const ROUNDS: usize = 20;

/// The moments are spread over the whole copy, and on a busy machine each kill is late.
const LEAST_CAUGHT: usize = ROUNDS / 4;

#[test]
fn a_sender_killed_at_random_moments_is_detected() {
    let caught = COPY.die_at_random_moments(Victim::Sender, 0x5eed_0001, ROUNDS, COPY.bytes);
    assert!(
        caught >= LEAST_CAUGHT,
        "only {caught} were caught in the middle"
    );
}

#[test]
fn a_receiver_killed_at_random_moments_is_detected() {
    let caught = COPY.die_at_random_moments(Victim::Receiver, 0x5eed_0002, ROUNDS, COPY.bytes);
    assert!(
        caught >= LEAST_CAUGHT,
        "only {caught} were caught in the middle"
    );
}

#[test]
fn a_receiver_killed_while_the_source_is_idle_is_detected() {
    let receiver = receiver("").start_raw();
    let mut sender = sender(receiver.port(), "").stdin(Stdio::piped()).start();
    let mut input = sender.stdin();
    std::io::Write::write_all(&mut input, b"hello").unwrap();
    let mut receiver = receiver;
    let mut arrived = [0; 5];
    receiver.take_stdout().read_exact(&mut arrived).unwrap();
    let killed = receiver.kill();
    let sender = sender.end();
    assert!(sender.at.saturating_duration_since(killed) < soon());
    sender.fails(
        255,
        &["sending to 127.0.0.1 failed at byte 5: the other end died"],
    );
    drop(input);
}

#[test]
fn a_sender_killed_while_the_sink_is_blocked_is_detected() {
    let mut receiver = receiver("").start_raw();
    let output = receiver.take_stdout();
    let sender = sender(receiver.port(), "-i /dev/zero").start();
    eventually("a full pipe", || {
        let room = fcntl_getpipe_size(&output).unwrap();
        (held_bytes(&output) == room as u64).then_some(())
    });
    let killed = sender.kill();
    let receiver = receiver.end();
    assert!(receiver.at.saturating_duration_since(killed) < soon());
    receiver.fails(
        255,
        &["receiving from ", " failed at byte ", "the other end died"],
    );
    drop(output);
}

#[test]
fn the_error_names_a_byte_near_the_last_one_delivered() {
    let mut receiver = receiver("").start_raw();
    let mut output = receiver.take_stdout();
    let sender = sender(receiver.port(), "-i /dev/zero").start();
    let mut some = vec![0; 40 << 20];
    output.read_exact(&mut some).unwrap();
    sender.kill();
    let rest = output.read_to_end(&mut Vec::new()).unwrap();
    let delivered = (some.len() + rest) as u64;
    let end = receiver.end();
    let text = end.exits(255);
    let number = text
        .split("failed at byte ")
        .nth(1)
        .and_then(|rest| rest.split(':').next());
    let named: u64 = number.expect(text).parse().expect(text);
    let pool = 16 * (512 << 10);
    assert!(
        (delivered..=delivered + pool).contains(&named),
        "{named}, but {delivered} came"
    );
}

#[test]
fn a_silent_peer_counts_as_dead_after_the_timeout() {
    let timeout = patience(Duration::from_millis(400));
    let silence = format!("received nothing from the other end for {timeout:.1?}");
    let option = format!("--timeout {}", timeout.as_secs_f64());
    for stop_sender in [true, false] {
        let place = Place::new();
        let receiver = receiver(format!("{option} -o {}", place.old())).start();
        let port = receiver.port();
        let sender = sender(port, format!("{option} -i /dev/zero")).start();
        eventually("some bytes", || {
            write_position(&receiver, place.directory()).filter(|at| *at > 0)
        });
        let (stopped, other) = if stop_sender {
            (sender, receiver)
        } else {
            (receiver, sender)
        };
        let since = stopped.signal(Signal::STOP);
        let end = other.end();
        let late = end.at - since;
        assert!(late < timeout + soon(), "{late:?}");
        end.fails(255, &[&silence, "at byte "]);
        stopped.signal(Signal::CONT);
        let end = stopped.end();
        assert_ne!(end.code(), 0, "{end:?}");
        place.assert_untouched(&[]);
    }
}
