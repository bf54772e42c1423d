//! The states of the two directions of a stream, and what each event does to them. Pure: no I/O, no lock.

use std::{task::Waker, time::Instant};

use super::{
    after_drop::DroppedHalves,
    connections::Networks,
    rail::{self, RailMachine, UNKNOWN_SLOT},
};
use crate::{
    Direction, Error, Fault, Stats,
    transport::control::message::{Message, printable},
};

/// The state of the sending direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sending {
    /// This end does not send.
    Absent,
    /// Bytes may follow.
    Open,
    Fin,
    /// The peer's endpoint has received and verified every byte.
    Acked,
    /// The peer's sink has taken every byte.
    Confirmed,
    /// The peer's reader needs no more, after this number of bytes.
    Stopped(u64),
}

/// The state of the receiving direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Receiving {
    /// This end does not receive.
    Absent,
    /// Bytes may follow.
    Open,
    /// FIN has arrived, with the number of bytes and the end of the chain of digests.
    Fin(u64, u64),
    /// Every byte has arrived and is verified; the reader has not taken all of them.
    Complete,
    /// The reader has seen the end.
    AtEnd,
    /// The sink has taken every byte, and the peer has been told.
    Confirmed,
    /// The reader needs no more.
    Stopped,
}

/// The first fault of a stream. Its consequences are not recorded.
#[derive(Debug, Clone)]
pub(crate) enum StreamFault {
    Found(Fault),
    PeerAborted {
        offset: u64,
        reason: String,
    },
    /// The user of this end aborted the stream.
    Aborted {
        reason: String,
    },
}

/// The part of a stream's state that its lock protects.
pub(super) struct StreamMachine {
    pub(super) sending: Sending,
    pub(super) receiving: Receiving,
    /// What belongs to each rail, the first one first.
    pub(super) rails: Vec<RailMachine>,
    pub(super) networks: Networks,
    pub(super) outbox: Vec<Message>,
    pub(super) fault: Option<StreamFault>,
    /// The fault of a broken data connection, whose cause the control connection may still tell.
    pub(super) suspicion: Option<(Fault, Instant)>,
    pub(super) stats: Stats,
    /// FIN follows the last byte: the user has called `shutdown`, or dropped a stream that ends with FIN.
    pub(super) fin_due: bool,
    /// The halves that the user still holds, and what the endpoint does after the user has left.
    pub(super) dropped: DroppedHalves,
    /// The peer has sent Bye.
    pub(super) peer_left: bool,
    /// There was a failure or a STOP, which interrupts every wait.
    pub(super) interrupted: bool,
}

impl StreamMachine {
    /// Returns the state of a stream of `rails` rails that has just been connected. Its user holds `halves` halves.
    pub(super) fn new(direction: Direction, halves: u8, rails: usize) -> Self {
        Self {
            sending: if direction.sends() {
                Sending::Open
            } else {
                Sending::Absent
            },
            receiving: if direction.receives() {
                Receiving::Open
            } else {
                Receiving::Absent
            },
            rails: (0..rails.max(1)).map(|_| RailMachine::default()).collect(),
            networks: Networks::default(),
            outbox: Vec::new(),
            fault: None,
            suspicion: None,
            stats: Stats::default(),
            fin_due: false,
            dropped: DroppedHalves::new(halves),
            peer_left: false,
            interrupted: false,
        }
    }

    /// Returns true if the sending direction has ended.
    pub(super) fn send_done(&self) -> bool {
        use Sending as S;
        matches!(
            self.sending,
            S::Absent | S::Acked | S::Confirmed | S::Stopped(_)
        ) || self.fault.is_some()
    }

    /// Returns true if the receiving direction has ended, with or without `unread` bytes.
    pub(super) fn receive_done(&self, unread: bool) -> bool {
        match self.receiving {
            Receiving::Open | Receiving::Fin(..) => self.fault.is_some(),
            Receiving::Complete => !unread || self.fault.is_some(),
            _ => true,
        }
    }

    /// Returns true if both directions have ended.
    pub(super) fn done(&self) -> bool {
        self.send_done() && self.receive_done(false)
    }

