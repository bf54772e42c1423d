//! The send lane: from filled slots to posted frames.
//!
//! The lane seals a filled slot with a header and a digest, takes a credit for it, and gives it to the data path. It has
//! no task: the user's calls drive it, or the steward.

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

/// The send lane, as the sending half and the steward share it.
pub(crate) struct SharedSendLane<P: SendPath> {
    lane: Mutex<SendLane<P>>,
    /// The number of polls by the user, which tells the steward whether the user drives the lane.
    pub(crate) polls: AtomicU64,
}

/// The chunk that is being filled, those that wait for credit, and those in flight.
pub(crate) struct SendLane<P: SendPath> {
    pub(super) path: P,
    chain: Chain,
    /// Chunks to which nothing is added any more, in order.
    pub(super) sealed: VecDeque<Filling<P::Slot>>,
    /// The chunk after those, which is being filled.
    pub(super) filling: Option<Filling<P::Slot>>,
    /// The number of slots that the user holds.
    lent: usize,
    broken: bool,
    faults: faults::Faults,
}

/// A slot that is being filled.
pub(crate) struct Filling<S> {
    pub(super) slot: S,
    filled: usize,
}

impl<S: Slot> Filling<S> {
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

    /// Returns the bytes that hold data.
    pub(crate) fn data(&self) -> &[u8] {
        self.slot.payload(self.filled)
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

impl<P: SendPath> SharedSendLane<P> {
    /// A lane over `path`. Its digests are seeded with `seed`.
    pub(crate) fn new(path: P, seed: u64, faults: faults::Faults) -> Self {
        let lane = SendLane {
            path,
            chain: Chain::new(seed),
            sealed: VecDeque::new(),
            filling: None,
            lent: 0,
            broken: false,
            faults,
        };
        Self {
            lane: Mutex::new(lane),
            polls: AtomicU64::new(0),
        }
    }

    /// Locks the lane. Only the user and the steward contend for it.
    pub(crate) fn lock(&self) -> MutexGuard<'_, SendLane<P>> {
        self.lane.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Drives the lane in place of the user, and wakes the user after progress.
    pub(crate) fn drive_unattended(&self, state: &State, cx: &mut Context<'_>) {
        let mut lane = self.lock();
        let before = (lane.path.in_flight(), lane.chain.offset());
        let is_fin_due = state.is_fin_due();
        let posted = lane.poll_posted(state, cx, is_fin_due);
        if is_fin_due && matches!(posted, Poll::Ready(Ok(()))) {
            lane.finish(state);
        }
        if before != (lane.path.in_flight(), lane.chain.offset()) {
            state.wake_sender();
        }
    }
}

impl<P: SendPath> SendLane<P> {
    /// Returns the number of bytes posted so far.
    pub(crate) fn posted(&self) -> u64 {
        self.chain.offset()
    }

    /// Sends FIN, once: everything is posted.
    pub(crate) fn finish(&self, state: &State) {
        faults::point("before-fin");
        state.finish_sending(self.chain.offset(), self.chain.digest());
        faults::point("after-fin");
    }

    /// Returns true if every byte that was written has been given to the data path.
    pub(crate) fn is_all_posted(&self) -> bool {
        self.sealed.is_empty() && self.filling.is_none()
    }

    /// Takes back the slot that is being filled. The next [`poll_posted`](Self::poll_posted) may post it.
    pub(crate) fn give_back(&mut self, filling: Filling<P::Slot>) {
        if filling.filled == 0 {
            self.path.release(filling.slot);
        } else {
            self.filling = Some(filling);
        }
    }

    /// Completes frames in flight and posts the chunks that are due: a full chunk always; a partial chunk when no
    /// frame is in flight, so that a request never waits for a flush, or with `all`. Ready when no chunk is due and no
    /// frame is in flight.
    pub(crate) fn poll_posted(
        &mut self,
        state: &State,
        cx: &mut Context<'_>,
        all: bool,
    ) -> Poll<Result<(), Error>> {
        loop {
            if self.broken || (self.faults.loses_completions() && self.path.in_flight() > 0) {
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

    /// Takes a slot with free bytes. Ready when there is one.
    pub(crate) fn poll_room(
        &mut self,
        state: &State,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Filling<P::Slot>, Error>> {
        state.writable()?;
        // The waker is registered before the state is checked, so that no change is missed.
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

    /// Takes an empty slot for the user, who keeps it until it is [sealed](Self::seal) or
    /// [taken back](Self::take_back). One slot is never lent, so that writes do not wait for lent slots.
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

    /// Returns true if sealed chunks wait for credit. No slot is given out before they are posted. Chunks that were sealed
    /// in a pool that has been replaced need slots of the new pool: if later writes held those slots, and the sealed
    /// chunks the credits, both would wait for ever.
    fn is_behind(&self) -> bool {
        !self.sealed.is_empty()
    }

    /// Queues a slot that the user filled, behind everything written before.
    pub(crate) fn seal(&mut self, lent: Filling<P::Slot>) {
        self.lent -= 1;
        if lent.filled == 0 {
            self.path.release(lent.slot);
            return;
        }
        self.sealed.extend(self.filling.take());
        self.sealed.push_back(lent);
    }

    /// Takes back a slot that the user does not send.
    pub(crate) fn take_back(&mut self, lent: Filling<P::Slot>) {
        self.lent -= 1;
        self.path.release(lent.slot);
    }
}
