//! A slot that is being filled: how far it is filled, and how much of that was sent already.

use std::io::IoSlice;

use crate::transport::data::{frame::HEADER_BYTES, path::Slot};

/// A slot that is being filled.
pub(crate) struct FillingSlot<S> {
    pub(in crate::transport::data) slot: S,
    /// The bytes that have been sent already, in small frames.
    sent: usize,
    /// The end of the bytes that hold data.
    filled: usize,
}

impl<S: Slot> FillingSlot<S> {
    pub(in crate::transport::data) fn new(slot: S) -> Self {
        Self {
            slot,
            sent: 0,
            filled: 0,
        }
    }

    /// Records that the first `count` bytes of [`room`](Self::room) hold data.
    pub(crate) fn fill(&mut self, count: usize) {
        self.filled += count;
    }

    /// Returns the free bytes.
    pub(crate) fn room(&mut self) -> &mut [u8] {
        &mut self.slot.bytes_mut()[HEADER_BYTES + self.filled..]
    }

    /// Returns true if no byte is free.
    pub(crate) fn is_full(&self) -> bool {
        HEADER_BYTES + self.filled == self.slot.bytes().len()
    }

    /// Returns the number of payload bytes of a full slot.
    pub(crate) fn capacity(&self) -> usize {
        self.slot.bytes().len() - HEADER_BYTES
    }

    /// Copies as much of `parts` as fits, and returns how many bytes that is.
    pub(crate) fn copy(&mut self, parts: &[IoSlice<'_>]) -> usize {
        let before = self.filled;
        for part in parts {
            let room = self.room();
            let count = room.len().min(part.len());
            room[..count].copy_from_slice(&part[..count]);
            self.fill(count);
        }
        self.filled - before
    }

    /// Returns the number of bytes that hold data.
    pub(in crate::transport::data) fn filled(&self) -> usize {
        self.filled
    }

    /// Returns the bytes that hold data.
    pub(crate) fn data(&self) -> &[u8] {
        self.slot.payload(self.filled)
    }

    /// Records that the first `count` bytes of [`unsent`](Self::unsent) have been sent.
    pub(in crate::transport::data) fn mark_sent(&mut self, count: usize) {
        self.sent += count;
    }

    /// Returns the bytes that have not been sent.
    pub(in crate::transport::data) fn unsent(&self) -> &[u8] {
        &self.data()[self.sent..]
    }

    /// Moves the bytes that have not been sent to the beginning, since a chunk follows its header.
    pub(in crate::transport::data) fn close_gap(&mut self) {
        if self.sent > 0 {
            let unsent = HEADER_BYTES + self.sent..HEADER_BYTES + self.filled;
            self.slot.bytes_mut().copy_within(unsent, HEADER_BYTES);
            self.filled -= std::mem::take(&mut self.sent);
        }
    }

    /// Returns the bytes that hold data, to be changed.
    pub(crate) fn data_mut(&mut self) -> &mut [u8] {
        &mut self.slot.bytes_mut()[HEADER_BYTES..HEADER_BYTES + self.filled]
    }

    /// Drops the data.
    pub(crate) fn clear(&mut self) {
        self.filled = 0;
    }
}