    /// Returns what ended the sending direction before its time.
    pub(super) fn send_error(&self, peer: &str) -> Option<Error> {
        if let Sending::Stopped(offset) = self.sending {
            let peer = peer.to_owned();
            return Some(Error::Stopped { peer, offset });
        }
        self.error(peer, |fault| match self.sending {
            Sending::Fin | Sending::Acked => self.unconfirmed(peer, fault),
            _ => Error::Send {
                peer: peer.to_owned(),
                offset: self.stats.bytes_sent,
                fault,
            },
        })
    }

    /// Returns what ended the receiving direction before its time.
    pub(super) fn receive_error(&self, peer: &str) -> Option<Error> {
        self.error(peer, |fault| Error::Receive {
            peer: peer.to_owned(),
            offset: self.stats.bytes_received,
            fault,
        })
    }

    /// Returns what ended the stream before its time, as this end's user knows it after it has left.
    pub(super) fn end_error(&self, peer: &str) -> Option<Error> {
        if self.sending == Sending::Absent || self.has_left_after_all_was_taken() {
            self.receive_error(peer)
        } else {
            self.send_error(peer)
        }
    }

    /// Returns the failure as one direction reports it. Only faults that this end found differ between the directions.
    fn error(&self, peer: &str, found_here: impl FnOnce(Fault) -> Error) -> Option<Error> {
        Some(match self.fault.clone()? {
            StreamFault::Found(fault) => found_here(fault),
            StreamFault::PeerAborted { offset, reason } => Error::PeerAborted {
                peer: peer.to_owned(),
                offset,
                reason,
            },
            StreamFault::Aborted { reason } => Error::Aborted { reason },
        })
    }

    /// Returns the error for bytes that were all sent, and whose delivery is unknown.
    pub(super) fn unconfirmed(&self, peer: &str, fault: Fault) -> Error {
        Error::Unconfirmed {
            peer: peer.to_owned(),
            bytes: self.stats.bytes_sent,
            fault,
        }
    }

    /// Records the first failure, and notifies the peer of it unless the peer itself reported it.
    pub(super) fn fail(&mut self, fault: StreamFault) {
        if self.fault.is_some() {
            return;
        }
        let reason = match &fault {
            StreamFault::Found(Fault::PeerDied(_)) | StreamFault::PeerAborted { .. } => None,
            StreamFault::Found(fault) => Some(fault.to_string()),
            StreamFault::Aborted { reason } => Some(printable(reason)),
        };
        if let Some(reason) = reason {
            let offset = self.stats.bytes_sent.max(self.stats.bytes_received);
            self.outbox.push(Message::Abort { offset, reason });
        }
        self.fault = Some(fault);
        self.interrupt();
    }

    /// Records that a data connection broke, if no cause is known.
    pub(super) fn suspect(&mut self, fault: Fault) {
        if self.suspicion.is_none() && self.fault.is_none() && !self.done() {
            self.suspicion = Some((fault, Instant::now()));
        }
    }

    /// Has both halves woken, and every other wait interrupted.
    fn interrupt(&mut self) {
        self.interrupted = true;
        self.wake(true, true);
    }

    /// Has the users of these halves woken, and the stewards.
    pub(super) fn wake(&mut self, sender: bool, receiver: bool) {
        for rail in &mut self.rails {
            rail.wake(sender, receiver);
        }
    }

    /// Has the user of the first rail's sending half woken, and its steward.
    pub(super) fn wake_first_sender(&mut self) {
        self.rails[0].wake(true, false);
    }

    /// Takes the wakers that are to be called now.
    pub(super) fn take_woken(&mut self) -> impl Iterator<Item = Waker> + use<> {
        let (first, others) = self.rails.split_first_mut().expect("a stream has a rail");
        let others: Vec<Waker> = others
            .iter_mut()
            .flat_map(RailMachine::take_woken)
            .collect();
        first.take_woken().chain(others)
    }

