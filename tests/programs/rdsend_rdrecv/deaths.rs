//! Whichever end is killed, at whatever moment or at a named point of the protocol, the other end reports it within a
//! second, and no partial file counts as complete; a signal ends both programs in order, a second one its program at
//! once.

use std::{
    fs,
    io::{Read, Write},
    net::TcpListener,
    path::Path,
    process::Stdio,
    thread,
    time::Duration,
};

use rustix::{pipe::fcntl_getpipe_size, process::Signal};

use crate::support::programs::{
    Doomed, Place, Running, Victim, eventually, held_bytes, is_ignored, patience, random_bytes,
    receiver, sender, soon, write_position,
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

// These tests need programs that stop themselves at named points of the protocol.
#[cfg(feature = "fault-injection")]
mod at_points {
    use super::*;

    /// A copy of a file that is larger than all pools.
    const COPY: Doomed = Doomed {
        options: "",
        bytes: (20 << 20) + 7,
    };

    #[test]
    fn a_sender_killed_at_any_point_is_detected() {
        COPY.die_at_every_point(Victim::Sender);
    }

    #[test]
    fn a_receiver_killed_at_any_point_is_detected() {
        COPY.die_at_every_point(Victim::Receiver);
    }

    #[test]
    fn received_bytes_do_not_count_as_delivered() {
        // The file is larger than an unread pipe, and smaller than the pool of the receiver.
        let place = Place::new();
        let input = place.file("in", &random_bytes(4_000_000));
        let mut receiver = receiver("").start_raw();
        let unread = receiver.take_stdout();
        let sender = sender(receiver.port(), "").arg(input);
        let sender = sender.stop_at("before-confirmation-received").start();
        sender.stopped();
        receiver.kill();
        receiver.end();
        sender.signal(Signal::CONT);
        let words = "delivery to 127.0.0.1 is unconfirmed: all 4000000 bytes were sent, then ";
        sender.end().fails(4, &[words, "the other end died"]);
        drop(unread);
    }

    #[test]
    fn a_receiver_stopped_for_a_moment_still_succeeds() {
        let place = Place::new();
        let data = random_bytes(20 << 20);
        place.file("in", &data);
        let receiver = receiver(format!("--timeout 10 -o {}", place.old())).stop_at("after-hello");
        let receiver = receiver.start();
        let sender = sender(receiver.port(), "").arg(place.path("in")).start();
        receiver.stopped();
        receiver.signal(Signal::CONT);
        sender.end().exits(0);
        receiver.end().exits(0);
        assert!(place.read("old") == data);
    }
}

#[test]
fn a_signal_ends_both_ends() {
    let signals = [(Signal::INT, "SIGINT", 130), (Signal::TERM, "SIGTERM", 143)];
    for (signal, name, code) in signals {
        if is_ignored(signal) {
            println!("SKIPPED in part: {name} is ignored here");
            continue;
        }
        for sender_is_hit in [true, false] {
            let place = Place::new();
            let receiver = receiver(format!("-o {}", place.old())).start();
            let sender = sender(receiver.port(), "-i /dev/zero").start();
            progress(&receiver, &place);
            let (hit, other) = if sender_is_hit {
                (sender, receiver)
            } else {
                (receiver, sender)
            };
            let since = hit.signal(signal);
            let hit = hit.end();
            assert!(hit.at - since < soon());
            hit.fails(code, &[&format!("interrupted by {name} after ")]);
            let cause = format!(": interrupted by {name}");
            let other = other.end();
            other.fails(3, &[" gave up at byte ", &cause]);
            let receiver = if sender_is_hit { other } else { hit };
            receiver.fails(receiver.code(), &["/old is as it was before\n"]);
            place.assert_untouched(&[]);
        }
    }
}

#[test]
fn a_signal_ends_a_program_that_still_waits_for_its_peer() {
    if [Signal::INT, Signal::TERM].into_iter().any(is_ignored) {
        crate::support::programs::skip("signals are ignored here");
        return;
    }
    let receiver = receiver("").start();
    receiver.port();
    receiver.signal(Signal::TERM);
    receiver.end().fails(143, &["interrupted by SIGTERM"]);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let sender = sender(listener.local_addr().unwrap().port(), "").start();
    let _silent = listener.accept().unwrap();
    sender.signal(Signal::INT);
    sender.end().fails(130, &["interrupted by SIGINT"]);
}

#[test]
fn a_second_signal_ends_at_once() {
    if is_ignored(Signal::INT) {
        crate::support::programs::skip("SIGINT is ignored here");
        return;
    }
    // On a busy machine the program may end by the first signal before the second one is sent: then the test tries
    // again.
    assert!((0..5).any(|_| the_second_signal_ends_it()));
}

/// Interrupts a sender twice. Returns false if the sender printed that it was interrupted: then the first signal alone
/// ended it.
fn the_second_signal_ends_it() -> bool {
    let place = Place::new();
    let receiver = receiver(format!("-o {}", place.old())).start();
    let sender = sender(receiver.port(), "-i /dev/zero").start();
    progress(&receiver, &place);
    // After the first signal the sender informs its stopped peer, which takes two seconds: time for the second signal.
    receiver.signal(Signal::STOP);
    receiver.stopped();
    sender.signal(Signal::INT);
    eventually("the first signal to be taken", || {
        let open = fs::read_dir(format!("/proc/{}/fd", sender.id()));
        let mut open = open.into_iter().flatten().flatten();
        let mut paths = open.by_ref().flat_map(|entry| fs::read_link(entry.path()));
        (!paths.any(|path| path == Path::new("/dev/zero"))).then_some(())
    });
    sender.signal(Signal::INT);
    let end = sender.end();
    assert_eq!(end.code(), 130);
    receiver.signal(Signal::CONT);
    assert_ne!(receiver.end().code(), 0);
    place.assert_untouched(&[]);
    !end.stderr.contains("interrupted by")
}

#[test]
fn a_receiver_that_is_stopped_for_several_timeouts_continues() {
    let place = Place::new();
    let timeout = patience(Duration::from_secs(1));
    let options = format!("--timeout {} -o {}", timeout.as_secs_f64(), place.old());
    let receiver = receiver(options).start();
    let sender = sender(receiver.port(), "--timeout 3600");
    let mut sender = sender.stdin(Stdio::piped()).start();
    let mut input = sender.stdin();
    let data = random_bytes(8 << 20);
    input.write_all(&data[..4 << 20]).expect("it reads");
    progress(&receiver, &place);
    receiver.signal(Signal::STOP);
    receiver.stopped();
    let writing = thread::spawn(move || {
        input.write_all(&data[4 << 20..]).expect("it reads");
        data
    });
    // Longer than the silence after which the receiver calls a peer or a data connection dead.
    thread::sleep(3 * timeout + Duration::from_secs(1));
    receiver.signal(Signal::CONT);
    let data = writing.join().expect("all is written");
    sender.end().exits(0);
    receiver.end().exits(0);
    assert!(place.read("old") == data, "other bytes");
}

fn progress(receiver: &Running, place: &Place) {
    eventually("some bytes", || {
        write_position(receiver, place.directory()).filter(|at| *at > 0)
    });
}
