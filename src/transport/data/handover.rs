//! What the user of a stream and the rails beside the first one hand to each other: slots to fill and chunks to send,
//! chunks that arrived and slots that were read.
//!
//! The user fills and reads, and each rail seals, sends, receives and verifies on its own thread, under a lock that it
//! holds meanwhile. So the two meet here, where a lock is held for some instructions only. The number of slots bounds
//! the queues.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use futures::task::AtomicWaker;

use super::slots::{FillingSlot, Readable};

/// The queues between the user and one rail that sends.
pub(crate) struct SendHandover<S>(Handover<SendQueues<S>>);

struct SendQueues<S> {
    /// Chunks for the rail, in order.
    filled: VecDeque<FillingSlot<S>>,
    /// Slots for the user.
    empty: Vec<S>,
}

impl<S> SendHandover<S> {
    /// Returns empty queues.
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self(Handover::new(SendQueues {
            filled: VecDeque::new(),
            empty: Vec::new(),
        })))
    }

    /// Takes a slot to fill.
    pub(super) fn take_empty(&self) -> Option<S> {
        self.0.lock().empty.pop()
    }

    /// Gives back a slot that was not filled.
    pub(super) fn put_empty(&self, slot: S) {
        self.0.lock().empty.push(slot);
    }

    /// Hands a chunk to the rail, and wakes its steward.
    pub(super) fn send(&self, filled: FillingSlot<S>) {
        self.0.lock().filled.push_back(filled);
        self.0.rail.wake();
    }

    /// Takes the chunks for the rail.
    pub(super) fn take_filled(&self) -> VecDeque<FillingSlot<S>> {
        std::mem::take(&mut self.0.lock().filled)
    }

    /// Drops the slots that the user has not taken, and applies `keep` to those of the chunks for the rail.
    #[cfg(feature = "rdma")]
    pub(super) fn leave_pool(&self, keep: impl Fn(&mut S)) {
        let mut queues = self.0.lock();
        queues.empty.clear();
        queues
            .filled
            .iter_mut()
            .for_each(|chunk| keep(&mut chunk.slot));
    }

    pub(super) fn rail(&self) -> &AtomicWaker {
        &self.0.rail
    }
}

/// The queues between one rail that receives and the user.
pub(crate) struct ReceiveHandover<S>(Handover<ReceiveQueues<S>>);

struct ReceiveQueues<S> {
    /// Verified chunks for the user, in order.
    chunks: VecDeque<Readable<S>>,
    /// Chunks that the user has read.
    read: Vec<Readable<S>>,
}

impl<S> ReceiveHandover<S> {
    /// Returns empty queues.
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self(Handover::new(ReceiveQueues {
            chunks: VecDeque::new(),
            read: Vec::new(),
        })))
    }

    /// Hands verified chunks to the user. Returns false if there are none.
    pub(super) fn deliver(&self, chunks: &mut VecDeque<Readable<S>>) -> bool {
        if chunks.is_empty() {
            return false;
        }
        self.0.lock().chunks.append(chunks);
        true
    }

    /// Takes the next chunk if `is_next` accepts it.
    pub(super) fn take(&self, is_next: impl FnOnce(&Readable<S>) -> bool) -> Option<Readable<S>> {
        let mut queues = self.0.lock();
        let is_next = queues.chunks.front().is_some_and(is_next);
        is_next.then(|| queues.chunks.pop_front()).flatten()
    }

    /// Returns true if the user has not taken all chunks.
    pub(super) fn has_chunks(&self) -> bool {
        !self.0.lock().chunks.is_empty()
    }

    /// Applies `keep` to the slots of the chunks that the user has not taken.
    #[cfg(feature = "rdma")]
    pub(super) fn leave_pool(&self, keep: impl Fn(&mut S)) {
        let mut queues = self.0.lock();
        queues
            .chunks
            .iter_mut()
            .for_each(|chunk| keep(&mut chunk.slot));
    }

    /// Gives a chunk that was read back to the rail, and wakes its steward.
    pub(super) fn give_back(&self, chunk: Readable<S>) {
        self.0.lock().read.push(chunk);
        self.0.rail.wake();
    }

    pub(super) fn take_read(&self) -> Vec<Readable<S>> {
        std::mem::take(&mut self.0.lock().read)
    }

    pub(super) fn rail(&self) -> &AtomicWaker {
        &self.0.rail
    }
}

/// Queues, and the waker of the rail that serves them.
struct Handover<Q> {
    queues: Mutex<Q>,
    rail: AtomicWaker,
}

impl<Q> Handover<Q> {
    fn new(queues: Q) -> Self {
        Self {
            queues: Mutex::new(queues),
            rail: AtomicWaker::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Q> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
