//! The credits that the peer has granted to this end.

use std::collections::VecDeque;

/// The peer's slots that this end may write.
#[derive(Default)]
pub(super) struct Credits {
    pub(super) slots: VecDeque<u32>,
    /// They are not to be used: the pool that they are for is being replaced.
    pub(super) paused: bool,
    /// One was asked for and there was none.
    starved: bool,
}

impl Credits {
    /// A slot of the peer's that may be written.
    pub(super) fn take(&mut self) -> Option<u32> {
        let slot = if self.paused {
            None
        } else {
            self.slots.pop_front()
        };
        self.starved = slot.is_none();
        slot
    }

    /// More of them. Whether the sender waits for one: otherwise it is busy, or waits for something else.
    pub(super) fn add(&mut self, slots: Vec<u32>) -> bool {
        self.slots.extend(slots);
        self.starved
    }
}