    /// Adds credits, each to its rail.
    fn add_credits(&mut self, slots: Vec<u32>) -> Result<(), &'static str> {
        if let [rail] = &mut self.rails[..] {
            return rail.add_credits(slots);
        }
        for slot in slots {
            let (rail, slot) = rail::place(slot, self.rails[0].peer_slots());
            let rail = self.rails.get_mut(rail).ok_or(UNKNOWN_SLOT)?;
            rail.add_credits([slot])?;
        }
        Ok(())
    }

    /// Handles a message of the peer. The error says which rule the message breaks.
    pub(super) fn receive(&mut self, message: Message) -> Result<(), &'static str> {
        match message {
            Message::Ping { .. } => {}
            Message::Credit(_) if self.sending == Sending::Absent => return Err(UNASKED_CREDIT),
            Message::Credit(slots) => self.add_credits(slots)?,
            Message::Fin { bytes, digest } => {
                self.receiving = match self.receiving {
                    Receiving::Open => Receiving::Fin(bytes, digest),
                    Receiving::Stopped => Receiving::Stopped,
                    _ => return Err("a second FIN"),
                };
                self.wake(false, true);
            }
            Message::Step { rail, step } => {
                let rail = self.rails.get_mut(usize::from(rail));
                rail.ok_or("a step for a rail that does not exist")?
                    .add_step(step)?;
            }
            Message::Moved {
                rail,
                connection,
                verified,
            } => self.follow_peer(rail.into(), connection.into(), verified)?,
            Message::FinAck if self.sending == Sending::Fin => {
                self.sending = Sending::Acked;
                self.wake(true, false);
            }
            Message::Confirm if self.sending == Sending::Acked => {
                self.sending = Sending::Confirmed;
                self.wake(true, false);
            }
            Message::Stop { offset } if self.sending != Sending::Absent => {
                self.sending = Sending::Stopped(offset);
                self.interrupt();
            }
            Message::Abort { offset, reason } => {
                self.fail(StreamFault::PeerAborted { offset, reason });
            }
            Message::Bye if self.done() => {
                self.peer_left = true;
                self.wake(true, true);
            }
            Message::Bye => return Err("a goodbye in the middle of the stream"),
            _ => return Err("a message that is not allowed in the current state"),
        }
        Ok(())
    }
}

