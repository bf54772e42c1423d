//! The states of a stream's two directions and what moves them: pure, no I/O, no lock.

use std::{collections::VecDeque, mem, task::Waker, time::Instant};

use super::credits::Credits;
use crate::{
    Direction, Error, Fault, Stats,
    transport::control::message::{Message, printable},
};

/// The sending direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sending {
    /// This end does not send.
    Absent,
    /// Bytes may follow.
    Open,
    /// FIN is out.
    Fin,
    /// The peer's endpoint holds and has verified every byte.
    Acked,
    /// The peer's sink has taken every byte.
    Confirmed,
    /// The peer's reader wants no more, after so many bytes.
    Stopped(u64),
}

/// The receiving direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Receiving {
    /// This end does not receive.
    Absent,
    /// Bytes may follow.
    Open,
    /// FIN is in: so many bytes in all, with this digest at the end.
    Fin(u64, u64),
    /// Every byte is here and verified; the reader has not had all of them.
    Complete,
    /// The reader has seen the end.
    AtEnd,
    /// The sink has taken every byte, and the peer knows.
    Confirmed,
    /// The reader wants no more.
    Stopped,
}

/// The first thing that went wrong; what follows from it is not recorded.
#[derive(Debug, Clone)]
pub(crate) enum Failure {
    /// Found here.
    Fault(Fault),
    /// Told by the peer.
    PeerAborted { offset: u64, reason: String },
    /// Given up by the user of this end.
    Aborted { reason: String },
}

/// What a stream's lock protects.
pub(super) struct StreamMachine {
    pub(super) sending: Sending,
    pub(super) receiving: Receiving,
    pub(super) credits: Credits,
    /// The peer's steps towards a new data path.
    pub(super) steps: VecDeque<Result<Vec<u8>, String>>,
    pub(super) outbox: Vec<Message>,
    pub(super) failure: Option<Failure>,
    /// A broken data connection, whose cause the control connection may yet tell.
    pub(super) suspicion: Option<(Fault, Instant)>,
    pub(super) stats: Stats,
    pub(super) send_waker: Option<Waker>,
    pub(super) receive_waker: Option<Waker>,
    pub(super) steward_waker: Option<Waker>,
    /// Whether there is news for the user of the sending half, and for that of the receiving one.
    news: [bool; 2],
    /// Halves that are still held by the user.
    pub(super) held: u8,
    /// The peer has said goodbye.
    pub(super) peer_left: bool,
    /// A failure or a STOP: whoever waits for something else has to look.
    pub(super) interrupted: bool,
}

