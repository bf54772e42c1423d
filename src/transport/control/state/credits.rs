//! The credits that the peer has granted to this end.

use std::{collections::VecDeque, mem};

/// The slots of the peer that this end may write, in the order in which they were granted. A slot is in the queue at most
/// once, so the queue is never longer than the pool of the peer, whatever the peer sends.
#[derive(Default)]
pub(super) struct Credits {
    slots: VecDeque<u32>,
    /// By slot of the peer's pool: true while the slot is in the queue.
    pub(super) queued: Vec<bool>,
    /// No credit is given out, because the pool of their slots is being replaced.
    pub(super) paused: bool,
    /// The last request for a credit found none.
    starved: bool,
}

impl Credits {
    /// Drops all credits, and expects those for a pool of `slots` slots.
    pub(super) fn set_pool(&mut self, slots: usize) {
        self.slots.clear();
        self.queued.clear();
        self.queued.resize(slots, false);
    }

    /// Returns the credits that wait, the oldest first.
    #[cfg(test)]
    pub(super) fn waiting(&self) -> impl Iterator<Item = u32> {
        self.slots.iter().copied()
    }

    /// Returns the number of credits that wait.
    pub(super) fn left(&self) -> usize {
        self.slots.len()
    }

    /// Takes the oldest credit.
    pub(super) fn take(&mut self) -> Option<u32> {
        let slot = if self.paused {
            None
        } else {
            self.slots.pop_front()
        };
        self.starved = slot.is_none();
        if let Some(slot) = slot {
            self.queued[slot as usize] = false;
        }
        slot
    }

    /// Adds credits. Returns true if the sender waits for one.
    ///
    /// # Errors
    ///
    /// The rule that the peer broke. The credits before the wrong one are added.
    pub(super) fn add(&mut self, slots: Vec<u32>) -> Result<bool, &'static str> {
        for slot in slots {
            let queued = self.queued.get_mut(slot as usize).ok_or(UNKNOWN_SLOT)?;
            if mem::replace(queued, true) {
                return Err(GRANTED_TWICE);
            }
            self.slots.push_back(slot);
        }
        Ok(self.starved)
    }
}

const UNKNOWN_SLOT: &str = "a credit for a slot that its pool does not have";
const GRANTED_TWICE: &str = "a credit for a slot that is granted already";
