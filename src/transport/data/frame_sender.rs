//! The frame sender: takes a credit for a filled slot, seals the chunk in it, and gives it to the data path. It has no
//! task: the user's calls drive it, or the steward.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError, atomic::AtomicU64},
    task::{Context, Poll},
};

use super::{
    frame::{Chain, HEADER_BYTES},
    handover::SendHandover,
    slots::{FillingSlot, NO_SLOT, SendPath, Slot, SmallFrame},
};
use crate::{Error, Fault, faults, transport::control::state::RailState};

/// The frame sender, as the sending half and the steward share it.
pub(crate) struct SharedSender<P: SendPath> {
    sender: Mutex<FrameSender<P>>,
    /// The number of polls by the user, which tells the steward whether the user drives the frame sender.
    pub(crate) polls: AtomicU64,
    /// What the user hands to this rail, if it is not the first one.
    pub(super) handover: Option<Arc<SendHandover<P::Slot>>>,
}

/// The chunk that is being filled, those that wait for credit, and those in flight.
pub(crate) struct FrameSender<P: SendPath> {
    pub(super) path: P,
    pub(super) chain: Chain,
    /// Chunks to which nothing is added any more, in order.
    pub(super) sealed: VecDeque<FillingSlot<P::Slot>>,
    /// The chunk after those, which is being filled.
    pub(super) filling: Option<FillingSlot<P::Slot>>,
    /// The number of slots that the user holds.
    lent: usize,
    /// The user waits until everything is posted.
    is_flush_due: bool,
    broken: bool,
    /// FIN has been sent, with the number of bytes before it.
    has_ended: bool,
    faults: faults::Faults,
    part: SendPart<P::Slot>,
}

/// The part of a frame sender in a stream.
pub(crate) enum SendPart<S> {
    /// The stream has one rail.
    Only,
    /// The user's rail of several: chunks get their offsets here, and some are handed to other rails.
    First(FirstRail<S>),
    /// Another rail, which gets its chunks from the user.
    Other(Arc<SendHandover<S>>),
}

/// What the user's rail knows of the others.
pub(crate) struct FirstRail<S> {
    /// The rails from the second one on.
    others: Vec<Arc<SendHandover<S>>>,
    /// The rail that is asked for a slot next.
    next: usize,
    /// The number of bytes that have a place so far: those of chunks, and those that were sent small.
    offset: u64,
    /// The last chunk was full: more will follow, and other rails take them. A chunk that is not full is a message for
    /// which the peer may wait, and stays on this rail.
    is_bulk: bool,
}

impl<S> SendPart<S> {
    /// The part of the user's rail beside these others.
    pub(crate) fn first(others: Vec<Arc<SendHandover<S>>>) -> Self {
        if others.is_empty() {
            return Self::Only;
        }
        Self::First(FirstRail {
            others,
            next: 0,
            offset: 0,
            is_bulk: false,
        })
    }
}

impl<S: Slot> FirstRail<S> {
    /// Takes a slot of another rail, in turn.
    fn take_from_others(&mut self) -> Option<FillingSlot<S>> {
        let count = self.others.len();
        let (slot, other) = (0..count).find_map(|step| {
            let other = (self.next + step) % count;
            Some((self.others[other].take_empty()?, other))
        })?;
        self.next = other + 1;
        Some(FillingSlot::of_rail(slot, other + 1))
    }

    /// Says where the bytes of the next chunk belong, to which nothing is added any more.
    fn place(&mut self, chunk: &mut FillingSlot<S>) {
        if chunk.offset().is_none() {
            chunk.set_offset(self.offset);
            self.offset += chunk.unsent().len() as u64;
            self.is_bulk = chunk.is_full();
        }
    }

    /// Returns where the next `count` bytes belong of the chunk that is being filled: they are sent small, and more may
    /// be added to the chunk meanwhile.
    fn place_part(&mut self, count: usize) -> u64 {
        let offset = self.offset;
        self.offset += count as u64;
        self.is_bulk = false;
        offset
    }
}

/// What is done with a small frame that the path could carry without a credit, but not now.
#[derive(Clone, Copy, PartialEq, Eq)]
enum WhenNoRoom {
    /// It waits, because a frame with a credit takes much longer.
    Wait,
    UseCredit,
}

