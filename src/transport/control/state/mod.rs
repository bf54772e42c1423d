//! The state of one stream, shared by its two halves, its control task and its steward.
//!
//! There is no I/O here, and the lock is held for a few instructions only. Messages to the peer go into an outbox, which
//! the control task empties; messages of the peer arrive through [`State::receive`]. The table of states is in
//! docs/wire-format.md.
//!
//! | file | what it has |
//! |---|---|
//! | `sending`, `receiving` | what each half asks and tells |
//! | `after_drop` | what the endpoint does after the user has dropped the halves; `dropped_halves` the record of it |
//! | `renewal` | what the renewal of a link asks and tells |
//! | `machine` | the states of both directions, and what each message does to them |
//! | `credits` | the slots of the peer that may be written |

mod after_drop;
mod credits;
mod dropped_halves;
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

use super::{data_progress::DataProgress, message::Message};
use crate::{Direction, Error, Fault, Stats};

/// The state of one stream.
pub(crate) struct State {
    peer: String,
    started: Instant,
    inner: Mutex<StreamMachine>,
    /// How far the data path has got, which its two sides store without the lock.
    pub(crate) data: Arc<DataProgress>,
    /// Wakes the control task: the outbox has messages, or the stream has ended.
    pub(crate) to_control: Notify,
    /// Cancelled by a failure or a STOP.
    interrupted: CancellationToken,
    /// Wakes the renewal of the link: a step of the peer has arrived.
    pub(crate) stepped: Notify,
    /// Cancelled when the control task has ended and its connection is closed.
    pub(crate) ended: CancellationToken,
}

/// The messages that the control task sends next.
pub(crate) struct Outgoing {
    /// The messages, in order.
    pub(crate) messages: Vec<Message>,
    /// No message follows: the connection is closed after these.
    pub(crate) last: bool,
}

