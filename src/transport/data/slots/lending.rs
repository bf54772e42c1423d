//! Received chunks that the user keeps, and their return to the pool.
//!
//! A lent chunk keeps its slot, forever if the user wants. So of `depth` slots at most `depth - 2` are lent. The other
//! two circulate between sender and reader, one being filled while the other is read; a chunk in one of these is
//! copied when the user wants to keep it. So the stream never waits for a lent chunk. A chunk of the express lane is always
//! copied: its memory is needed for the next one.
//!
//! A lent chunk may be dropped on any thread, also one without a runtime, while returning a slot to its pool may post a
//! work request. So the drop only puts the chunk on a list. The steward returns it to the pool, or the reader if it
//! comes first.
//!
//! Chunks of up to a page are always copied: a slot of 2 MiB is too large to keep for so few bytes. If the stream is
//! gone, so is the list: the slot is freed where it is dropped, with its memory region, and no queue pair is left that
//! could write to it. Across a renewal a lent slot stays pinned beside the new pool, and as many slots of the new pool
//! stay empty: both pools together never lend more than `depth - 2`.

use std::{
    mem,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
};

use bytes::Bytes;
use futures::task::AtomicWaker;

use super::readable::Readable;
use crate::transport::data::path::{NO_SLOT, Slot};

/// The number of slots that are never lent.
const SLOTS_NEVER_LENT: usize = 2;

/// The payload up to which a chunk is copied instead of lent, in bytes: a page. To copy it takes less time than to return
/// a slot, and a slot is much memory for a few bytes.
const COPIED_BYTES: usize = 4096;

/// Lends the chunks of one receive pool.
pub(crate) struct ChunkLender<S> {
    returns: Arc<ReturnedChunks<S>>,
    depth: usize,
    lent: usize,
}

/// The list of the chunks that were dropped and are not in the pool yet.
pub(crate) struct ReturnedChunks<S> {
    chunks: Mutex<Vec<Readable<S>>>,
    /// Wakes the steward when the list has chunks.
    pub(crate) waker: AtomicWaker,
}

/// A chunk that the user keeps, as the owner of [`Bytes`].
struct LentChunk<S: Slot> {
    /// `None` only while it is dropped.
    chunk: Option<Readable<S>>,
    /// The list of the stream, which the slot may outlive.
    returns: Weak<ReturnedChunks<S>>,
}

impl<S: Slot> ChunkLender<S> {
    /// Lends the chunks of a pool of `depth` slots.
    pub(crate) fn new(depth: u32) -> Self {
        let returns = ReturnedChunks {
            chunks: Mutex::new(Vec::new()),
            waker: AtomicWaker::new(),
        };
        Self {
            returns: Arc::new(returns),
            depth: depth as usize,
            lent: 0,
        }
    }

    /// Returns the list of dropped chunks.
    pub(crate) fn returns(&self) -> Arc<ReturnedChunks<S>> {
        Arc::clone(&self.returns)
    }

    /// Returns the unread rest of `chunk` as bytes to keep: the slot itself, or a copy and the chunk.
    pub(crate) fn lend(&mut self, chunk: Readable<S>) -> (Bytes, Option<Readable<S>>) {
        let is_small = chunk.rest().len() <= COPIED_BYTES || chunk.slot.index() == NO_SLOT;
        if is_small || self.lent + SLOTS_NEVER_LENT >= self.depth {
            return (Bytes::copy_from_slice(chunk.rest()), Some(chunk));
        }
        self.lent += 1;
        let lent = LentChunk {
            chunk: Some(chunk),
            returns: Arc::downgrade(&self.returns),
        };
        (Bytes::from_owner(lent), None)
    }

    /// Takes the chunks that were dropped.
    pub(crate) fn take_returned(&mut self) -> Vec<Readable<S>> {
        if self.lent == 0 {
            return Vec::new();
        }
        let chunks = mem::take(&mut *self.returns.lock());
        self.lent -= chunks.len();
        chunks
    }
}

impl<S> ReturnedChunks<S> {
    /// Returns true if no chunk was dropped.
    pub(crate) fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Readable<S>>> {
        self.chunks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<S: Slot> AsRef<[u8]> for LentChunk<S> {
    fn as_ref(&self) -> &[u8] {
        self.chunk.as_ref().map_or(&[], Readable::rest)
    }
}

impl<S: Slot> Drop for LentChunk<S> {
    fn drop(&mut self) {
        if let (Some(chunk), Some(returns)) = (self.chunk.take(), self.returns.upgrade()) {
            returns.lock().push(chunk);
            returns.waker.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::data::frame::HEADER_BYTES;

    struct Heap(u32, Box<[u8]>);

    impl Slot for Heap {
        fn index(&self) -> u32 {
            self.0
        }

        fn bytes(&self) -> &[u8] {
            &self.1
        }

        fn bytes_mut(&mut self) -> &mut [u8] {
            &mut self.1
        }
    }

    fn chunk(index: u32, payload: usize) -> Readable<Heap> {
        let bytes = vec![7; HEADER_BYTES + payload].into_boxed_slice();
        Readable::new(Heap(index, bytes), payload)
    }

    #[test]
    fn two_slots_are_never_lent() {
        for depth in [2, 3, 4, 16] {
            let mut lender = ChunkLender::new(depth);
            let mut kept = Vec::new();
            let mut copied = 0;
            for index in 0..depth {
                let (bytes, back) = lender.lend(chunk(index, COPIED_BYTES + 1));
                assert_eq!(bytes, vec![7; COPIED_BYTES + 1]);
                kept.push(bytes);
                copied += u32::from(back.is_some());
            }
            assert_eq!(copied, 2, "depth {depth}");
            drop(kept);
            let returned = lender.take_returned().len();
            assert_eq!(u32::try_from(returned), Ok(depth - copied));
            assert_eq!(lender.lent, 0);
        }
    }

    #[test]
    fn what_is_small_is_copied() {
        let mut lender = ChunkLender::new(16);
        assert!(lender.lend(chunk(0, COPIED_BYTES)).1.is_some());
        assert!(lender.lend(chunk(0, COPIED_BYTES + 1)).1.is_none());
    }

    #[test]
    fn the_lent_outlive_their_lender() {
        let mut lender = ChunkLender::new(16);
        let (bytes, _) = lender.lend(chunk(0, 9000));
        let part = bytes.slice(8999..);
        drop((lender, bytes));
        assert_eq!(part, [7][..]);
    }
}