impl<P: SendPath> SharedSender<P> {
    /// A frame sender over `path`, whose chunks make up `chain`.
    pub(crate) fn new(
        path: P,
        chain: Chain,
        part: SendPart<P::Slot>,
        faults: faults::Faults,
    ) -> Self {
        let handover = match &part {
            SendPart::Other(handover) => Some(Arc::clone(handover)),
            SendPart::Only | SendPart::First(_) => None,
        };
        let sender = FrameSender {
            path,
            chain,
            sealed: VecDeque::new(),
            filling: None,
            lent: 0,
            is_flush_due: false,
            broken: false,
            has_ended: false,
            faults,
            part,
        };
        Self {
            sender: Mutex::new(sender),
            polls: AtomicU64::new(0),
            handover,
        }
    }

    /// Locks the frame sender. Only the user and the steward contend for it.
    pub(crate) fn lock(&self) -> MutexGuard<'_, FrameSender<P>> {
        self.sender.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Drives the frame sender in place of the user, and wakes the user after progress.
    pub(crate) fn drive_unattended(&self, state: &RailState, cx: &mut Context<'_>) {
        if let Some(handover) = &self.handover {
            return self.drive_rail(handover, state, cx);
        }
        let mut sender = self.lock();
        let before = sender.progress();
        let is_fin_due = state.is_fin_due();
        let all = is_fin_due || sender.is_flush_due;
        // The user has waited for the whole of the steward's patience, so a small frame waits no more.
        let posted = sender.poll_posted_as(state, cx, all, WhenNoRoom::UseCredit);
        sender.is_flush_due &= !sender.is_all_posted(state);
        if is_fin_due && matches!(posted, Poll::Ready(Ok(()))) {
            sender.finish(state);
        }
        if before != sender.progress() {
            state.wake_sender();
        }
    }

    /// Sends what the user has handed over, and hands back the slots that are free.
    fn drive_rail(
        &self,
        handover: &SendHandover<P::Slot>,
        state: &RailState,
        cx: &mut Context<'_>,
    ) {
        let mut sender = self.lock();
        loop {
            let before = sender.progress();
            let filled = handover.take_filled();
            let is_idle = filled.is_empty();
            sender.sealed.extend(filled);
            let _ = sender.poll_posted_as(state, cx, false, WhenNoRoom::UseCredit);
            let mut has_progress = before != sender.progress();
            while let Some(slot) = sender.path.acquire_ahead() {
                handover.put_empty(slot);
                has_progress = true;
            }
            if is_idle {
                drop(sender);
                if has_progress {
                    state.wake_sending_user();
                    // A loop of its own may drive the half of this rail.
                    state.wake_sender();
                }
                return;
            }
            if has_progress {
                state.wake_sending_user();
            }
        }
    }
}

impl<P: SendPath> FrameSender<P> {
    /// Returns what changes when the data path gets on.
    fn progress(&self) -> (usize, bool, u64) {
        let Self { path, chain, .. } = self;
        (path.in_flight(), path.is_busy(), chain.offset())
    }

    /// Sends FIN, once: everything is posted.
    pub(crate) fn finish(&mut self, state: &RailState) {
        self.has_ended = true;
        faults::point("before-fin");
        state.finish_sending();
        faults::point("after-fin");
    }

    /// Returns true if every byte that was written has been given to the data path.
    pub(crate) fn is_all_posted(&self, state: &RailState) -> bool {
        self.sealed.is_empty() && self.filling.is_none() && !self.has_queued(state)
    }

    /// Returns true if this is the user's rail, and another one has chunks that it has not posted.
    fn has_queued(&self, state: &RailState) -> bool {
        matches!(self.part, SendPart::First(_)) && state.has_queued()
    }

    /// Takes back the slot that is being filled. The next [`poll_posted`](Self::poll_posted) may post it.
    pub(crate) fn give_back(&mut self, filling: FillingSlot<P::Slot>) {
        if filling.filled() == 0 {
            self.release(filling);
        } else {
            self.filling = Some(filling);
        }
    }

    /// Completes frames in flight and posts the chunks that are due: a full chunk always; a partial chunk when the path
    /// is not busy, so that a request never waits for a flush, or with `all`. Ready when no chunk is due and no frame
    /// is in flight.
    pub(crate) fn poll_posted(
        &mut self,
        state: &RailState,
        cx: &mut Context<'_>,
        all: bool,
    ) -> Poll<Result<(), Error>> {
        let posted = self.poll_posted_as(state, cx, all, WhenNoRoom::Wait);
        self.is_flush_due = (self.is_flush_due || all) && !self.is_all_posted(state);
        posted
    }

