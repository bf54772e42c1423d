//! Received chunks in the hands of the user, and their way back.
//!
//! A lent chunk keeps its slot, so lending must leave enough of them for the stream to go on: of `depth`
//! slots at most `depth - 2` are lent, for good if the user wants. The other two circulate between
//! sender and reader whatever happens to the lent ones, one being filled while one is read; what they
//! carry is copied for whoever wants to own it. So nobody ever waits for a lent chunk.
//!
//! It may be dropped anywhere, on a thread without a runtime too, while giving a slot back talks to the
//! device: so it only goes on a list, and the steward, or the reader if that comes first, does the rest.

use std::{
    mem,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
};

use bytes::Bytes;
use futures::task::AtomicWaker;

use super::{path::Slot, readable::Readable};

/// Slots that are never lent.
const CIRCULATING: usize = 2;

/// Payload up to which a chunk is copied instead of lent, in bytes: a page. To copy that much takes
/// less than the way back of a slot does, and a slot is a great deal to keep for a few bytes.
const SMALL: usize = 4096;

/// Lends chunks of one receive pool.
pub(crate) struct ChunkLender<S> {
    returns: Arc<ReturnedChunks<S>>,
    depth: usize,
    lent: usize,
}

/// Where lent chunks come back to.
pub(crate) struct ReturnedChunks<S> {
    chunks: Mutex<Vec<Readable<S>>>,
    /// Wakes the steward: there are some.
    pub(super) waker: AtomicWaker,
}

/// A chunk in the hands of the user, who sees it as [`Bytes`].
struct LentChunk<S: Slot> {
    /// Always there until it is dropped.
    chunk: Option<Readable<S>>,
    /// Gone with the stream: the slot is nobody's then but the user's.
    returns: Weak<ReturnedChunks<S>>,
}

impl<S: Slot> ChunkLender<S> {
    /// A lender of a pool of `depth` slots.
    pub(super) fn new(depth: u32) -> Self {
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

    /// Where lent chunks come back to.
    pub(super) fn returns(&self) -> Arc<ReturnedChunks<S>> {
        Arc::clone(&self.returns)
    }

    /// What is left of `chunk`, as bytes of its own: the slot itself, or a copy and the chunk back.
    pub(super) fn lend(&mut self, chunk: Readable<S>) -> (Bytes, Option<Readable<S>>) {
        if chunk.rest().len() <= SMALL || self.lent + CIRCULATING >= self.depth {
            return (Bytes::copy_from_slice(chunk.rest()), Some(chunk));
        }
        self.lent += 1;
        let lent = LentChunk {
            chunk: Some(chunk),
            returns: Arc::downgrade(&self.returns),
        };
        (Bytes::from_owner(lent), None)
    }

    /// The chunks that have come back.
    pub(super) fn take_returned(&mut self) -> Vec<Readable<S>> {
        if self.lent == 0 {
            return Vec::new();
        }
        let chunks = mem::take(&mut *self.returns.lock());
        self.lent -= chunks.len();
        chunks
    }
}

impl<S> ReturnedChunks<S> {
    /// Whether nothing has come back.
    pub(super) fn is_empty(&self) -> bool {
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
                let (bytes, back) = lender.lend(chunk(index, SMALL + 1));
                assert_eq!(bytes, vec![7; SMALL + 1]);
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
        assert!(lender.lend(chunk(0, SMALL)).1.is_some());
        assert!(lender.lend(chunk(0, SMALL + 1)).1.is_none());
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