const UNASKED_CREDIT: &str = "a credit for a direction that does not exist";

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The number of slots of the peer's pool.
    const DEPTH: u32 = 64;

    fn machine() -> StreamMachine {
        let mut machine = StreamMachine::new(Direction::Both, 2, 1);
        machine.rails[0].credits.set_pool(DEPTH as usize);
        machine
    }

    fn message() -> impl Strategy<Value = Message> {
        prop_oneof![
            Just(Message::Ping {
                sent: 1,
                received: 2,
                messages: 3
            }),
            (0..DEPTH).prop_map(|slot| Message::Credit(vec![slot])),
            Just(Message::Fin {
                bytes: 3,
                digest: 4
            }),
            Just(Message::FinAck),
            Just(Message::Confirm),
            Just(Message::Stop { offset: 5 }),
            Just(Message::Bye),
        ]
    }

    proptest! {
        /// A peer sends any messages in any order. A direction never ends with success before its real end, and the
        /// peer never leaves in the middle of a stream without a failure.
        #[test]
        fn no_order_of_messages_makes_a_false_end(messages in proptest::collection::vec(message(), 0..12)) {
            let mut machine = machine();
            for message in messages {
                if machine.receive(message).is_err() {
                    return Ok(());
                }
                prop_assert!(!matches!(machine.sending, Sending::Acked | Sending::Confirmed));
                prop_assert!(!matches!(machine.receiving, Receiving::Complete | Receiving::AtEnd));
                prop_assert!(!machine.peer_left || machine.done());
            }
        }
    }

    proptest! {
        /// A peer grants any slots, while this end takes some of them. The credits that wait never outnumber the slots
        /// of the peer, and no credit is for a slot that waits already.
        #[test]
        fn credits_never_outnumber_the_slots_of_the_peer(grants in proptest::collection::vec((proptest::collection::vec(0..DEPTH + 8, 0..40), 0..40_usize), 0..40)) {
            let mut machine = machine();
            for (slots, taken) in grants {
                let accepted = machine.receive(Message::Credit(slots.clone())).is_ok();
                prop_assert!(!accepted || slots.iter().all(|slot| *slot < DEPTH));
                let mut waiting: Vec<u32> = machine.rails[0].credits.waiting().collect();
                prop_assert!(waiting.len() <= DEPTH as usize);
                waiting.sort_unstable();
                waiting.dedup();
                prop_assert_eq!(waiting.len(), machine.rails[0].credits.waiting().count());
                for _ in 0..taken {
                    machine.rails[0].credits.take();
                }
            }
        }
    }

    #[test]
    fn a_slot_that_the_peer_does_not_have_cannot_be_granted() {
        for slot in [DEPTH, u32::MAX] {
            let credit = Message::Credit(vec![0, slot]);
            assert!(machine().receive(credit).is_err(), "{slot}");
        }
        machine().receive(Message::Credit(vec![DEPTH - 1])).unwrap();
    }

    #[test]
    fn a_slot_is_granted_once_until_it_is_written() {
        let mut machine = machine();
        assert!(machine.receive(Message::Credit(vec![3, 3])).is_err());
        assert!(machine.receive(Message::Credit(vec![3])).is_err());
        assert_eq!(machine.rails[0].credits.take(), Some(3));
        machine.receive(Message::Credit(vec![3])).unwrap();
    }

    #[cfg(feature = "rdma")]
    #[test]
    fn a_new_pool_of_the_peer_may_have_another_depth() {
        let mut machine = machine();
        machine.receive(Message::Credit(vec![0, 1, 2])).unwrap();
        machine.rails[0].credits.pause();
        // The rest of the credits for the old pool, and then those for the new one.
        machine.receive(Message::Credit(vec![DEPTH - 1])).unwrap();
        machine.rails[0].credits.pause();
        machine.rails[0].credits.set_pool(2);
        assert!(machine.receive(Message::Credit(vec![2])).is_err());
        machine.receive(Message::Credit(vec![0, 1])).unwrap();
        assert_eq!(machine.rails[0].credits.take(), None, "paused");
        machine.rails[0].credits.resume();
        assert_eq!(machine.rails[0].credits.take(), Some(0));
    }

    #[test]
    fn an_acknowledgement_needs_a_fin() {
        assert!(machine().receive(Message::FinAck).is_err());
        assert!(machine().receive(Message::Confirm).is_err());
        let mut sent = machine();
        sent.sending = Sending::Fin;
        assert!(
            sent.receive(Message::Confirm).is_err(),
            "not acknowledged yet"
        );
        sent.receive(Message::FinAck).unwrap();
        sent.receive(Message::Confirm).unwrap();
        assert_eq!(sent.sending, Sending::Confirmed);
    }

    #[test]
    fn only_one_fin() {
        let mut machine = machine();
        let fin = Message::Fin {
            bytes: 1,
            digest: 2,
        };
        machine.receive(fin.clone()).unwrap();
        assert!(machine.receive(fin).is_err());
    }

    #[test]
    fn the_first_failure_is_the_cause() {
        let mut machine = machine();
        let reason = "disk full".to_owned();
        machine
            .receive(Message::Abort { offset: 7, reason })
            .unwrap();
        machine.fail(StreamFault::Found(Fault::Protocol("what followed from it")));
        let error = machine.send_error("hostB").unwrap();
        assert_eq!(error.to_string(), "hostB gave up at byte 7: disk full");
        assert!(machine.outbox.is_empty(), "the peer knows");
    }

    #[test]
    fn a_fault_found_here_is_told() {
        let mut machine = machine();
        machine.fail(StreamFault::Found(Fault::Corrupt("a chunk")));
        assert!(matches!(machine.outbox[..], [Message::Abort { .. }]));
        assert!(machine.interrupted);
    }

    #[test]
    fn a_lost_peer_after_the_acknowledgement_is_unconfirmed() {
        let mut machine = machine();
        machine.sending = Sending::Acked;
        machine.fail(StreamFault::Found(Fault::Protocol("x")));
        assert!(matches!(
            machine.send_error("b"),
            Some(Error::Unconfirmed { .. })
        ));
    }
}
