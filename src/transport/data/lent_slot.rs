//! A slot of the sending pool in the hands of the user, over one kind of data path.

use std::sync::{Arc, Weak};

use super::{
    path::{DataPath, SendPath},
    send_lane::Filling,
    shared::Shared,
};

/// A slot of the sending pool of one kind of data path, in the hands of the user.
pub(crate) struct LentSlot<D: DataPath> {
    /// Always there until it is sealed or dropped.
    filling: Option<FillingOf<D>>,
    /// Gone with the stream: the slot is nobody's then but the user's.
    shared: Weak<Shared<D>>,
}

type FillingOf<D> = Filling<<<D as DataPath>::Send as SendPath>::Slot>;

impl<D: DataPath> LentSlot<D> {
    /// A slot that was lent by the sending lane of `shared`.
    pub(crate) fn new(filling: FillingOf<D>, shared: &Arc<Shared<D>>) -> Self {
        Self {
            filling: Some(filling),
            shared: Arc::downgrade(shared),
        }
    }

    /// The slot, if `shared` has lent it; otherwise it goes back to where it came from.
    pub(crate) fn into_filling(mut self, shared: &Arc<Shared<D>>) -> Option<FillingOf<D>> {
        let is_ours = std::ptr::eq(self.shared.as_ptr(), Arc::as_ptr(shared));
        is_ours.then(|| self.filling.take()).flatten()
    }

    pub(crate) fn filling(&self) -> &FillingOf<D> {
        self.filling.as_ref().expect(HELD)
    }

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
