//! The state of one stream, shared by its two halves, its control task and its steward.
//!
//! No I/O happens here and the lock is held for a few instructions only: what a half wants to tell
//! the peer goes into the outbox, what the peer tells comes in through [`State::receive`]. The
//! table of states stands in docs/architecture.md.

mod machine;

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker},
    time::Instant,
};

use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

pub(crate) use machine::Failure;
use machine::{Machine, Receiving, Sending};

use super::message::Message;
use crate::{Direction, Error, Fault, Stats};

/// See the module.
pub(crate) struct State {
    peer: String,
    started: Instant,
    inner: Mutex<Machine>,
    /// Wakes the control task: something is in the outbox, or the end has come.
    pub(crate) to_control: Notify,
    /// Cancelled by a failure or a STOP: whoever waits for something else has to look.
    interrupted: CancellationToken,
    /// Wakes whoever renews the data path: a step of the peer's has come.
    pub(crate) stepped: Notify,
    /// Cancelled when the control task has ended and its connection is closed.
    pub(crate) ended: CancellationToken,
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
        Arc::new(Self {
            peer,
            started: Instant::now(),
            inner: Mutex::new(Machine::new(direction, halves)),
            to_control: Notify::new(),
            interrupted: CancellationToken::new(),
            stepped: Notify::new(),
            ended: CancellationToken::new(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Machine> {
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
        self.lock().credits.take()
    }

    /// Forgets every credit, and gives none away until [`resume`](Self::resume): the slots that
    /// they are for are about to go.
    #[cfg(feature = "rdma")]
    pub(crate) fn pause(&self) {
        self.lock().credits.pause();
    }

    /// Gives credits away again. What has come since the peer paused is for the new slots.
    #[cfg(feature = "rdma")]
    pub(crate) fn resume(&self) {
        self.lock().credits.resume();
    }

    /// Tells the peer a step of the renewal of the data path.
    #[cfg(feature = "rdma")]
    pub(crate) fn step(&self, step: Result<Vec<u8>, String>) {
        self.lock().outbox.push(Message::Step(step));
        self.to_control.notify_one();
    }

    /// The peer's next step of that.
    #[cfg(feature = "rdma")]
    pub(crate) fn take_step(&self) -> Option<Result<Vec<u8>, String>> {
        self.lock().steps.pop_front()
    }

    /// Whether a renewal of the data path still has a purpose.
    #[cfg(feature = "rdma")]
    pub(crate) fn is_open(&self) -> bool {
        let inner = self.lock();
        inner.failure.is_none() && !inner.done()
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
        // The control task wants the lock first of all: woken before it is free, it goes to sleep again.
        drop(inner);
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
        let mut inner = self.lock();
        inner.fail(failure);
        self.settle(inner);
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
            inner.fail(Failure::Aborted { reason });
            self.settle(inner);
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

    /// Wakes both users and the steward.
    #[cfg(feature = "rdma")]
    pub(crate) fn wake_all(&self) {
        let mut inner = self.lock();
        inner.wake(true, true);
        self.settle(inner);
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
        if matches!(message, Message::Step(_)) {
            self.stepped.notify_one();
        }
        if let Err(broken) = inner.receive(message) {
            inner.fail(Failure::Fault(Fault::Protocol(broken)));
        }
        self.settle(inner);
    }

    /// Tells whom it concerns what has just happened under the lock, and after it: who is woken while it is
    /// held waits for it at once.
    fn settle(&self, mut inner: MutexGuard<'_, Machine>) {
        let woken = inner.take_woken();
        let interrupted = inner.interrupted;
        drop(inner);
        woken.for_each(Waker::wake);
        if interrupted && !self.interrupted.is_cancelled() {
            self.interrupted.cancel();
            self.to_control.notify_one();
        }
    }
}

fn register(place: &mut Option<Waker>, cx: &Context<'_>) {
    match place {
        Some(waker) => waker.clone_from(cx.waker()),
        None => *place = Some(cx.waker().clone()),
    }
}
