//! What the sending half of a stream asks of the stream's state and tells it.

use std::task::{Context, Poll};

use super::{State, machine::Sending, register};
use crate::{Error, Fault, error::WRITTEN_AFTER_SHUTDOWN, transport::control::message::Message};

impl State {
    /// Returns an error unless more bytes may be written.
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
            Sending::Open if !inner.fin_due => Ok(()),
            Sending::Absent => Err(Error::Misuse("this stream only receives")),
            _ => Err(Error::Misuse(WRITTEN_AFTER_SHUTDOWN)),
        }
    }

    /// Drops all credits, and expects credits for a pool of `slots` slots from now on. Call this before the peer can send
    /// a credit for that pool.
    pub(crate) fn set_peer_slots(&self, slots: usize) {
        self.lock().credits.set_pool(slots);
    }

    /// Takes the oldest credit: a slot of the peer that may be written.
    pub(crate) fn take_credit(&self) -> Option<u32> {
        self.lock().credits.take()
    }

    /// Returns the number of credits that are left.
    pub(crate) fn credits_left(&self) -> usize {
        self.lock().credits.left()
    }

    /// Counts one chunk of `bytes` that was given to the data path.
    pub(crate) fn count_sent(&self, bytes: u64) {
        let stats = &mut self.lock().stats;
        stats.bytes_sent += bytes;
        stats.chunks_sent += 1;
    }

    /// Registers the sender's waker: for credits, acknowledgements and failures.
    pub(crate) fn wait_to_send(&self, cx: &Context<'_>) {
        register(&mut self.lock().send_waker, cx);
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
    pub(crate) fn finish_sending(&self, bytes: u64, digest: u64) {
        let mut inner = self.lock();
        if inner.sending == Sending::Open {
            inner.sending = Sending::Fin;
            inner.dropped.all_was_sent = true;
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
}
