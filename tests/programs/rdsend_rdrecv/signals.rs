//! Signals: the first signal ends both programs in order, a second signal ends its program at once.

use std::{fs, io::Write, net::TcpListener, path::Path, process::Stdio, thread, time::Duration};

use rustix::process::Signal;

use crate::support::programs::{
    Place, Running, eventually, is_ignored, patience, random_bytes, receiver, sender, soon,
    write_position,
};

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
            hit.fails(code, &[&format!("interrupted by {name}")]);
            let cause = format!(": interrupted by {name}");
            other.end().fails(3, &[" gave up at byte ", &cause]);
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
