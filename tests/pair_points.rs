//! Deaths at every named point of the protocol: the process stops itself there, and is killed.

mod pair;

use pair::{OLD, Place, Victim, assert_no_loss, kill_at, pattern, rdsend, receiver, sender};
use rustix::process::Signal;

#[test]
fn the_sender_dies_at_every_point() {
    let points = [
        "after-hello",
        "first-chunk-sent",
        "before-fin",
        "after-fin",
        "before-confirmation-received",
    ];
    for point in points {
        die_at(Victim::Sender, point);
    }
}

#[test]
fn the_receiver_dies_at_every_point() {
    let points = [
        "after-hello",
        "first-chunk-received",
        "before-commit",
        "before-confirmation-sent",
    ];
    for point in points {
        die_at(Victim::Receiver, point);
    }
}

fn die_at(victim: Victim, point: &str) {
    let data = pattern((20 << 20) + 7);
    let place = Place::new();
    place.file("in", &data);
    let (to, from) = (receiver(format!("-o {}", place.old())), rdsend("127.0.0.1"));
    let programs = match victim {
        Victim::Sender => [to, from.stop_at(point)],
        Victim::Receiver => [to.stop_at(point), from],
    };
    let ends = kill_at(&place, victim, programs, |sender, receiver| match victim {
        Victim::Sender => sender.stopped(),
        Victim::Receiver => receiver.stopped(),
    });
    println!(
        "{victim:?} at {point}: {:?} {}",
        ends[1].code(),
        ends[1].stderr
    );
    assert_no_loss(&place, victim, &ends, &data);
    // What is certain, and not only consistent.
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
fn what_has_arrived_is_not_yet_delivered() {
    // More than a pipe holds that nobody reads, and less than the receiver's pool.
    let place = Place::new();
    let input = place.file("in", &pattern(4_000_000));
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
fn a_short_stop_is_forgiven() {
    let place = Place::new();
    let data = pattern(20 << 20);
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
