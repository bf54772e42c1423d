//! A verified chunk that waits for its reader.

use crate::transport::data::{frame::HEADER_BYTES, path::Slot};

/// A verified chunk, or what is left of it.
pub(crate) struct Readable<S> {
    pub(crate) slot: S,
    next: usize,
    end: usize,
}

impl<S: Slot> Readable<S> {
    /// A chunk in `slot`, whose payload is `length` bytes.
    pub(crate) fn new(slot: S, length: usize) -> Self {
        let (next, end) = (HEADER_BYTES, HEADER_BYTES + length);
        Self { slot, next, end }
    }

    /// Removes the first `count` bytes, which the reader has taken. Returns true if none is left.
    pub(crate) fn take(&mut self, count: usize) -> bool {
        self.next += count;
        self.next >= self.end
    }

    /// Returns the bytes that the reader has not taken.
    pub(crate) fn rest(&self) -> &[u8] {
        &self.slot.bytes()[self.next..self.end]
    }

    /// Returns the slot, for its pool.
    pub(crate) fn into_slot(self) -> S {
        self.slot
    }

    /// Appends `payload` and returns true if there is room for it. So many small chunks do not use up the pool: of
    /// two neighbours that wait for the reader, at least half is payload.
    pub(crate) fn join(&mut self, payload: &[u8]) -> bool {
        let room = self.slot.bytes_mut()[self.end..].get_mut(..payload.len());
        let Some(place) = room else { return false };
        place.copy_from_slice(payload);
        self.end += payload.len();
        true
    }
}
