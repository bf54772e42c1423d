//! What an endpoint does after its user has dropped the halves of a stream.
//!
//! | dropped | the endpoint |
//! |---|---|
//! | the reader, with nothing unread before the end | nothing |
//! | the reader, before the end, and this end sends too | takes up to [`EXCESS_BYTES`] more for [`LINGER`], then sends Stop |
//! | the reader, in the same state, of a stream that only receives | sends Abort; with [`OnDrop::Fin`] as the row above |
//! | the writer, after FIN was acknowledged, or after the peer has taken every byte and stopped | nothing |
//! | the writer, earlier | sends Abort; with [`OnDrop::Fin`] sends the remaining bytes and FIN |
//! | any of them before its end, by a panic | sends Abort |
//!
//! When both are dropped and both directions have ended, it says Bye.
//!
//! # Why a dropped reader lingers
//!
//! Frameworks drop what they own: a client of HTTP has its answer and drops the stream, while the server still sends
//! what its protocol says at the end (an acknowledgement of settings, GOAWAY) and shuts down. A Stop at once would make
//! these writes fail, and the server would report a failure after each complete answer. No credits are granted
//! meanwhile, so a pool bounds what arrives. The sending half is dropped first: if it aborts, the reader does not
//! linger.
//!
//! [`LINGER`]: crate::transport::control::LINGER

use std::{
    thread::panicking,
    time::{Duration, Instant},
};

use super::{
    State,
    machine::{Receiving, Sending, StreamFault, StreamMachine},
};
use crate::{
    OnDrop,
    transport::control::{LINGER, message::Message},
};

/// The number of bytes that may still arrive after the reader has been dropped, before the peer is told to stop. What
/// protocols send at their end, such as HTTP/2's GOAWAY, is shorter; the rest of a body that was not read is longer.
const EXCESS_BYTES: u64 = 64 << 10;

impl StreamMachine {
    /// The user has dropped the sending half, after the data path got all its bytes (`all_was_sent`) or earlier.
    pub(super) fn release_sender(&mut self, all_was_sent: bool, is_panicking: bool, now: Instant) {
        self.dropped.release(now);
        self.dropped.writer_left = !is_panicking;
        self.dropped.all_was_sent |= all_was_sent;
        if !self.send_done() {
            if self.dropped.on_drop == OnDrop::Fin && !is_panicking {
                self.fin_due = true;
                self.wake(true, false);
            } else {
                self.fail_dropped();
            }
        }
        self.leave_if_done();
    }

    /// The user has dropped the receiving half, after it has taken `taken` bytes and left others unread or not.
    pub(super) fn release_receiver(
        &mut self,
        taken: u64,
        unread: bool,
        is_panicking: bool,
        now: Instant,
    ) {
        self.dropped.release(now);
        if !self.receive_done(unread) {
            let ends_with_fin =
                self.sending != Sending::Absent || self.dropped.on_drop == OnDrop::Fin;
            if ends_with_fin && !is_panicking {
                self.dropped.reader = Some(DroppedReader {
                    since: now,
                    received: self.stats.bytes_received,
                    taken,
                });
            } else {
                self.fail_dropped();
            }
        }
        self.leave_if_done();
    }

    /// Returns true if the user has dropped the writer, and the peer's reader stopped after it had taken every byte.
    pub(super) fn has_left_after_all_was_taken(&self) -> bool {
        let left = self.dropped.writer_left && self.dropped.all_was_sent;
        matches!(self.sending, Sending::Stopped(taken) if left && taken >= self.stats.bytes_sent)
    }

    fn fail_dropped(&mut self) {
        let reason = "the program dropped the stream before its end".to_owned();
        self.fail(StreamFault::Aborted { reason });
    }

    /// Says Bye if the user has left and both directions have ended. Returns true if it did.
    pub(super) fn leave_if_done(&mut self) -> bool {
        let is_due = !self.dropped.is_held() && !self.dropped.has_said_bye && self.done();
        if is_due && self.fault.is_none() {
            self.dropped.has_said_bye = true;
            self.outbox.push(Message::Bye);
            return true;
        }
        false
    }

    /// Sends Stop, once: the reader needs no more after `offset` bytes. Returns false if the direction has ended.
    pub(super) fn stop(&mut self, offset: u64) -> bool {
        let is_open = matches!(
            self.receiving,
            Receiving::Open | Receiving::Fin(..) | Receiving::Complete
        );
        if is_open {
            self.receiving = Receiving::Stopped;
            self.outbox.push(Message::Stop { offset });
            self.leave_if_done();
        }
        is_open
    }

    /// Sends Stop if more has arrived after the reader was dropped than protocols send at their end. Returns true if it
    /// did.
    pub(super) fn stop_after_excess(&mut self) -> bool {
        let received = self.stats.bytes_received;
        match &self.dropped.reader {
            Some(reader) if received - reader.received > EXCESS_BYTES => self.stop(reader.taken),
            _ => false,
        }
    }

    /// Returns the time until which the peer may end its direction after the reader was dropped.
    fn reader_deadline(&self) -> Option<Instant> {
        let is_open = matches!(self.receiving, Receiving::Open | Receiving::Fin(..));
        let reader = self.dropped.reader.as_ref().filter(|_| is_open)?;
        Some(reader.since + LINGER)
    }

    /// Returns the time until which the peer has to take the last bytes after the user has left: `limit` later.
    fn writer_deadline(&self, limit: Duration) -> Option<Instant> {
        let since = self.dropped.since.filter(|_| !self.send_done())?;
        Some(since + limit)
    }

