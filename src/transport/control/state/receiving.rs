//! What the receiving half of a stream asks of the stream's state and tells it.

use std::task::Context;

use super::{State, machine::Receiving, register};
use crate::{Error, transport::control::message::Message};

impl State {
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
}
