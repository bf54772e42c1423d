//! What the renewal of a link asks of the stream's state and tells it.

use super::{State, credits::Credits};
use crate::transport::control::message::Message;

impl State {
    /// Forgets every credit, and gives none away until [`resume`](Self::resume): the slots that
    /// they are for are about to go.
    pub(crate) fn pause(&self) {
        self.lock().credits.pause();
    }

    /// Gives credits away again. What has come since the peer paused is for the new slots.
    pub(crate) fn resume(&self) {
        self.lock().credits.resume();
    }

    /// Tells the peer a step of the renewal of the data path.
    pub(crate) fn send_step(&self, step: Result<Vec<u8>, String>) {
        self.lock().outbox.push(Message::Step(step));
        self.to_control.notify_one();
    }

    /// The peer's next step of that.
    pub(crate) fn take_step(&self) -> Option<Result<Vec<u8>, String>> {
        self.lock().steps.pop_front()
    }

    /// Whether a renewal of the data path still has a purpose.
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
    /// Forgets every credit, and gives none away until [`resume`](Self::resume).
    pub(super) fn pause(&mut self) {
        self.slots.clear();
        self.paused = true;
    }

    /// Gives credits away again.
    pub(super) fn resume(&mut self) {
        self.paused = false;
    }
}
