//! The state of one stream, shared by its two halves, its control task and its steward.
//!
//! There is no I/O here, and the lock is held for a few instructions only. Messages to the peer go into an outbox,
//! which the control task empties; messages of the peer arrive through [`State::receive`]. What a message does to the
//! states of both directions is in [`machine`], and what the endpoint does after its user has dropped the halves in
//! [`after_drop`]. The table of states is in docs/wire-format.md.

mod after_drop;
mod connections;
mod machine;
mod rail;

#[cfg(feature = "rdma")]
use std::sync::atomic::Ordering;
use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError, atomic::AtomicUsize},
    task::{Context, Poll, Waker},
    time::Instant,
};

use machine::StreamMachine;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use self::machine::{Receiving, Sending};
use super::{data_watch::DataProgress, message::Message};
use crate::{
    Direction, Error, Fault, Stats, error::WRITTEN_AFTER_SHUTDOWN,
    transport::control::seal::joined_digest,
};

pub(crate) use connections::network_of;
pub(crate) use machine::StreamFault;
pub(crate) use rail::{RailState, WrongEnd};

/// The state of one stream.
pub(crate) struct State {
    peer: String,
    started: Instant,
    inner: Mutex<StreamMachine>,
    /// How far the data path has got, which its two sides store without the lock.
    pub(crate) data: Arc<DataProgress>,
    /// The number of chunks that the user has handed to other rails than the first, and that are not posted.
    queued: AtomicUsize,
    /// Wakes the control task: the outbox has messages, or the stream has ended.
    pub(crate) to_control: Notify,
    /// Cancelled by a failure or a STOP.
    interrupted: CancellationToken,
    /// By rail: wakes the renewal of the link, because a step of the peer has arrived.
    steps: Vec<Notify>,
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
    /// Returns the state of a stream of one rail that has just been connected. Its user holds `halves` halves.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn new(peer: String, direction: Direction, halves: u8) -> Arc<Self> {
        Self::with_rails(peer, direction, halves, 1)
    }

    /// Returns the state of a stream of so many rails that has just been connected. Its user holds `halves` halves.
    pub(crate) fn with_rails(
        peer: String,
        direction: Direction,
        halves: u8,
        rails: usize,
    ) -> Arc<Self> {
        Arc::new(Self {
            peer,
            started: Instant::now(),
            inner: Mutex::new(StreamMachine::new(direction, halves, rails)),
            data: Arc::default(),
            queued: AtomicUsize::new(0),
            to_control: Notify::new(),
            interrupted: CancellationToken::new(),
            steps: (0..rails.max(1)).map(|_| Notify::new()).collect(),
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

    /// Returns what ended the stream before its time. A STOP is no failure for a user who has left, and whose bytes
    /// were taken.
    pub(crate) fn end_error(&self) -> Option<Error> {
        self.lock().end_error(&self.peer)
    }

    /// Records the first failure, notifies the peer of it unless the peer itself reported it, and wakes both halves.
    pub(crate) fn fail(&self, fault: StreamFault) {
        let mut inner = self.lock();
        inner.fail(fault);
        self.finish_update(inner);
        // Also after a STOP, which has interrupted the sending half before.
        self.to_control.notify_one();
    }

    /// Records that the data connection broke. It is a failure only after a moment in which the control connection may
    /// tell why: a peer that dies closes both connections, and one that aborts sends the reason first.
    pub(crate) fn suspect(&self, fault: Fault) {
        self.lock().suspect(fault);
        self.to_control.notify_one();
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
        let last = inner.dropped.has_said_bye() || inner.fault.is_some();
        for rail in &mut inner.rails {
            rail.unsent_credits = 0;
        }
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
            inner.fail(StreamFault::Found(Fault::ControlTask));
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
            self.lock().fault,
            Some(StreamFault::Found(Fault::PeerSilent(_)))
        )
    }

    /// Returns true if the stream has failed.
    pub(crate) fn failed(&self) -> bool {
        self.lock().fault.is_some()
    }

    /// Handles a message of the peer.
    pub(crate) fn receive(&self, message: Message) {
        let mut inner = self.lock();
        if inner.fault.is_some() {
            return;
        }
        let stepped = match message {
            Message::Step { rail, .. } => self.steps.get(usize::from(rail)),
            _ => None,
        };
        if let Message::Ping { sent, received, .. } = message {
            self.data.set_peer(sent, received);
        }
        if let Err(broken) = inner.receive(message) {
            inner.fail(StreamFault::Found(Fault::Protocol(broken)));
        }
        if let Some(stepped) = stepped {
            stepped.notify_one();
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

impl State {
    /// Returns an error unless more bytes may be written.
    /// Fails after a failure, a STOP, or misuse: written after `shutdown`, or in a stream that only receives.
    pub(crate) fn writable(&self) -> Result<(), Error> {
        let inner = self.lock();
        if let Some(error) = inner.send_error(&self.peer) {
            return Err(error);
        }
        match inner.sending {
            Sending::Open if !inner.fin_due => Ok(()),
            Sending::Absent => Err(Error::Misuse("this stream only receives")),
            _ => Err(Error::Misuse(WRITTEN_AFTER_SHUTDOWN)),
        }
    }

    /// Records that FIN follows the last byte. It is sent with the last byte: by the user's `shutdown`, or by the
    /// steward if that was cancelled.
    pub(crate) fn begin_shutdown(&self) {
        self.lock().fin_due = true;
    }

    /// Returns true if FIN follows the last byte, and has not been sent.
    pub(crate) fn is_fin_due(&self) -> bool {
        let inner = self.lock();
        inner.fin_due && inner.sending == Sending::Open
    }

    /// Returns the number of bytes that the peer's reader had taken when it stopped, if it has stopped.
    pub(crate) fn stopped_after(&self) -> Option<u64> {
        match self.lock().sending {
            Sending::Stopped(offset) => Some(offset),
            _ => None,
        }
    }

    /// Sends FIN, once: every byte has been given to the data path.
    pub(crate) fn finish_sending(&self) {
        let mut inner = self.lock();
        if inner.sending == Sending::Open {
            inner.sending = Sending::Fin;
            inner.dropped.all_was_sent = true;
            let bytes = inner.stats.bytes_sent;
            let digest = joined_digest(inner.rails.iter().map(|rail| rail.sent_digest));
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
        inner.rails[0].wait_to_send(cx);
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
        inner.rails[0].wait_to_send(cx);
        Poll::Pending
    }
}

impl State {
    /// Returns true while bytes may arrive: not after the last byte that FIN announced, and not after STOP.
    pub(crate) fn receives(&self) -> bool {
        matches!(self.lock().receiving, Receiving::Open | Receiving::Fin(..))
    }

    /// Returns true while the end of the direction is not known, and the stream has not failed.
    pub(crate) fn expects_more(&self) -> bool {
        let inner = self.lock();
        inner.receiving == Receiving::Open && inner.fault.is_none()
    }

    /// Records that the reader has taken every byte that arrived, `taken` in all. Returns true at the end of the stream,
    /// and false while another rail has verified bytes that the reader does not have.
    ///
    /// Must be called with the frame receiver locked, after the caller has found no chunk in it. Otherwise the last
    /// chunk may have arrived since, and the reader would get the end in its place.
    /// The error is the failure that came instead of the end.
    pub(crate) fn at_end(&self, taken: u64) -> Result<bool, Error> {
        let mut inner = self.lock();
        match inner.receiving {
            Receiving::Complete if taken < inner.stats.bytes_received => return Ok(false),
            Receiving::Complete => inner.receiving = Receiving::AtEnd,
            Receiving::AtEnd | Receiving::Confirmed | Receiving::Absent | Receiving::Stopped => {}
            Receiving::Open | Receiving::Fin(..) => {
                return inner.receive_error(&self.peer).map_or(Ok(false), Err);
            }
        }
        Ok(true)
    }

    /// Confirms to the peer that the sink has taken every byte.
    /// Fails when the end has not been read yet, or the stream has failed.
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

    /// Sends STOP: the reader needs no more after `offset` bytes, and this is no failure.
    pub(crate) fn stop(&self, offset: u64) {
        if self.lock().stop(offset) {
            self.to_control.notify_one();
        }
    }
}

#[cfg(feature = "rdma")]
impl State {
    /// Returns true while the stream still has bytes to move.
    pub(crate) fn is_open(&self) -> bool {
        let inner = self.lock();
        inner.fault.is_none() && !inner.done()
    }

    /// Counts completions of the data path that a timer found.
    pub(crate) fn count_late_completions(&self, count: u64) {
        if count > 0 {
            self.lock().stats.late_completions += count;
        }
    }

    /// Wakes both users and the steward.
    pub(crate) fn wake_all(&self) {
        let mut inner = self.lock();
        inner.wake(true, true);
        self.finish_update(inner);
    }
}

#[cfg(feature = "rdma")]
impl DataProgress {
    pub(crate) fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    pub(crate) fn received(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }

    /// Returns the number of bytes that have arrived at this end and, as far as is known, at the peer.
    pub(crate) fn arrived_at_both(&self) -> u64 {
        let there = self.peer_received.load(Ordering::Relaxed);
        self.received().saturating_add(there)
    }
}
