//! Tests of the end of a stream whose user has left.

use super::*;
use crate::Direction;

/// A stream whose FIN the peer has acknowledged.
fn acknowledged() -> StreamMachine {
    let mut machine = StreamMachine::new(Direction::Both, 2);
    machine.sending = Sending::Acked;
    machine
}

fn drop_reader(machine: &mut StreamMachine) {
    machine.release_receiver(7, true, false, Instant::now());
}

fn is_aborted(machine: &StreamMachine) -> bool {
    matches!(machine.failure, Some(Failure::Aborted { .. }))
}

#[test]
fn after_its_fin_was_acknowledged_a_drop_lets_the_peer_end() {
    let mut machine = acknowledged();
    machine.release_sender(true, false, Instant::now());
    drop_reader(&mut machine);
    assert!(machine.outbox.is_empty(), "{:?}", machine.outbox);
    let fin = Message::Fin {
        bytes: 9,
        digest: 1,
    };
    machine.receive(fin).unwrap();
    machine.receiving = Receiving::Complete;
    assert!(machine.leave_if_done());
    assert_eq!(machine.outbox, [Message::Bye]);
    assert!(machine.failure.is_none());
}

#[test]
fn a_peer_that_does_not_end_is_told_to_stop() {
    let mut machine = acknowledged();
    machine.release_sender(true, false, Instant::now());
    drop_reader(&mut machine);
    let limit = Duration::from_secs(3600);
    let due = machine.dropped_deadline(limit).unwrap();
    machine.check_dropped(limit, due.checked_sub(Duration::from_millis(1)).unwrap());
    assert!(machine.outbox.is_empty());
    machine.check_dropped(limit, due);
    assert_eq!(machine.outbox, [Message::Stop { offset: 7 }, Message::Bye]);
    assert_eq!(machine.dropped_deadline(limit), None);
}

#[test]
fn a_peer_that_sends_a_lot_is_told_at_once() {
    let mut machine = acknowledged();
    machine.stats.bytes_received = 100;
    drop_reader(&mut machine);
    machine.stats.bytes_received += EXCESS_BYTES;
    assert!(!machine.stop_after_excess());
    machine.stats.bytes_received += 1;
    assert!(machine.stop_after_excess());
    assert_eq!(machine.outbox, [Message::Stop { offset: 7 }]);
}

#[test]
fn a_dropped_reader_leaves_the_writer_alone() {
    let mut machine = StreamMachine::new(Direction::Both, 2);
    drop_reader(&mut machine);
    assert_eq!(machine.sending, Sending::Open);
    assert!(machine.failure.is_none());
    machine.release_sender(true, false, Instant::now());
    assert!(is_aborted(&machine), "a drop without FIN");
}

#[test]
fn a_receiver_that_leaves_early_is_an_abort() {
    let mut machine = StreamMachine::new(Direction::Receive, 2);
    drop_reader(&mut machine);
    assert!(is_aborted(&machine));
}

#[test]
fn a_panic_is_an_abort_in_every_state() {
    for on_drop in [OnDrop::Abort, OnDrop::Fin] {
        let mut reader = acknowledged();
        reader.dropped.on_drop = on_drop;
        reader.release_receiver(0, false, true, Instant::now());
        assert!(is_aborted(&reader));
        let mut writer = StreamMachine::new(Direction::Both, 2);
        writer.dropped.on_drop = on_drop;
        writer.release_sender(true, true, Instant::now());
        assert!(is_aborted(&writer));
    }
}

#[test]
fn with_fin_the_last_bytes_follow_the_user_for_a_limited_time() {
    let mut machine = StreamMachine::new(Direction::Both, 2);
    machine.dropped.on_drop = OnDrop::Fin;
    let now = Instant::now();
    machine.release_sender(true, false, now);
    assert!(machine.fin_due && machine.failure.is_none());
    let limit = Duration::from_millis(500);
    assert_eq!(machine.dropped_deadline(limit), None, "one half is held");
    machine.receiving = Receiving::AtEnd;
    machine.release_receiver(0, false, false, now);
    assert_eq!(machine.dropped_deadline(limit), Some(now + limit));
    machine.check_dropped(limit, now + limit);
    assert!(is_aborted(&machine));
}

#[test]
fn a_stop_after_the_last_byte_is_no_error_of_a_writer_that_has_left() {
    // Whether the writer has left, whether the data path has all its bytes, and how many of 9 bytes the peer took.
    for (left, sent, taken) in [
        (true, true, 9),
        (false, true, 9),
        (true, false, 9),
        (true, true, 8),
    ] {
        let mut machine = StreamMachine::new(Direction::Both, 2);
        machine.dropped.on_drop = OnDrop::Fin;
        machine.stats.bytes_sent = 9;
        if left {
            machine.release_sender(sent, false, Instant::now());
        }
        machine.receive(Message::Stop { offset: taken }).unwrap();
        let is_quiet = (left, sent, taken) == (true, true, 9);
        let error = machine.end_error("peer");
        assert_eq!(
            error.is_none(),
            is_quiet,
            "{left} {sent} {taken}: {error:?}"
        );
    }
}
