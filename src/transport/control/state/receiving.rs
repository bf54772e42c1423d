//! What the receiving half of a stream asks of the stream's state and tells it.

use std::task::Context;

use super::{State, machine::Receiving, register};
use crate::{Error, Fault, transport::control::message::Message};

impl State {
    /// Returns the byte count and the digest of a FIN that has arrived before its last bytes.
    pub(crate) fn announced_end(&self) -> Option<(u64, u64)> {
        match self.lock().receiving {
            Receiving::Fin(bytes, digest) => Some((bytes, digest)),
            _ => None,
        }
    }

    /// Returns true while bytes may arrive: not after the last byte that FIN announced, and not after STOP.
    pub(crate) fn receives(&self) -> bool {
        matches!(self.lock().receiving, Receiving::Open | Receiving::Fin(..))
    }

    /// Returns true while the end of the direction is not known, and the stream has not failed.
    pub(crate) fn expects_more(&self) -> bool {
        let inner = self.lock();
        inner.receiving == Receiving::Open && inner.failure.is_none()
    }

    /// Counts one chunk of `bytes` that arrived and was verified.
    pub(crate) fn count_received(&self, bytes: u64) {
        let mut inner = self.lock();
        inner.stats.bytes_received += bytes;
        inner.stats.chunks_received += 1;
        if inner.stop_after_excess() {
            self.to_control.notify_one();
        }
    }

    /// Grants slots to the peer, which may write them. Takes them out of `slots`. This end's pool has `depth` slots.
    ///
    /// # Errors
    ///
    /// [`Fault::Protocol`] if more than `depth` credits would wait in the outbox. So a Credit always fits into one
    /// message, although a connection that the peer does not read keeps it here.
    pub(crate) fn grant(&self, slots: &mut Vec<u32>, depth: usize) -> Result<(), Fault> {
        let mut inner = self.lock();
        if inner.unsent_credits + slots.len() > depth {
            slots.clear();
            return Err(Fault::Protocol(UNGRANTED_CHUNKS));
        }
        inner.unsent_credits += slots.len();
        if let Some(Message::Credit(granted)) = inner.outbox.last_mut() {
            granted.append(slots);
        } else {
            inner.outbox.push(Message::Credit(std::mem::take(slots)));
        }
        // The control task takes the lock first: woken before the lock is free, it would wait again.
        drop(inner);
        self.to_control.notify_one();
        Ok(())
    }

    /// Acknowledges the FIN: every byte has arrived and is verified.
    pub(crate) fn complete(&self) {
        let mut inner = self.lock();
        // The reader may have stopped since the FIN was looked at; the peer takes no
        // acknowledgement after that.
        if matches!(inner.receiving, Receiving::Fin(..)) {
            inner.receiving = Receiving::Complete;
            inner.outbox.push(Message::FinAck);
            inner.leave_if_done();
            self.to_control.notify_one();
        }
    }

    /// Records that the reader has taken every byte that arrived. Returns true at the end of the stream.
    ///
    /// Must be called with the receive lane locked, after the caller has found no chunk in it. Otherwise the last chunk may have
    /// arrived since, and the reader would get the end in its place.
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

    /// Confirms to the peer that the sink has taken every byte.
    ///
    /// # Errors
    ///
    /// When the end has not been read yet, or the stream has failed.
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

/// A slot is granted once, until its chunk has arrived. So credits for more slots than there are mean that a chunk arrived
/// for a credit that was not sent.
const UNGRANTED_CHUNKS: &str = "chunks for slots whose credits were not sent yet";
