//! The credits that the peer has granted to this end.

use std::collections::VecDeque;

/// The slots of the peer that this end may write, in the order in which they were granted.
#[derive(Default)]
pub(super) struct Credits {
    pub(super) slots: VecDeque<u32>,
    /// No credit is given out, because the pool of their slots is being replaced.
    pub(super) paused: bool,
    /// The last request for a credit found none.
    starved: bool,
}

impl Credits {
    /// Takes the oldest credit.
    pub(super) fn take(&mut self) -> Option<u32> {
        let slot = if self.paused {
            None
        } else {
            self.slots.pop_front()
        };
        self.starved = slot.is_none();
        slot
    }

    /// Adds credits. Returns true if the sender waits for one.
    pub(super) fn add(&mut self, slots: Vec<u32>) -> bool {
        self.slots.extend(slots);
        self.starved
    }
}
