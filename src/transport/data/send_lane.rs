//! The sending lane: from filled slots to posted chunks, driven by whoever polls.

use std::{
    collections::VecDeque,
    io::IoSlice,
    sync::{Arc, Mutex, MutexGuard, PoisonError, atomic::AtomicU64},
    task::{Context, Poll},
};

use super::{
    frame::{Chain, HEADER_BYTES},
    path::{SendPath, Slot},
};
use crate::{Error, Fault, faults, transport::control::state::State};

/// What the sending half and the steward drive: the chunk being filled and those in flight.
pub(crate) struct SharedSendLane<P: SendPath> {
    lane: Mutex<SendLane<P>>,
    /// Counts the user's polls, so that the steward sees whether somebody drives.
    pub(crate) polls: AtomicU64,
}

/// The chunk being filled and those in flight.
pub(crate) struct SendLane<P: SendPath> {
    pub(super) path: P,
    chain: Chain,
    /// Chunks that nothing more is added to, in order.
    pub(super) sealed: VecDeque<Filling<P::Slot>>,
    /// What comes after them.
    pub(super) filling: Option<Filling<P::Slot>>,
    /// Slots in the hands of the user.
    lent: usize,
    broken: bool,
}

/// A slot that the user's bytes go into.
pub(crate) struct Filling<S> {
    pub(super) slot: S,
    filled: usize,
}

impl<S: Slot> Filling<S> {
    /// The first `count` of them now hold data.
    pub(crate) fn fill(&mut self, count: usize) {
        self.filled += count;
    }

    /// The bytes that are still free.
    pub(crate) fn room(&mut self) -> &mut [u8] {
        &mut self.slot.bytes_mut()[HEADER_BYTES + self.filled..]
    }

    /// Whether there are none.
    pub(crate) fn is_full(&self) -> bool {
        HEADER_BYTES + self.filled == self.slot.bytes().len()
    }

    /// Bytes that it holds in all when it is full.
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

    /// The bytes that hold data.
    pub(crate) fn data(&self) -> &[u8] {
        self.slot.payload(self.filled)
    }

    /// The same, to be changed.
    pub(crate) fn data_mut(&mut self) -> &mut [u8] {
        &mut self.slot.bytes_mut()[HEADER_BYTES..HEADER_BYTES + self.filled]
    }

    /// None of them hold data any more.
    pub(crate) fn clear(&mut self) {
        self.filled = 0;
    }
}

impl<P: SendPath> SharedSendLane<P> {
    /// A sender whose first chunk is chained to `seed`.
    pub(crate) fn new(path: P, seed: u64) -> Self {
        let lane = SendLane {
            path,
            chain: Chain::new(seed),
            sealed: VecDeque::new(),
            filling: None,
            lent: 0,
            broken: false,
        };
        Self {
            lane: Mutex::new(lane),
            polls: AtomicU64::new(0),
        }
    }

    /// The lane, which only the user and the steward ever contend for.
    pub(crate) fn lock(&self) -> MutexGuard<'_, SendLane<P>> {
        self.lane.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Goes on without the user, and wakes it when something has moved.
    pub(crate) fn drive_unattended(&self, state: &State, cx: &mut Context<'_>) {
        let mut lane = self.lock();
        let before = (lane.path.in_flight(), lane.chain.offset());
        let _ = lane.poll_posted(state, cx, false);
        if before != (lane.path.in_flight(), lane.chain.offset()) {
            state.wake_sender();
        }
    }
}

impl<P: SendPath> SendLane<P> {
    /// Bytes posted so far and the digest of the last of them.
    pub(crate) fn posted(&self) -> (u64, u64) {
        (self.chain.offset(), self.chain.digest())
    }

    /// Takes the slot being filled, which the next [`poll_posted`](Self::poll_posted) may post.
    pub(crate) fn give_back(&mut self, filling: Filling<P::Slot>) {
        if filling.filled == 0 {
            self.path.release(filling.slot);
        } else {
            self.filling = Some(filling);
        }
    }

