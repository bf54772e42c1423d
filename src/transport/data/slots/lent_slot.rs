//! A slot of the sending pool that the user holds, over one kind of data path.

use std::sync::{Arc, Weak};

use crate::transport::data::{
    path::{DataPath, SendPath},
    shared::Shared,
    slots::filling_slot::FillingSlot,
};

/// A slot of the sending pool that the user holds. Dropping it returns the slot to its pool.
pub(crate) struct LentSlot<D: DataPath> {
    /// `None` only after the slot was sealed or dropped.
    filling: Option<FillingOf<D>>,
    /// The stream that lent the slot. The slot outlives it.
    shared: Weak<Shared<D>>,
}

type FillingOf<D> = FillingSlot<<<D as DataPath>::Send as SendPath>::Slot>;

impl<D: DataPath> LentSlot<D> {
    /// Wraps a slot that the send lane of `shared` has lent.
    pub(crate) fn new(filling: FillingOf<D>, shared: &Arc<Shared<D>>) -> Self {
        Self {
            filling: Some(filling),
            shared: Arc::downgrade(shared),
        }
    }

    /// Returns the slot if `shared` has lent it. Otherwise the slot goes back to the stream that lent it.
    pub(crate) fn into_filling(mut self, shared: &Arc<Shared<D>>) -> Option<FillingOf<D>> {
        let is_ours = std::ptr::eq(self.shared.as_ptr(), Arc::as_ptr(shared));
        is_ours.then(|| self.filling.take()).flatten()
    }

    /// Returns the slot.
    pub(crate) fn filling(&self) -> &FillingOf<D> {
        self.filling.as_ref().expect(HELD)
    }

    /// Returns the slot, to be filled.
    pub(crate) fn filling_mut(&mut self) -> &mut FillingOf<D> {
        self.filling.as_mut().expect(HELD)
    }
}

const HELD: &str = "a buffer has its slot until it is sealed or dropped";

impl<D: DataPath> Drop for LentSlot<D> {
    fn drop(&mut self) {
        let (Some(filling), Some(shared)) = (self.filling.take(), self.shared.upgrade()) else {
            return;
        };
        if let Some(send_lane) = &shared.send_lane {
            send_lane.lock().take_back(filling);
        }
        shared.state.wake_sender();
    }
}
