//! Kills at every named point of the protocol: the process stops itself there, and the test kills it.

use rustix::process::Signal;

use crate::support::programs::{Doomed, Place, Victim, random_bytes, receiver, sender};

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