    /// Completes what is in flight and posts what may be posted: a full chunk always, a partial
    /// one when nothing is in flight (so that a request never waits for a flush) or when `all`
    /// must go. Ready when nothing is left, neither to post (of what may be) nor in flight.
    pub(crate) fn poll_posted(
        &mut self,
        state: &State,
        cx: &mut Context<'_>,
        all: bool,
    ) -> Poll<Result<(), Error>> {
        loop {
            if self.broken {
                return Poll::Pending;
            }
            let progress = match self.path.poll_complete(cx, || state.take_credit()) {
                Poll::Ready(Err(error)) => {
                    self.broken = true;
                    state.suspect(Fault::Data(Arc::new(error)));
                    continue;
                }
                Poll::Ready(Ok(())) => Poll::Ready(Ok(())),
                Poll::Pending => Poll::Pending,
            };
            let idle = self.path.in_flight() == 0;
            let due = |f: &Filling<_>| f.is_full() || (f.filled > 0 && (all || idle));
            if self.sealed.is_empty() && !self.filling.as_ref().is_some_and(due) {
                return progress;
            }
            let Some(target) = state.take_credit() else {
                return Poll::Pending;
            };
            let next = self.sealed.pop_front().or_else(|| self.filling.take());
            if let Some(chunk) = next {
                self.post(state, chunk, target);
            }
        }
    }

    fn post(&mut self, state: &State, chunk: Filling<P::Slot>, target: u32) {
        let Filling { mut slot, filled } = chunk;
        let header = self.chain.seal(target, slot.payload(filled));
        slot.bytes_mut()[..HEADER_BYTES].copy_from_slice(&header.encode());
        self.path.post(slot, header.frame_bytes(), target);
        state.count_sent(filled as u64);
        faults::point("first-chunk-sent");
    }

    /// A slot with room in it, once there is one.
    pub(crate) fn poll_room(
        &mut self,
        state: &State,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Filling<P::Slot>, Error>> {
        state.writable()?;
        // Registered before it is looked at, so that nothing can change unseen in between.
        state.wait_to_send(cx);
        let full = |filling: &Filling<_>| filling.is_full();
        if self.filling.as_ref().is_none_or(full) {
            let _ = self.poll_posted(state, cx, false)?;
        }
        if self.filling.as_ref().is_some_and(full) || self.is_behind() {
            return Poll::Pending;
        }
        let fresh = |slot| Filling { slot, filled: 0 };
        match self
            .filling
            .take()
            .or_else(|| self.path.acquire().map(fresh))
        {
            Some(filling) => Poll::Ready(Ok(filling)),
            None => Poll::Pending,
        }
    }

    /// An empty slot for the user to keep until it is [sealed](Self::seal) or
    /// [taken back](Self::take_back). One slot is never lent: writes must not wait for buffers.
    pub(crate) fn poll_lent(
        &mut self,
        state: &State,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Filling<P::Slot>, Error>> {
        state.writable()?;
        state.wait_to_send(cx);
        let _ = self.poll_posted(state, cx, false)?;
        if self.lent + 1 >= self.path.max_slots() || self.is_behind() {
            return Poll::Pending;
        }
        let Some(slot) = self.path.acquire_to_lend() else {
            return Poll::Pending;
        };
        self.lent += 1;
        Poll::Ready(Ok(Filling { slot, filled: 0 }))
    }

    /// Whether sealed chunks wait for credit. Nobody gets a free slot before them: those that were sealed in
    /// a pool that has been replaced need slots of the new one, and if everything else had those, and
    /// they the credits, neither would ever go on.
    fn is_behind(&self) -> bool {
        !self.sealed.is_empty()
    }

    /// Queues what the user filled, behind all that was written before.
    pub(crate) fn seal(&mut self, lent: Filling<P::Slot>) {
        self.lent -= 1;
        if lent.filled == 0 {
            self.path.release(lent.slot);
            return;
        }
        self.sealed.extend(self.filling.take());
        self.sealed.push_back(lent);
    }

    /// Takes back a slot that the user does not want to send.
    pub(crate) fn take_back(&mut self, lent: Filling<P::Slot>) {
        self.lent -= 1;
        self.path.release(lent.slot);
    }
}
