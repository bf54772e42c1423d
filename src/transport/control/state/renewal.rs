//! What a link over RDMA and its renewal ask of the stream's state and tell it.

use std::sync::atomic::Ordering::Relaxed;

use super::{Credits, State};
use crate::transport::control::{data_watch::DataProgress, message::Message};

impl State {
    /// Drops all credits, and stops [`take_credit`](Self::take_credit) until [`resume`](Self::resume): their slots are
    /// about to be replaced.
    pub(crate) fn pause(&self) {
        self.lock().credits.pause();
    }

    /// Lets credits be taken again. Those that arrived since [`pause`](Self::pause) are for the new slots.
    pub(crate) fn resume(&self) {
        self.lock().credits.resume();
    }

    /// Sends a step of the renewal to the peer.
    pub(crate) fn send_step(&self, step: Result<Vec<u8>, String>) {
        self.lock().outbox.push(Message::Step(step));
        self.to_control.notify_one();
    }

    /// Takes the oldest step of the peer that has arrived.
    pub(crate) fn take_step(&self) -> Option<Result<Vec<u8>, String>> {
        self.lock().steps.pop_front()
    }

    /// Returns true while the stream still has bytes to move.
    pub(crate) fn is_open(&self) -> bool {
        let inner = self.lock();
        inner.failure.is_none() && !inner.done()
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

impl DataProgress {
    /// Records that at least `bytes` in all have been sent: of two ways to the peer one may be ahead.
    pub(crate) fn raise_sent(&self, bytes: u64) {
        self.sent.fetch_max(bytes, Relaxed);
    }

    /// Returns the number of bytes that have been sent.
    pub(crate) fn sent(&self) -> u64 {
        self.sent.load(Relaxed)
    }

    /// Returns the number of bytes that have been received.
    pub(crate) fn received(&self) -> u64 {
        self.received.load(Relaxed)
    }

    /// Returns the number of bytes that have arrived at this end and, as far as is known, at the peer.
    pub(crate) fn arrived_at_both(&self) -> u64 {
        let there = self.peer_received.load(Relaxed);
        self.received().saturating_add(there)
    }
}

impl Credits {
    /// Drops all credits, and gives none out until [`resume`](Self::resume).
    pub(super) fn pause(&mut self) {
        self.set_pool(self.queued.len());
        self.paused = true;
    }

    /// Gives credits out again.
    pub(super) fn resume(&mut self) {
        self.paused = false;
    }
}
