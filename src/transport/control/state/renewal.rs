//! What the renewal of a link asks of the stream's state and tells it.

use super::{State, credits::Credits};
use crate::transport::control::message::Message;

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

    /// Wakes both users and the steward.
    pub(crate) fn wake_all(&self) {
        let mut inner = self.lock();
        inner.wake(true, true);
        self.finish_update(inner);
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
