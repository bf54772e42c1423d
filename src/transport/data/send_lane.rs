//! The send lane: from filled slots to posted frames.
//!
//! The lane seals a filled slot with a header and a digest, takes a credit for it, and gives it to the data path. It
//! has no task: the user's calls drive it, or the steward.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError, atomic::AtomicU64},
    task::{Context, Poll},
};

use super::{
    frame::{Chain, HEADER_BYTES},
    path::{NO_SLOT, SendPath, Slot, SmallFrame},
    slots::FillingSlot,
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
    pub(super) sealed: VecDeque<FillingSlot<P::Slot>>,
    /// The chunk after those, which is being filled.
    pub(super) filling: Option<FillingSlot<P::Slot>>,
    /// The number of slots that the user holds.
    lent: usize,
    /// The user waits until everything is posted.
    is_flush_due: bool,
    broken: bool,
    faults: faults::Faults,
}

/// What is done with a small frame that the path could carry without a credit, but not now.
#[derive(Clone, Copy, PartialEq, Eq)]
enum WhenNoRoom {
    /// It waits, because a frame with a credit takes much longer.
    Wait,
    /// It uses a credit.
    UseCredit,
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
            is_flush_due: false,
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
        let progress = |lane: &SendLane<P>| {
            let SendLane { path, chain, .. } = lane;
            (path.in_flight(), path.is_busy(), chain.offset())
        };
        let before = progress(&lane);
        let is_fin_due = state.is_fin_due();
        let all = is_fin_due || lane.is_flush_due;
        // The user has waited for the whole of the steward's patience, so a small frame waits no more.
        let posted = lane.poll_posted_as(state, cx, all, WhenNoRoom::UseCredit);
        lane.is_flush_due &= !lane.is_all_posted();
        if is_fin_due && matches!(posted, Poll::Ready(Ok(()))) {
            lane.finish(state);
        }
        if before != progress(&lane) {
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
    pub(crate) fn give_back(&mut self, filling: FillingSlot<P::Slot>) {
        if filling.filled() == 0 {
            self.path.release(filling.slot);
        } else {
            self.filling = Some(filling);
        }
    }

    /// Completes frames in flight and posts the chunks that are due: a full chunk always; a partial chunk when the path
    /// is not busy, so that a request never waits for a flush, or with `all`. Ready when no chunk is due and no frame
    /// is in flight.
    pub(crate) fn poll_posted(
        &mut self,
        state: &State,
        cx: &mut Context<'_>,
        all: bool,
    ) -> Poll<Result<(), Error>> {
        let posted = self.poll_posted_as(state, cx, all, WhenNoRoom::Wait);
        self.is_flush_due = (self.is_flush_due || all) && !self.is_all_posted();
        posted
    }

    fn poll_posted_as(
        &mut self,
        state: &State,
        cx: &mut Context<'_>,
        all: bool,
        when_no_room: WhenNoRoom,
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
            let idle = !self.path.is_busy();
            let due =
                |f: &&FillingSlot<_>| f.is_full() || (!f.unsent().is_empty() && (all || idle));
            let next = self.sealed.front();
            let Some(next) = next.or_else(|| self.filling.as_ref().filter(due)) else {
                return progress;
            };
            let target = match self.path.small_frame(next.unsent().len()) {
                SmallFrame::NeedsCredit => state.take_credit(),
                SmallFrame::WithoutCredit { max_bytes } => {
                    self.post_small(state, max_bytes);
                    continue;
                }
                SmallFrame::Later if when_no_room == WhenNoRoom::UseCredit => state.take_credit(),
                SmallFrame::Later => None,
            };
            let Some(target) = target else {
                return Poll::Pending;
            };
            let next = self.sealed.pop_front().or_else(|| self.filling.take());
            if let Some(chunk) = next {
                self.post(state, chunk, target);
            }
        }
    }

    /// Posts the first bytes of the next chunk as a small frame, at most `max_bytes` of them.
    fn post_small(&mut self, state: &State, max_bytes: usize) {
        let Self {
            path,
            chain,
            sealed,
            filling,
            ..
        } = self;
        let Some(next) = sealed.front_mut().or(filling.as_mut()) else {
            return;
        };
        let unsent = next.unsent();
        let payload = &unsent[..unsent.len().min(max_bytes)];
        path.post_small(&chain.seal(NO_SLOT, payload), payload);
        let count = payload.len();
        state.count_sent(count as u64);
        faults::point("first-chunk-sent");
        next.mark_sent(count);
        if next.unsent().is_empty() {
            if let Some(done) = sealed.pop_front().or_else(|| filling.take()) {
                path.release(done.slot);
            }
        }
    }

    fn post(&mut self, state: &State, mut chunk: FillingSlot<P::Slot>, target: u32) {
        chunk.close_gap();
        let filled = chunk.filled();
        let mut slot = chunk.slot;
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
    ) -> Poll<Result<FillingSlot<P::Slot>, Error>> {
        state.writable()?;
        // The waker is registered before the state is checked, so that no change is missed.
        state.wait_to_send(cx);
        let full = |filling: &FillingSlot<_>| filling.is_full();
        if self.filling.as_ref().is_none_or(full) {
            let _ = self.poll_posted(state, cx, false)?;
        }
        if self.filling.as_ref().is_some_and(full) || self.is_behind() {
            return Poll::Pending;
        }
        if let Some(filling) = self.filling.take() {
            return Poll::Ready(Ok(filling));
        }
        match self.path.acquire_to_fill(|| state.credits_left()) {
            Some(slot) => Poll::Ready(Ok(FillingSlot::new(slot))),
            None => Poll::Pending,
        }
    }

    /// Takes an empty slot for the user, who keeps it until it is [sealed](Self::seal) or
    /// [taken back](Self::take_back). One slot is never lent, so that writes do not wait for lent slots.
    pub(crate) fn poll_lent(
        &mut self,
        state: &State,
        cx: &mut Context<'_>,
    ) -> Poll<Result<FillingSlot<P::Slot>, Error>> {
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
        Poll::Ready(Ok(FillingSlot::new(slot)))
    }

    /// Returns true if sealed chunks wait for credit. No slot is given out before they are posted. Chunks that were
    /// sealed in a pool that has been replaced need slots of the new pool: if later writes held those slots, and the
    /// sealed chunks the credits, both would wait forever.
    fn is_behind(&self) -> bool {
        !self.sealed.is_empty()
    }

    /// Queues a slot that the user filled, behind everything written before.
    pub(crate) fn seal(&mut self, lent: FillingSlot<P::Slot>) {
        self.lent -= 1;
        if lent.filled() == 0 {
            self.path.release(lent.slot);
            return;
        }
        self.sealed.extend(self.filling.take());
        self.sealed.push_back(lent);
    }

    /// Takes back a slot that the user does not send.
    pub(crate) fn take_back(&mut self, lent: FillingSlot<P::Slot>) {
        self.lent -= 1;
        self.path.release(lent.slot);
    }
}