    fn poll_posted_as(
        &mut self,
        state: &RailState,
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
            let idle = !self.path.is_busy() && !self.has_queued(state);
            let due =
                |f: &&FillingSlot<_>| f.is_full() || (!f.unsent().is_empty() && (all || idle));
            // What is on this rail and not full waits for a credit as it is: more may be added to it.
            let leaves = |f: &FillingSlot<_>| f.is_full() || f.rail() > 0;
            if self.filling.as_ref().filter(due).is_some_and(leaves) {
                self.place_filling(state);
            }
            let next = self.sealed.front();
            let Some(next) = next.or_else(|| self.filling.as_ref().filter(due)) else {
                let is_done = !self.has_queued(state);
                return if is_done { progress } else { Poll::Pending };
            };
            // The panic aborts the stream at both ends: the peer must not take what came before for all.
            assert!(!self.has_ended, "bytes were left at the end of the stream");
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
            if let Some(mut chunk) = next {
                self.place(&mut chunk);
                self.post(state, chunk, target);
            }
        }
    }

    /// Posts the first bytes of the next chunk as a small frame, at most `max_bytes` of them.
    fn post_small(&mut self, state: &RailState, max_bytes: usize) {
        let Self {
            path,
            chain,
            sealed,
            filling,
            part,
            ..
        } = self;
        let Some(next) = sealed.front_mut().or(filling.as_mut()) else {
            return;
        };
        let count = next.unsent().len().min(max_bytes);
        let offset = match (next.offset(), part) {
            (Some(offset), _) => offset,
            (None, SendPart::First(first)) => first.place_part(count),
            (None, _) => chain.offset(),
        };
        let payload = next.unsent_mut(count);
        let header = chain.seal_at(offset, NO_SLOT, payload);
        path.post_small(&header, payload);
        state.count_sent(count as u64, chain.digest());
        faults::point("first-chunk-sent");
        next.mark_sent(count);
        if next.unsent().is_empty() {
            if let Some(done) = sealed.pop_front().or_else(|| filling.take()) {
                path.release(done.slot);
            }
        }
    }

    fn post(&mut self, state: &RailState, mut chunk: FillingSlot<P::Slot>, target: u32) {
        chunk.close_gap();
        let offset = chunk.offset().unwrap_or(self.chain.offset());
        let filled = chunk.filled();
        let mut slot = chunk.slot;
        let header = self.chain.seal_at(offset, target, slot.payload_mut(filled));
        slot.bytes_mut()[..HEADER_BYTES].copy_from_slice(&header.encode());
        self.path.post(slot, header.frame_bytes(), target);
        state.count_sent(filled as u64, self.chain.digest());
        if matches!(self.part, SendPart::Other(_)) {
            state.count_posted();
        }
        faults::point("first-chunk-sent");
    }

    /// Says where the bytes of a chunk belong, as the user's rail of several.
    fn place(&mut self, chunk: &mut FillingSlot<P::Slot>) {
        if let SendPart::First(first) = &mut self.part {
            first.place(chunk);
        }
    }

    /// Ends the chunk that is being filled, as the user's rail of several: queues it here, or hands it to the rail to
    /// which its slot belongs.
    fn place_filling(&mut self, state: &RailState) {
        let SendPart::First(first) = &mut self.part else {
            return;
        };
        let Some(mut chunk) = self.filling.take() else {
            return;
        };
        first.place(&mut chunk);
        match chunk.rail() {
            0 => self.sealed.push_back(chunk),
            rail => {
                state.count_queued();
                first.others[rail - 1].send(chunk);
            }
        }
    }

    /// Takes an empty slot: in a stream of several rails, for bulk data one of another rail if there is one.
    fn acquire_any(&mut self, state: &RailState) -> Option<FillingSlot<P::Slot>> {
        let is_behind = self.is_behind();
        let Self { path, part, .. } = self;
        let mut own = || {
            let slot = path.acquire_to_fill(|| state.credits_left())?;
            Some(FillingSlot::new(slot))
        };
        match part {
            SendPart::First(first) if first.is_bulk => {
                let other = first.take_from_others();
                other.or_else(|| if is_behind { None } else { own() })
            }
            SendPart::First(_) if is_behind => None,
            SendPart::Only | SendPart::First(_) => own(),
            SendPart::Other(handover) => {
                let slot = handover.take_empty().or_else(|| path.acquire_ahead());
                slot.map(FillingSlot::new)
            }
        }
    }

    /// Gives back a slot that was not filled.
    fn release(&mut self, filling: FillingSlot<P::Slot>) {
        match (&self.part, filling.rail()) {
            (SendPart::First(first), rail @ 1..) => first.others[rail - 1].put_empty(filling.slot),
            _ => self.path.release(filling.slot),
        }
    }

    /// Takes a slot with free bytes. Ready when there is one.
    pub(crate) fn poll_room(
        &mut self,
        state: &RailState,
        cx: &mut Context<'_>,
    ) -> Poll<Result<FillingSlot<P::Slot>, Error>> {
        state.writable()?;
        // The waker is registered before the state is checked, so that no change is missed.
        state.wait_to_send(cx);
        let full = |filling: &FillingSlot<_>| filling.is_full();
        if self.filling.as_ref().is_none_or(full) {
            let _ = self.poll_posted(state, cx, false)?;
        }
        let has_others = matches!(self.part, SendPart::First(_));
        if self.filling.as_ref().is_some_and(full) || (self.is_behind() && !has_others) {
            return Poll::Pending;
        }
        match self.filling.take().or_else(|| self.acquire_any(state)) {
            Some(filling) => Poll::Ready(Ok(filling)),
            None => Poll::Pending,
        }
    }

    /// Takes an empty slot for the user, who keeps it until it is [sealed](Self::seal) or
    /// [taken back](Self::take_back). One slot is never lent, so that writes do not wait for lent slots.
    pub(crate) fn poll_lent(
        &mut self,
        state: &RailState,
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
    pub(crate) fn seal(&mut self, state: &RailState, mut lent: FillingSlot<P::Slot>) {
        self.lent -= 1;
        if lent.filled() == 0 {
            self.path.release(lent.slot);
            return;
        }
        self.place_filling(state);
        self.sealed.extend(self.filling.take());
        self.place(&mut lent);
        self.sealed.push_back(lent);
    }

    /// Takes back a slot that the user does not send.
    pub(crate) fn take_back(&mut self, lent: FillingSlot<P::Slot>) {
        self.lent -= 1;
        self.path.release(lent.slot);
    }
}

