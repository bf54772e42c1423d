//! The state of one stream, shared by its two halves, its control task and its steward.
//!
//! No I/O happens here and the lock is held for a few instructions only: what a half wants to tell
//! the peer goes into the outbox, what the peer tells comes in through [`State::receive`]. The
//! table of states stands in docs/architecture.md.

mod credits;
mod machine;
mod receiving;
#[cfg(feature = "rdma")]
mod renewal;
mod sending;

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Waker},
    time::Instant,
};

use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

pub(crate) use machine::Failure;
use machine::{Sending, StreamMachine};

use super::message::Message;
use crate::{Direction, Error, Fault, Stats};

/// See the module.
pub(crate) struct State {
    peer: String,
    started: Instant,
    inner: Mutex<StreamMachine>,
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
pub(crate) struct Outgoing {
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
            inner: Mutex::new(StreamMachine::new(direction, halves)),
            to_control: Notify::new(),
            interrupted: CancellationToken::new(),
            stepped: Notify::new(),
            ended: CancellationToken::new(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, StreamMachine> {
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

    /// Records the first failure, tells the peer unless the peer knows, and wakes everybody.
    pub(crate) fn fail(&self, failure: Failure) {
        let mut inner = self.lock();
        inner.fail(failure);
        self.finish_update(inner);
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
            self.finish_update(inner);
        } else if inner.held == 0 {
            if inner.failure.is_none() {
                inner.outbox.push(Message::Bye);
            }
            self.to_control.notify_one();
        }
    }

    /// What is to be sent now, and whether it is the last.
    pub(crate) fn outgoing(&self) -> Outgoing {
        let mut inner = self.lock();
        let last = inner.held == 0 || inner.failure.is_some();
        Outgoing {
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
        if matches!(message, Message::Step(_)) {
            self.stepped.notify_one();
        }
        if let Err(broken) = inner.receive(message) {
            inner.fail(Failure::Fault(Fault::Protocol(broken)));
        }
        self.finish_update(inner);
    }

    /// Tells whom it concerns what has just happened under the lock, and after it: who is woken while it is
    /// held waits for it at once.
    fn finish_update(&self, mut inner: MutexGuard<'_, StreamMachine>) {
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