impl StreamMachine {
    /// The state of a stream that has just been connected, whose user holds `halves` halves.
    pub(super) fn new(direction: Direction, halves: u8) -> Self {
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
            credits: Credits::default(),
            steps: VecDeque::new(),
            outbox: Vec::new(),
            failure: None,
            suspicion: None,
            stats: Stats::default(),
            send_waker: None,
            receive_waker: None,
            steward_waker: None,
            news: [false; 2],
            held: halves,
            peer_left: false,
            interrupted: false,
        }
    }

    /// Nothing more is expected of the sending direction.
    pub(super) fn send_done(&self) -> bool {
        use Sending as S;
        matches!(
            self.sending,
            S::Absent | S::Acked | S::Confirmed | S::Stopped(_)
        ) || self.failure.is_some()
    }

    /// Nothing more is expected of the receiving direction, of which the reader has `unread` bytes.
    pub(super) fn receive_done(&self, unread: bool) -> bool {
        match self.receiving {
            Receiving::Open | Receiving::Fin(..) => self.failure.is_some(),
            Receiving::Complete => !unread || self.failure.is_some(),
            _ => true,
        }
    }

    /// Nothing more is expected of the data path.
    pub(super) fn done(&self) -> bool {
        self.send_done() && self.receive_done(false)
    }

    /// What keeps the sending direction from going on.
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

    /// What keeps the receiving direction from going on.
    pub(super) fn receive_error(&self, peer: &str) -> Option<Error> {
        self.error(peer, |fault| Error::Receive {
            peer: peer.to_owned(),
            offset: self.stats.bytes_received,
            fault,
        })
    }

    /// The failure, if there is one, as a direction sees it: only what was found here looks
    /// different from each.
    fn error(&self, peer: &str, found_here: impl FnOnce(Fault) -> Error) -> Option<Error> {
        Some(match self.failure.clone()? {
            Failure::Fault(fault) => found_here(fault),
            Failure::PeerAborted { offset, reason } => Error::PeerAborted {
                peer: peer.to_owned(),
                offset,
                reason,
            },
            Failure::Aborted { reason } => Error::Aborted { reason },
        })
    }

    /// All bytes were sent, and nobody knows what became of them.
    pub(super) fn unconfirmed(&self, peer: &str, fault: Fault) -> Error {
        Error::Unconfirmed {
            peer: peer.to_owned(),
            bytes: self.stats.bytes_sent,
            fault,
        }
    }

    /// Records the first failure, and tells the peer unless the peer knows.
    pub(super) fn fail(&mut self, failure: Failure) {
        if self.failure.is_some() {
            return;
        }
        let reason = match &failure {
            Failure::Fault(Fault::PeerDied(_)) | Failure::PeerAborted { .. } => None,
            Failure::Fault(fault) => Some(fault.to_string()),
            Failure::Aborted { reason } => Some(printable(reason)),
        };
        if let Some(reason) = reason {
            let offset = self.stats.bytes_sent.max(self.stats.bytes_received);
            self.outbox.push(Message::Abort { offset, reason });
        }
        self.failure = Some(failure);
        self.interrupt();
    }

    /// Has everybody woken, also those that wait elsewhere.
    fn interrupt(&mut self) {
        self.interrupted = true;
        self.wake(true, true);
    }

    /// Has the users of these halves woken, and the steward.
    pub(super) fn wake(&mut self, sender: bool, receiver: bool) {
        self.news[0] |= sender;
        self.news[1] |= receiver;
    }

    /// The wakers of those who are to be woken now.
    pub(super) fn take_woken(&mut self) -> impl Iterator<Item = Waker> + use<> {
        let [sender, receiver] = mem::take(&mut self.news);
        let woken = [
            self.send_waker.take_if(|_| sender),
            self.receive_waker.take_if(|_| receiver),
            self.steward_waker.take_if(|_| sender || receiver),
        ];
        woken.into_iter().flatten()
    }

    /// Takes a message of the peer's, or says which rule it breaks.
    pub(super) fn receive(&mut self, message: Message) -> Result<(), &'static str> {
        match message {
            Message::Ping => {}
            Message::Credit(_) if self.sending == Sending::Absent => return Err(UNASKED_CREDIT),
            Message::Credit(slots) => {
                if self.credits.add(slots) {
                    self.wake(true, false);
                }
            }
            Message::Fin { bytes, digest } => {
                self.receiving = match self.receiving {
                    Receiving::Open => Receiving::Fin(bytes, digest),
                    Receiving::Stopped => Receiving::Stopped,
                    _ => return Err("a second FIN"),
                };
                self.wake(false, true);
            }
            Message::Step(_) if self.steps.len() >= MOST_STEPS => {
                return Err("more steps than there are");
            }
            Message::Step(step) => self.steps.push_back(step),
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
                self.fail(Failure::PeerAborted { offset, reason });
            }
            Message::Bye if self.done() => {
                self.peer_left = true;
                self.wake(true, true);
            }
            Message::Bye => return Err("a goodbye in the middle of the stream"),
            _ => return Err("a message at a time when it makes no sense"),
        }
        Ok(())
    }
}

/// Most steps of the peer's that can wait here: it takes four to renew a data path, and the peer does
/// not begin again before this end has finished.
const MOST_STEPS: usize = 8;

const UNASKED_CREDIT: &str = "a credit for a direction that does not exist";

#[cfg(test)]
mod tests;