    fn dropped_deadline(&self, limit: Duration) -> Option<Instant> {
        if self.fault.is_some() {
            return None;
        }
        let deadlines = [self.reader_deadline(), self.writer_deadline(limit)];
        deadlines.into_iter().flatten().min()
    }

    /// Ends what the peer has not ended in time.
    fn check_dropped(&mut self, limit: Duration, now: Instant) {
        if self.reader_deadline().is_some_and(|due| due <= now) {
            let taken = self.dropped.reader.as_ref().map_or(0, |it| it.taken);
            self.stop(taken);
        }
        if self.writer_deadline(limit).is_some_and(|due| due <= now) {
            let reason = format!(
                "the program dropped the stream, and its last bytes were not taken within {limit:.1?}"
            );
            self.fail(StreamFault::Aborted { reason });
        }
    }
}

impl State {
    /// Sets what a drop of the sending half does before its end.
    pub(crate) fn set_on_drop(&self, on_drop: OnDrop) {
        self.lock().dropped.on_drop = on_drop;
    }

    /// Records that the user dropped the sending half, after the data path got all its bytes (`all_was_sent`) or
    /// earlier.
    pub(crate) fn release_sender(&self, all_was_sent: bool) {
        let mut inner = self.lock();
        inner.release_sender(all_was_sent, panicking(), Instant::now());
        self.to_control.notify_one();
        self.finish_update(inner);
    }

    /// Records that the user dropped the receiving half, after it has taken `taken` bytes and left others unread or
    /// not.
    pub(crate) fn release_receiver(&self, taken: u64, unread: bool) {
        let mut inner = self.lock();
        inner.release_receiver(taken, unread, panicking(), Instant::now());
        self.to_control.notify_one();
        self.finish_update(inner);
    }

    /// Returns the time of the next [`check_dropped`](Self::check_dropped), if one is due. The peer has `limit` to
    /// take the last bytes.
    pub(crate) fn dropped_deadline(&self, limit: Duration) -> Option<Instant> {
        self.lock().dropped_deadline(limit)
    }

    /// Ends what the peer has not ended in time after the user has dropped a half.
    pub(crate) fn check_dropped(&self, limit: Duration) {
        let mut inner = self.lock();
        inner.check_dropped(limit, Instant::now());
        self.finish_update(inner);
    }
}

/// The halves that the user of a stream holds, and what was left to the endpoint.
pub(super) struct DroppedHalves {
    /// The number of halves that the user holds.
    held: u8,
    pub(super) on_drop: OnDrop,
    /// The user has dropped the writer.
    pub(super) writer_left: bool,
    /// Every byte that was written has been given to the data path, and no more can follow.
    pub(super) all_was_sent: bool,
    /// The reader that was dropped before the end of its direction.
    pub(super) reader: Option<DroppedReader>,
    /// The time when the last half was dropped.
    pub(super) since: Option<Instant>,
    pub(super) has_said_bye: bool,
}

/// A reader that was dropped before the end of its direction.
pub(super) struct DroppedReader {
    pub(super) since: Instant,
    /// The number of bytes that had arrived, and the number that the user had taken.
    pub(super) received: u64,
    pub(super) taken: u64,
}

impl DroppedHalves {
    /// The user holds `halves` halves.
    pub(super) fn new(halves: u8) -> Self {
        Self {
            held: halves,
            on_drop: OnDrop::Abort,
            writer_left: false,
            all_was_sent: false,
            reader: None,
            since: None,
            has_said_bye: false,
        }
    }

    /// Returns true if the user holds a half.
    pub(super) fn is_held(&self) -> bool {
        self.held > 0
    }

    /// Returns true if this end has said Bye.
    pub(super) fn has_said_bye(&self) -> bool {
        self.has_said_bye
    }

    /// Notes that the user has dropped a half.
    pub(super) fn release(&mut self, now: Instant) {
        self.held -= 1;
        if self.held == 0 {
            self.since = Some(now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Direction;

    /// A stream whose FIN the peer has acknowledged.
    fn acknowledged() -> StreamMachine {
        let mut machine = StreamMachine::new(Direction::Both, 2, 1);
        machine.sending = Sending::Acked;
        machine
    }

    fn drop_reader(machine: &mut StreamMachine) {
        machine.release_receiver(7, true, false, Instant::now());
    }

    fn is_aborted(machine: &StreamMachine) -> bool {
        matches!(machine.fault, Some(StreamFault::Aborted { .. }))
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
        assert!(machine.fault.is_none());
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
        let mut machine = StreamMachine::new(Direction::Both, 2, 1);
        drop_reader(&mut machine);
        assert_eq!(machine.sending, Sending::Open);
        assert!(machine.fault.is_none());
        machine.release_sender(true, false, Instant::now());
        assert!(is_aborted(&machine), "a drop without FIN");
    }

    #[test]
    fn a_receiver_that_leaves_early_is_an_abort() {
        let mut machine = StreamMachine::new(Direction::Receive, 2, 1);
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
            let mut writer = StreamMachine::new(Direction::Both, 2, 1);
            writer.dropped.on_drop = on_drop;
            writer.release_sender(true, true, Instant::now());
            assert!(is_aborted(&writer));
        }
    }

    #[test]
    fn with_fin_the_last_bytes_follow_the_user_for_a_limited_time() {
        let mut machine = StreamMachine::new(Direction::Both, 2, 1);
        machine.dropped.on_drop = OnDrop::Fin;
        let now = Instant::now();
        machine.release_sender(true, false, now);
        assert!(machine.fin_due && machine.fault.is_none());
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
            let mut machine = StreamMachine::new(Direction::Both, 2, 1);
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
}