/// What one of several rails does while its user says where the bytes of each chunk belong.
#[cfg(feature = "cli")]
impl<P: SendPath> FrameSender<P> {
    /// Ends the chunk that is being filled, and returns the number of bytes up to its end.
    pub(super) fn begin_placed(&mut self, state: &RailState) -> u64 {
        self.place_filling(state);
        match &mut self.part {
            SendPart::First(first) => {
                first.is_bulk = false;
                first.offset
            }
            SendPart::Only | SendPart::Other(_) => 0,
        }
    }

    /// Continues in order after `bytes` bytes.
    pub(super) fn end_placed(&mut self, bytes: u64) {
        if let SendPart::First(first) = &mut self.part {
            first.offset = bytes;
        }
    }

    /// Queues a slot that is filled with the bytes at its offset.
    pub(super) fn seal_placed(&mut self, state: &RailState, filling: FillingSlot<P::Slot>) {
        if matches!(self.part, SendPart::Other(_)) {
            state.count_queued();
        }
        self.sealed.push_back(filling);
    }
}

#[cfg(feature = "rdma")]
impl<P: SendPath> SharedSender<P> {
    /// Applies `keep` to the slots of the chunks that the user has handed to this rail: their pool is gone.
    pub(crate) fn leave_pool(&self, keep: impl Fn(&mut P::Slot)) {
        if let Some(handover) = &self.handover {
            handover.leave_pool(keep);
        }
    }
}

#[cfg(feature = "rdma")]
impl<P: SendPath> super::slots::Renewable for FrameSender<P> {
    type Path = P;
    type Slot = P::Slot;

    /// Keeps the chunks that the path has not been given.
    fn path_and_kept(&mut self) -> (&mut P, impl Iterator<Item = &mut P::Slot>) {
        let filling = self
            .filling
            .iter_mut()
            .filter(|filling| filling.rail() == 0);
        let chunks = self.sealed.iter_mut().chain(filling);
        (&mut self.path, chunks.map(|filling| &mut filling.slot))
    }
}

#[cfg(any(test, fuzzing))]
impl<P: SendPath> FrameSender<P> {
    /// Returns the length of the longest queue.
    pub(crate) fn longest_queue(&self) -> usize {
        self.sealed.len().max(self.path.in_flight())
    }
}
