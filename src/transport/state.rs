//! The state of one stream, shared by its two halves, its control task and its steward.
//!
//! No I/O happens here and the lock is held for a few instructions only: what a half wants to tell
//! the peer goes into the outbox, what the peer tells comes in through [`State::receive`]. The
//! table of states stands in docs/architecture.md.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker},
    time::Instant,
};

use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::message::{Message, printable};
use crate::{Direction, Error, Fault, Stats};

/// The sending direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sending {
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
enum Receiving {
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

/// See the module.
pub(crate) struct State {
    peer: String,
    started: Instant,
    inner: Mutex<Inner>,
    /// Wakes the control task: something is in the outbox, or the end has come.
    pub(crate) to_control: Notify,
    /// Cancelled by a failure or a STOP: whoever waits for something else has to look.
    interrupted: CancellationToken,
    /// Cancelled when the control task has ended and its connection is closed.
    pub(crate) ended: CancellationToken,
}

struct Inner {
    sending: Sending,
    receiving: Receiving,
    credits: VecDeque<u32>,
    outbox: Vec<Message>,
    failure: Option<Failure>,
    /// A broken data connection, whose cause the control connection may yet tell.
    suspicion: Option<(Fault, Instant)>,
    stats: Stats,
    send_waker: Option<Waker>,
    receive_waker: Option<Waker>,
    steward_waker: Option<Waker>,
    /// Halves that are still held by the user.
    held: u8,
    peer_left: bool,
}

/// What the control task has to do next.
pub(crate) struct Orders {
    /// Messages to send, in order.
    pub(crate) messages: Vec<Message>,
    /// Nothing follows: close when they are out.
    pub(crate) last: bool,
}

impl State {
    /// The state of a stream that has just been connected, whose user holds `halves` halves.
    pub(crate) fn new(peer: String, direction: Direction, halves: u8) -> Arc<Self> {
        let inner = Inner {
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
            credits: VecDeque::new(),
            outbox: Vec::new(),
            failure: None,
            suspicion: None,
            stats: Stats::default(),
            send_waker: None,
            receive_waker: None,
            steward_waker: None,
            held: halves,
            peer_left: false,
        };
        Arc::new(Self {
            peer,
            started: Instant::now(),
            inner: Mutex::new(inner),
            to_control: Notify::new(),
            interrupted: CancellationToken::new(),
            ended: CancellationToken::new(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // Nothing in here panics half-way through a change.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The peer's name, for messages.
    pub(crate) fn peer(&self) -> &str {
        &self.peer
    }

    /// Counts so far.
    pub(crate) fn stats(&self) -> Stats {
        Stats {
            elapsed: self.started.elapsed(),
            ..self.lock().stats
        }
    }

    /// Whether this direction sends at all.
    pub(crate) fn sends(&self) -> bool {
        self.lock().sending != Sending::Absent
    }

    /// Waits for a failure or a STOP.
    pub(crate) async fn interrupted(&self) {
        self.interrupted.cancelled().await;
    }

    /// What keeps the sending direction from going on: a failure, or the peer's STOP.
    pub(crate) fn send_error(&self) -> Option<Error> {
        self.lock().send_error(&self.peer)
    }

    /// What keeps the receiving direction from going on.
    pub(crate) fn receive_error(&self) -> Option<Error> {
        self.lock().receive_error(&self.peer)
    }

    // --- the sending half -------------------------------------------------------------------

    /// Whether more bytes may be written.
    ///
    /// # Errors
    ///
    /// A failure, a STOP, or misuse: written after `shutdown`, or in a stream that only receives.
    pub(crate) fn writable(&self) -> Result<(), Error> {
        let inner = self.lock();
        if let Some(error) = inner.send_error(&self.peer) {
            return Err(error);
        }
        match inner.sending {
            Sending::Open => Ok(()),
            Sending::Absent => Err(Error::Misuse("this stream only receives")),
            _ => Err(Error::Misuse("written after shutdown")),
        }
    }

    /// A slot of the peer's that may be written.
    pub(crate) fn take_credit(&self) -> Option<u32> {
        self.lock().credits.pop_front()
    }

    /// One chunk of `bytes` went to the data path.
    pub(crate) fn count_sent(&self, bytes: u64) {
        let stats = &mut self.lock().stats;
        stats.bytes_sent += bytes;
        stats.chunks_sent += 1;
    }

    /// Registers the sender's waker: for credits, acknowledgements and failures.
    pub(crate) fn wait_to_send(&self, cx: &Context<'_>) {
        register(&mut self.lock().send_waker, cx);
    }

    /// Every byte is with the data path: says so, once.
    pub(crate) fn finish_sending(&self, bytes: u64, digest: u64) {
        let mut inner = self.lock();
        if inner.sending == Sending::Open {
            inner.sending = Sending::Fin;
            inner.outbox.push(Message::Fin { bytes, digest });
            self.to_control.notify_one();
        }
    }

    /// Completes when the peer's endpoint holds and has verified every byte.
    pub(crate) fn poll_acked(&self, cx: &Context<'_>) -> Poll<Result<(), Error>> {
        let mut inner = self.lock();
        match inner.sending {
            Sending::Acked | Sending::Confirmed | Sending::Absent => return Poll::Ready(Ok(())),
            Sending::Open | Sending::Fin | Sending::Stopped(_) => {}
        }
        if let Some(error) = inner.send_error(&self.peer) {
            return Poll::Ready(Err(error));
        }
        register(&mut inner.send_waker, cx);
        Poll::Pending
    }

    /// Completes when the peer's sink has taken every byte.
    pub(crate) fn poll_confirmed(&self, cx: &Context<'_>) -> Poll<Result<(), Error>> {
        let mut inner = self.lock();
        if matches!(inner.sending, Sending::Confirmed | Sending::Absent) {
            return Poll::Ready(Ok(()));
        }
        if let Some(error) = inner.send_error(&self.peer) {
            return Poll::Ready(Err(error));
        }
        if inner.peer_left {
            let fault = Fault::Protocol("it closed the stream without confirming");
            return Poll::Ready(Err(inner.unconfirmed(&self.peer, fault)));
        }
        register(&mut inner.send_waker, cx);
        Poll::Pending
    }

    // --- the receiving half -----------------------------------------------------------------

    /// The FIN, once it is in and until its bytes are.
    pub(crate) fn announced_end(&self) -> Option<(u64, u64)> {
        match self.lock().receiving {
            Receiving::Fin(bytes, digest) => Some((bytes, digest)),
            _ => None,
        }
    }

    /// Whether this direction receives at all.
    pub(crate) fn receives(&self) -> bool {
        !matches!(
            self.lock().receiving,
            Receiving::Absent | Receiving::Stopped
        )
    }

    /// One chunk of `bytes` arrived and was verified.
    pub(crate) fn count_received(&self, bytes: u64) {
        let stats = &mut self.lock().stats;
        stats.bytes_received += bytes;
        stats.chunks_received += 1;
    }

    /// These slots may be written by the peer.
    pub(crate) fn grant(&self, slots: &mut Vec<u32>) {
        let mut inner = self.lock();
        if let Some(Message::Credit(granted)) = inner.outbox.last_mut() {
            granted.append(slots);
        } else {
            inner.outbox.push(Message::Credit(std::mem::take(slots)));
        }
        self.to_control.notify_one();
    }

    /// Every byte of the FIN is here and verified.
    pub(crate) fn complete(&self) {
        let mut inner = self.lock();
        // The reader may have stopped since the FIN was looked at; the peer takes no
        // acknowledgement after that.
        if matches!(inner.receiving, Receiving::Fin(..)) {
            inner.receiving = Receiving::Complete;
            inner.outbox.push(Message::FinAck);
            self.to_control.notify_one();
        }
    }

    /// The reader has had every byte: `true` when that was the end of the stream.
    ///
    /// # Errors
    ///
    /// The failure that came instead of the end.
    pub(crate) fn at_end(&self) -> Result<bool, Error> {
        let mut inner = self.lock();
        match inner.receiving {
            Receiving::Complete => inner.receiving = Receiving::AtEnd,
            Receiving::AtEnd | Receiving::Confirmed | Receiving::Absent | Receiving::Stopped => {}
            Receiving::Open | Receiving::Fin(..) => {
                return inner.receive_error(&self.peer).map_or(Ok(false), Err);
            }
        }
        Ok(true)
    }

    /// Registers the reader's waker: for FIN and failures.
    pub(crate) fn wait_to_receive(&self, cx: &Context<'_>) {
        register(&mut self.lock().receive_waker, cx);
    }

    /// The sink has taken every byte: tells the peer.
    ///
    /// # Errors
    ///
    /// When the end has not been read yet, or the stream failed before.
    pub(crate) fn confirm(&self) -> Result<(), Error> {
        let mut inner = self.lock();
        match inner.receiving {
            Receiving::Confirmed => Ok(()),
            Receiving::AtEnd => {
                if let Some(error) = inner.receive_error(&self.peer) {
                    return Err(error);
                }
                inner.receiving = Receiving::Confirmed;
                inner.outbox.push(Message::Confirm);
                self.to_control.notify_one();
                Ok(())
            }
            _ => Err(Error::Misuse("confirmed before the end was read")),
        }
    }

    /// The reader wants no more after `offset` bytes, and is content.
    pub(crate) fn stop(&self, offset: u64) {
        let mut inner = self.lock();
        if matches!(
            inner.receiving,
            Receiving::Open | Receiving::Fin(..) | Receiving::Complete
        ) {
            inner.receiving = Receiving::Stopped;
            inner.outbox.push(Message::Stop { offset });
            self.to_control.notify_one();
        }
    }

    // --- ends -------------------------------------------------------------------------------

    /// Records the first failure, tells the peer unless the peer knows, and wakes everybody.
    pub(crate) fn fail(&self, failure: Failure) {
        self.lock().fail(failure, self);
    }

    /// The data connection broke. The control connection is given a moment to tell why: a peer
    /// that dies closes both, one that aborts says so first.
    pub(crate) fn suspect(&self, fault: Fault) {
        let mut inner = self.lock();
        if inner.suspicion.is_none() && inner.failure.is_none() && !inner.done() {
            inner.suspicion = Some((fault, Instant::now()));
            self.to_control.notify_one();
        }
    }

    /// The data connection's fault and when it was seen, while nothing better is known.
    pub(crate) fn suspicion(&self) -> Option<(Fault, Instant)> {
        let inner = self.lock();
        if inner.done() {
            None
        } else {
            inner.suspicion.clone()
        }
    }

    /// The user let go of the sending half (or of the receiving half, with all it had not read).
    pub(crate) fn release_half(&self, sending: bool, unread: bool) {
        let mut inner = self.lock();
        inner.held -= 1;
        let done = if sending {
            inner.send_done()
        } else {
            inner.receive_done(unread)
        };
        if !done {
            let reason = "the program dropped the stream before its end".to_owned();
            inner.fail(Failure::Aborted { reason }, self);
        } else if inner.held == 0 {
            if inner.failure.is_none() {
                inner.outbox.push(Message::Bye);
            }
            self.to_control.notify_one();
        }
    }

    // --- the control task and the steward -----------------------------------------------------

    /// What is to be sent now, and whether it is the last.
    pub(crate) fn orders(&self) -> Orders {
        let mut inner = self.lock();
        let last = inner.held == 0 || inner.failure.is_some();
        Orders {
            messages: std::mem::take(&mut inner.outbox),
            last,
        }
    }

    /// Whether the peer has said goodbye: the end of its connection is no death then.
    pub(crate) fn peer_left(&self) -> bool {
        self.lock().peer_left
    }

    /// Whether the stream failed because the peer said nothing for too long.
    pub(crate) fn is_peer_silent(&self) -> bool {
        matches!(
            self.lock().failure,
            Some(Failure::Fault(Fault::PeerSilent(_)))
        )
    }

    /// Whether the stream has failed.
    pub(crate) fn failed(&self) -> bool {
        self.lock().failure.is_some()
    }

    /// Registers the steward's waker for what wakes either half.
    pub(crate) fn wait_as_steward(&self, cx: &Context<'_>) {
        register(&mut self.lock().steward_waker, cx);
    }

    /// Wakes whoever waits for the sending half.
    pub(crate) fn wake_sender(&self) {
        let waker = self.lock().send_waker.take();
        waker.into_iter().for_each(Waker::wake);
    }

    /// Wakes whoever waits for the receiving half.
    pub(crate) fn wake_receiver(&self) {
        let waker = self.lock().receive_waker.take();
        waker.into_iter().for_each(Waker::wake);
    }

    /// Takes a message of the peer's.
    pub(crate) fn receive(&self, message: Message) {
        let mut inner = self.lock();
        if inner.failure.is_some() {
            return;
        }
        if let Err(broken) = inner.receive(message, self) {
            inner.fail(Failure::Fault(Fault::Protocol(broken)), self);
        }
    }
}

fn register(place: &mut Option<Waker>, cx: &Context<'_>) {
    match place {
        Some(waker) => waker.clone_from(cx.waker()),
        None => *place = Some(cx.waker().clone()),
    }
}

impl Inner {
    fn send_done(&self) -> bool {
        use Sending as S;
        matches!(
            self.sending,
            S::Absent | S::Acked | S::Confirmed | S::Stopped(_)
        ) || self.failure.is_some()
    }

    fn receive_done(&self, unread: bool) -> bool {
        match self.receiving {
            Receiving::Open | Receiving::Fin(..) => self.failure.is_some(),
            Receiving::Complete => !unread || self.failure.is_some(),
            _ => true,
        }
    }

    /// Nothing more is expected of the data path.
    fn done(&self) -> bool {
        self.send_done() && self.receive_done(false)
    }

    fn send_error(&self, peer: &str) -> Option<Error> {
        let peer = peer.to_owned();
        if let Sending::Stopped(offset) = self.sending {
            return Some(Error::Stopped { peer, offset });
        }
        Some(match self.failure.clone()? {
            Failure::Fault(fault) if self.sending == Sending::Acked => {
                self.unconfirmed(&peer, fault)
            }
            Failure::Fault(fault) => Error::Send {
                peer,
                offset: self.stats.bytes_sent,
                fault,
            },
            Failure::PeerAborted { offset, reason } => Error::PeerAborted {
                peer,
                offset,
                reason,
            },
            Failure::Aborted { reason } => Error::Aborted { reason },
        })
    }

    fn unconfirmed(&self, peer: &str, fault: Fault) -> Error {
        Error::Unconfirmed {
            peer: peer.to_owned(),
            bytes: self.stats.bytes_sent,
            fault,
        }
    }

    fn receive_error(&self, peer: &str) -> Option<Error> {
        let peer = peer.to_owned();
        Some(match self.failure.clone()? {
            Failure::Fault(fault) => Error::Receive {
                peer,
                offset: self.stats.bytes_received,
                fault,
            },
            Failure::PeerAborted { offset, reason } => Error::PeerAborted {
                peer,
                offset,
                reason,
            },
            Failure::Aborted { reason } => Error::Aborted { reason },
        })
    }

    fn fail(&mut self, failure: Failure, state: &State) {
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
        self.interrupt(state);
    }

    fn interrupt(&mut self, state: &State) {
        state.interrupted.cancel();
        state.to_control.notify_one();
        self.wake(true, true);
    }

    fn wake(&mut self, sender: bool, receiver: bool) {
        let wakers = [
            if sender { self.send_waker.take() } else { None },
            if receiver {
                self.receive_waker.take()
            } else {
                None
            },
            self.steward_waker.take(),
        ];
        wakers.into_iter().flatten().for_each(Waker::wake);
    }

    /// Takes a message of the peer's, or says which rule it breaks.
    fn receive(&mut self, message: Message, state: &State) -> Result<(), &'static str> {
        match message {
            Message::Ping => {}
            Message::Credit(_) if self.sending == Sending::Absent => return Err(UNASKED_CREDIT),
            Message::Credit(slots) => {
                self.credits.extend(slots);
                self.wake(true, false);
            }
            Message::Fin { bytes, digest } => {
                self.receiving = match self.receiving {
                    Receiving::Open => Receiving::Fin(bytes, digest),
                    Receiving::Stopped => Receiving::Stopped,
                    _ => return Err("a second FIN"),
                };
                self.wake(false, true);
            }
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
                self.interrupt(state);
            }
            Message::Abort { offset, reason } => {
                self.fail(Failure::PeerAborted { offset, reason }, state);
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

const UNASKED_CREDIT: &str = "a credit for a direction that does not exist";