impl State {
    /// Returns the state of a stream that has just been connected. Its user holds `halves` halves.
    pub(crate) fn new(peer: String, direction: Direction, halves: u8) -> Arc<Self> {
        Arc::new(Self {
            peer,
            started: Instant::now(),
            inner: Mutex::new(StreamMachine::new(direction, halves)),
            data: Arc::default(),
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

    /// Keeps every other thread from using the state while the result lives.
    #[cfg(test)]
    pub(crate) fn hold(&self) -> impl Sized + '_ {
        self.lock()
    }

    /// Returns the name of the peer, for messages to the user.
    pub(crate) fn peer(&self) -> &str {
        &self.peer
    }

    /// Returns the counts so far.
    pub(crate) fn stats(&self) -> Stats {
        Stats {
            elapsed: self.started.elapsed(),
            ..self.lock().stats
        }
    }

    /// Returns true if this end sends.
    pub(crate) fn sends(&self) -> bool {
        self.lock().sending != Sending::Absent
    }

    /// Waits for a failure or a STOP.
    pub(crate) async fn interrupted(&self) {
        self.interrupted.cancelled().await;
    }

    /// Returns what ended the sending direction: a failure, or the peer's STOP.
    pub(crate) fn send_error(&self) -> Option<Error> {
        self.lock().send_error(&self.peer)
    }

    /// Returns the failure that ended the receiving direction.
    pub(crate) fn receive_error(&self) -> Option<Error> {
        self.lock().receive_error(&self.peer)
    }

    /// Returns what ended the stream before its time. A STOP is no failure for a user who has left, and whose bytes were taken.
    pub(crate) fn end_error(&self) -> Option<Error> {
        self.lock().end_error(&self.peer)
    }

    /// Records the first failure, notifies the peer of it unless the peer itself reported it, and wakes both halves.
    pub(crate) fn fail(&self, failure: Failure) {
        let mut inner = self.lock();
        inner.fail(failure);
        self.finish_update(inner);
        // Also after a STOP, which has interrupted the sending half before.
        self.to_control.notify_one();
    }

    /// Records that the data connection broke. It is a failure only after a moment in which the control connection may
    /// tell why: a peer that dies closes both connections, and one that aborts sends the reason first.
    pub(crate) fn suspect(&self, fault: Fault) {
        let mut inner = self.lock();
        if inner.suspicion.is_none() && inner.failure.is_none() && !inner.done() {
            inner.suspicion = Some((fault, Instant::now()));
            self.to_control.notify_one();
        }
    }

    /// Returns the fault of the data connection and the time when it was found, while no cause is known.
    pub(crate) fn suspicion(&self) -> Option<(Fault, Instant)> {
        let inner = self.lock();
        if inner.done() {
            None
        } else {
            inner.suspicion.clone()
        }
    }

    /// Takes the messages out of the outbox.
    pub(crate) fn outgoing(&self) -> Outgoing {
        let mut inner = self.lock();
        let last = inner.dropped.has_said_bye() || inner.failure.is_some();
        inner.unsent_credits = 0;
        Outgoing {
            messages: std::mem::take(&mut inner.outbox),
            last,
        }
    }

    /// Records that the control task has ended, however it did. Without a goodbye of either end or a failure, that is a
    /// failure: no message can be sent or received any more.
    pub(crate) fn control_task_ended(&self) {
        let mut inner = self.lock();
        if inner.dropped.is_held() && !inner.peer_left {
            inner.fail(Failure::Fault(Fault::ControlTask));
        }
        self.trace_end(&inner);
        self.finish_update(inner);
        self.ended.cancel();
    }

    /// Reports the end of the stream, with its cause.
    fn trace_end(&self, inner: &StreamMachine) {
        let Stats {
            bytes_sent,
            bytes_received,
            ..
        } = inner.stats;
        let elapsed = self.started.elapsed();
        if let Some(error) = inner.receive_error(&self.peer) {
            tracing::debug!(%error, bytes_sent, bytes_received, ?elapsed, "ended with an error");
        } else {
            tracing::debug!(bytes_sent, bytes_received, ?elapsed, "ended");
        }
    }

    /// Returns true if the peer has sent Bye: the end of its connection is no failure then.
    pub(crate) fn peer_left(&self) -> bool {
        self.lock().peer_left
    }

    /// Returns true if the stream failed because the peer was silent for too long.
    pub(crate) fn is_peer_silent(&self) -> bool {
        matches!(
            self.lock().failure,
            Some(Failure::Fault(Fault::PeerSilent(_)))
        )
    }

    /// Returns true if the stream has failed.
    pub(crate) fn failed(&self) -> bool {
        self.lock().failure.is_some()
    }

    /// Registers the steward's waker, which is called whenever a half is woken.
    pub(crate) fn wait_as_steward(&self, cx: &Context<'_>) {
        register(&mut self.lock().steward_waker, cx);
    }

    /// Wakes the task that waits for the sending half.
    pub(crate) fn wake_sender(&self) {
        let waker = self.lock().send_waker.take();
        waker.into_iter().for_each(Waker::wake);
    }

    /// Wakes the task that waits for the receiving half.
    pub(crate) fn wake_receiver(&self) {
        let waker = self.lock().receive_waker.take();
        waker.into_iter().for_each(Waker::wake);
    }

    /// Handles a message of the peer.
    pub(crate) fn receive(&self, message: Message) {
        let mut inner = self.lock();
        if inner.failure.is_some() {
            return;
        }
        if matches!(message, Message::Step(_)) {
            self.stepped.notify_one();
        }
        if let Message::Ping { sent, received } = message {
            self.data.set_peer(sent, received);
        }
        if let Err(broken) = inner.receive(message) {
            inner.fail(Failure::Fault(Fault::Protocol(broken)));
        }
        if inner.leave_if_done() {
            self.to_control.notify_one();
        }
        self.finish_update(inner);
    }

    /// Releases the lock, and then calls the wakers: a task that is woken under the lock would wait for it at once.
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
