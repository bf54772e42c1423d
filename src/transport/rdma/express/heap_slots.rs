//! Memory for frames that have arrived: a frame is copied out of its receive, which is posted again at once.

use super::header::EXPRESS_PAYLOAD_BYTES;
use crate::transport::{data::frame::HEADER_BYTES, rdma::pool::RdmaSlot};

/// The bytes of one slot: room for two of the largest frames, or for many small ones that wait for a reader together.
const SLOT_BYTES: usize = HEADER_BYTES + 2 * EXPRESS_PAYLOAD_BYTES;

/// Slots that are used again. There are never more than frames that were not consumed, so never more than a window.
pub(super) struct HeapSlots {
    spare: Vec<Box<[u8]>>,
    generation: u32,
}

impl HeapSlots {
    /// Slots for the lane of this generation.
    pub(super) fn new(generation: u32) -> Self {
        Self {
            spare: Vec::new(),
            generation,
        }
    }

    /// Takes a slot.
    pub(super) fn take(&mut self) -> RdmaSlot {
        let fresh = || vec![0; SLOT_BYTES].into_boxed_slice();
        let bytes = self.spare.pop().unwrap_or_else(fresh);
        RdmaSlot::in_heap(self.generation, bytes)
    }

    /// Takes a slot back.
    pub(super) fn give_back(&mut self, slot: RdmaSlot) {
        self.spare.extend(slot.into_heap());
    }
}
