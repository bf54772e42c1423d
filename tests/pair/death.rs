//! One end of a pair that copies a file is killed, and what must be true of the other one.

use std::time::Duration;

use super::{End, OLD, Place, Running, Setup, key, patient};

/// How soon the survivor must have ended: the promise is a second, the rest is for a busy machine.
pub const SOON: Duration = Duration::from_secs(2);

/// Who is killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Victim {
    Sender,
    Receiver,
}

/// A pair that copies `in` over `old`; when it has come to the moment of `wait`, the victim dies.
pub fn kill_at(
    place: &Place,
    victim: Victim,
    [receiver, sender]: [Setup; 2],
    wait: impl FnOnce(&Running, &Running),
) -> [End; 2] {
    let receiver = receiver.start();
    let sender = sender.arg(receiver.port().to_string()).arg(key());
    let sender = sender.arg(place.path("in")).start();
    wait(&sender, &receiver);
    let (victim, survivor) = match victim {
        Victim::Sender => (sender, receiver),
        Victim::Receiver => (receiver, sender),
    };
    let killed = victim.kill();
    let survivor = survivor.end();
    let late = survivor.at.saturating_duration_since(killed);
    assert!(
        late < patient(SOON),
        "it took {late:?} and said:\n{}",
        survivor.stderr
    );
    [victim.end(), survivor]
}

/// What must be true however the two have ended.
#[track_caller]
pub fn assert_no_loss(place: &Place, victim: Victim, [dead, survivor]: &[End; 2], data: &[u8]) {
    let [sender, receiver] = match victim {
        Victim::Sender => [dead, survivor],
        Victim::Receiver => [survivor, dead],
    };
    let said = format!("{sender:?}\n{receiver:?}");
    let target = place.read("old");
    let whole = target == data;
    assert!(
        whole || target == OLD,
        "neither the old file nor the new one:\n{said}"
    );
    assert!(
        whole || (sender.code() != 0 && receiver.code() != 0),
        "a false success:\n{said}"
    );
    if place.knows_nameless_files() {
        assert_eq!(place.names(), ["in", "old"], "litter:\n{said}");
    }
    if survivor.code() != 0 {
        let (code, words) = match (victim, survivor.stderr.contains("unconfirmed")) {
            (Victim::Sender, _) => (255, "receiving from "),
            (Victim::Receiver, true) => (4, "delivery to 127.0.0.1 is unconfirmed: all "),
            (Victim::Receiver, false) => (255, "sending to 127.0.0.1 failed at byte "),
        };
        survivor.fails(code, &[words, "the other end died"]);
    }
}
