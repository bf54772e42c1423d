//! The sending half of a stream: what its user writes becomes chunks in slots, and each chunk a frame.
//!
//! A half belongs to one user. Each call moves the data of the frame sender as far as it goes, so that no task stands
//! between the user and the data path; while the user does not call, the steward does.
//!
//! The frame sender takes a credit for a filled slot, seals the chunk in it, and gives it to the data path. It
//! has no task: the user's calls drive it, or the steward.

use std::{
    collections::VecDeque,
    io::{self, IoSlice},
    sync::{Arc, Mutex, MutexGuard, PoisonError, atomic::AtomicU64},
    task::{Context, Poll, Waker, ready},
};

use super::{
    frame::{Chain, HEADER_BYTES},
    handover::SendHandover,
    slots::{DataPath, FillSlots, FillingSlot, LentSlot, NO_SLOT, SendPath, Slot, SmallFrame},
    steward::{Attendance, Shared},
};
use crate::{Error, Fault, faults, transport::control::state::RailState};

/// The sending half of a stream over one kind of data path.
pub(crate) struct SendHalf<D: DataPath> {
    shared: Arc<Shared<D>>,
    /// The slot that [`FillSlots`] has lent. The steward does not see it.
    lent: Option<FillingSlot<<D::Send as SendPath>::Slot>>,
}

impl<D: DataPath> SendHalf<D> {
    /// Returns the one sending half of `shared`.
    pub(crate) fn new(shared: Arc<Shared<D>>) -> Self {
        Self { shared, lent: None }
    }

    fn state(&self) -> &RailState {
        &self.shared.state
    }

    fn sender(&self) -> Result<&SharedSender<D::Send>, Error> {
        self.shared
            .sender
            .as_ref()
            .ok_or(Error::Misuse("this stream only receives"))
    }

    /// Gives the slot that was lent back to the frame sender, where the steward and `poll_posted` find it.
    fn give_back(&mut self) {
        let Some(filling) = self.lent.take() else {
            return;
        };
        let Some(sender) = &self.shared.sender else {
            return;
        };
        sender.lock().give_back(filling);
    }

    /// Posts everything written so far. Ready when the data path has all of it: as over TCP, it may still be on its
    /// way. To wait for its completion would let a peer's answer overtake it: hyper takes an end of file that it reads
    /// while its flush is pending for a client that broke off.
    pub(crate) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        match self.poll_sent(cx) {
            Poll::Pending if self.is_all_posted() => Poll::Ready(Ok(())),
            sent => sent,
        }
    }

    /// Posts everything written so far. Ready when the data path has sent it.
    fn poll_sent(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.give_back();
        let _attended = self.shared.attend_send();
        let Ok(sender) = self.sender() else {
            return Poll::Ready(Ok(()));
        };
        let state = self.state();
        state.wait_to_send(cx);
        if let Some(error) = state.send_error() {
            return Poll::Ready(Err(error));
        }
        sender.lock().poll_posted(state, cx, true)
    }

    /// Sends FIN after the last byte. Ready when the peer's endpoint has acknowledged it.
    pub(crate) fn poll_shutdown(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        if let Poll::Ready(Ok(())) = self.state().poll_acked(cx) {
            return Poll::Ready(Ok(()));
        }
        if self.is_all_taken() {
            return Poll::Ready(Ok(()));
        }
        // The steward sends FIN after the last byte that it sees, and does not see the slot that is lent.
        self.give_back();
        self.state().begin_shutdown();
        ready!(self.poll_sent(cx))?;
        let sender = self.sender()?;
        sender.lock().finish(self.state());
        self.state().poll_acked(cx)
    }

    /// Returns true if the peer's reader has stopped, and had taken every byte that was written.
    fn is_all_taken(&self) -> bool {
        let (Some(taken), Some(sender)) = (self.state().stopped_after(), &self.shared.sender)
        else {
            return false;
        };
        let is_all_posted = sender.lock().is_all_posted(self.state());
        self.lent.is_none() && is_all_posted && self.state().stats().bytes_sent <= taken
    }

    fn is_all_posted(&self) -> bool {
        let sender = self.shared.sender.as_ref();
        sender.is_some_and(|sender| sender.lock().is_all_posted(self.state()))
    }

    /// Shuts down. Ready when the peer's sink has confirmed every byte.
    pub(crate) fn poll_finish(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        ready!(self.poll_shutdown(cx))?;
        faults::point("before-confirmation-received");
        self.state().poll_confirmed(cx)
    }

    /// Copies as much of `parts` as fits into the chunk being filled.
    pub(crate) fn poll_write(
        &mut self,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<Result<usize, Error>> {
        self.give_back();
        let _attended = self.shared.attend_send();
        if parts.iter().all(|part| part.is_empty()) {
            return Poll::Ready(Ok(0));
        }
        let state = self.state();
        let mut sender = self.sender()?.lock();
        let mut filling = ready!(sender.poll_room(state, cx))?;
        let count = filling.copy(parts);
        sender.give_back(filling);
        let _ = sender.poll_posted(state, cx, false)?;
        Poll::Ready(Ok(count))
    }

    /// Lends an empty slot to the user.
    pub(crate) fn poll_lent(&mut self, cx: &mut Context<'_>) -> Poll<Result<LentSlot<D>, Error>> {
        self.give_back();
        let _attended = self.shared.attend_send();
        let state = self.state();
        let filling = ready!(self.sender()?.lock().poll_lent(state, cx))?;
        Poll::Ready(Ok(LentSlot::new(filling, &self.shared)))
    }

    /// Queues a slot that the user filled, and posts it if possible. Otherwise the steward or the user's next call
    /// posts it.
    pub(crate) fn send(&mut self, lent: LentSlot<D>) -> Result<(), Error> {
        self.give_back();
        let _attended = self.shared.attend_send();
        self.state().writable()?;
        let filling = lent.into_filling(&self.shared).ok_or(FOREIGN_BUFFER)?;
        let mut sender = self.sender()?.lock();
        sender.seal(self.state(), filling);
        let mut cx = Context::from_waker(Waker::noop());
        match sender.poll_posted(self.state(), &mut cx, false) {
            Poll::Ready(result) => result,
            Poll::Pending => Ok(()),
        }
    }
}

/// What one of several rails does while its user says where the bytes of each chunk belong.
#[cfg(feature = "cli")]
impl<D: DataPath> SendHalf<D> {
    /// Ends the chunk that is being filled, and returns the number of bytes up to its end.
    pub(crate) fn begin_placed(&mut self) -> Result<u64, Error> {
        self.give_back();
        let mut sender = self.sender()?.lock();
        sender.place_filling(self.state());
        Ok(match &mut sender.part {
            SendPart::First(first) => {
                first.is_bulk = false;
                first.offset
            }
            SendPart::Only | SendPart::Other(_) => 0,
        })
    }

    /// Continues in order after `bytes` bytes.
    pub(crate) fn end_placed(&mut self, bytes: u64) {
        self.give_back();
        let Some(sender) = &self.shared.sender else {
            return;
        };
        if let SendPart::First(first) = &mut sender.lock().part {
            first.offset = bytes;
        }
    }

    /// Queues what the slot of [`poll_slot`](FillSlots::poll_slot) holds as the chunk at `offset`, and posts it as far
    /// as that goes at once.
    pub(crate) fn post_at(&mut self, offset: u64, cx: &mut Context<'_>) -> Result<(), Error> {
        let _attended = self.shared.attend_send();
        let Some(mut filling) = self.lent.take() else {
            return Ok(());
        };
        filling.set_offset(offset);
        let mut sender = self.sender()?.lock();
        if matches!(sender.part, SendPart::Other(_)) {
            self.state().count_queued();
        }
        sender.seal_placed(filling);
        match sender.poll_posted(self.state(), cx, false) {
            Poll::Ready(result) => result,
            Poll::Pending => Ok(()),
        }
    }
}

/// The error for a buffer that another stream has lent.
pub(crate) const FOREIGN_BUFFER: Error = Error::Misuse("this buffer belongs to another stream");

impl<D: DataPath> FillSlots for SendHalf<D> {
    fn poll_slot(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<&mut [u8]>> {
        if self.lent.as_ref().is_none_or(FillingSlot::is_full) {
            self.give_back();
            let _attended = self.shared.attend_send();
            let state = self.state();
            let filling = ready!(self.sender()?.lock().poll_room(state, cx))?;
            self.lent = Some(filling);
        }
        let filling = self.lent.as_mut().expect("it was put there just now");
        Poll::Ready(Ok(filling.room()))
    }

    fn advance(&mut self, count: usize) {
        if let Some(filling) = &mut self.lent {
            filling.fill(count);
        }
    }

    fn post(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.give_back();
        let _attended = self.shared.attend_send();
        let state = self.state();
        state.wait_to_send(cx);
        if let Some(error) = state.send_error() {
            return Poll::Ready(Err(error.into()));
        }
        self.sender()?
            .lock()
            .poll_posted(state, cx, false)
            .map_err(Into::into)
    }
}

impl<D: DataPath> Drop for SendHalf<D> {
    fn drop(&mut self) {
        self.give_back();
        self.shared.state.release_sender(self.is_all_posted());
    }
}

impl<D: DataPath> Shared<D> {
    /// Begins a poll of the sending half by its user. It is counted when the returned value is dropped.
    fn attend_send(&self) -> Option<Attendance<'_>> {
        let sender = self.sender.as_ref()?;
        Some(Attendance::new(&sender.polls, &self.attended))
    }
}

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
    /// The number of bytes in chunks so far.
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

    /// Says where the bytes of the next chunk belong.
    fn place(&mut self, chunk: &mut FillingSlot<S>) {
        if chunk.offset().is_none() {
            chunk.set_offset(self.offset);
            self.offset += chunk.filled() as u64;
            self.is_bulk = chunk.is_full();
        }
    }
}

/// What is done with a small frame that the path could carry without a credit, but not now.
#[derive(Clone, Copy, PartialEq, Eq)]
enum WhenNoRoom {
    /// It waits, because a frame with a credit takes much longer.
    Wait,
    /// It uses a credit.
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
            ..
        } = self;
        let Some(next) = sealed.front_mut().or(filling.as_mut()) else {
            return;
        };
        let count = next.unsent().len().min(max_bytes);
        if let Some(offset) = next.offset() {
            chain.skip_to(offset);
        }
        let payload = next.unsent_mut(count);
        let header = chain.seal(NO_SLOT, payload);
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
        if let Some(offset) = chunk.offset() {
            self.chain.skip_to(offset);
        }
        let filled = chunk.filled();
        let mut slot = chunk.slot;
        let header = self.chain.seal(target, slot.payload_mut(filled));
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

    /// Queues a slot of one of several rails, which is filled with the bytes at its offset.
    #[cfg(feature = "cli")]
    fn seal_placed(&mut self, filling: FillingSlot<P::Slot>) {
        self.sealed.push_back(filling);
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

#[cfg(feature = "rdma")]
impl<P: SendPath> SharedSender<P> {
    /// Does this to the slots of the chunks that the user has handed to this rail: their pool is gone.
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

#[cfg(test)]
mod tests {
    use std::thread;

    use futures::task::AtomicWaker;
    use proptest::prelude::*;

    use super::*;
    use crate::{
        Direction,
        transport::{
            control::{
                message::Message,
                noise::Role,
                seal::{Cipher, Guard, StreamSeal, Way},
                state::State,
            },
            data::{frame::Header, tcp::TcpReceive},
        },
    };

    /// A slot in heap memory.
    struct Memory(Box<[u8]>);

    impl Slot for Memory {
        fn index(&self) -> u32 {
            0
        }

        fn bytes(&self) -> &[u8] {
            &self.0
        }

        fn bytes_mut(&mut self) -> &mut [u8] {
            &mut self.0
        }
    }

    /// A path that always has a slot.
    struct Free;

    impl SendPath for Free {
        type Slot = Memory;

        fn acquire(&mut self) -> Option<Memory> {
            Some(Memory(vec![0; HEADER_BYTES + 8192].into()))
        }

        fn acquire_to_lend(&mut self) -> Option<Memory> {
            self.acquire()
        }

        fn release(&mut self, _slot: Memory) {}

        fn post(&mut self, _slot: Memory, _frame_bytes: usize, _target: u32) {}

        fn post_small(&mut self, _header: &Header, _payload: &[u8]) {}

        fn max_slots(&self) -> usize {
            2
        }

        fn in_flight(&self) -> usize {
            0
        }

        fn poll_complete(
            &mut self,
            _cx: &mut Context<'_>,
            _next_credit: impl FnMut() -> Option<u32>,
        ) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    struct FreePath;

    impl DataPath for FreePath {
        type Send = Free;
        type Receive = TcpReceive;
    }

    /// The end is not due while bytes are in a slot that the steward does not see: it would send FIN in front of them.
    #[test]
    fn the_end_is_due_only_when_the_steward_sees_the_last_bytes() {
        let state = RailState::new(&State::new("hostB".to_owned(), Direction::Send, 2), 0);
        let shared: Arc<Shared<FreePath>> = Arc::new(Shared {
            state,
            sender: Some(SharedSender::new(
                Free,
                Chain::new(Guard::of_seed(7)),
                SendPart::Only,
                faults::Faults::default(),
            )),
            receiver: None,
            attended: AtomicWaker::new(),
        });
        let mut half = SendHalf::new(Arc::clone(&shared));
        let mut cx = Context::from_waker(Waker::noop());
        assert!(half.poll_slot(&mut cx).is_ready());
        half.advance(5);
        let sender = shared.sender.as_ref().unwrap();
        thread::scope(|scope| {
            let held = sender.lock();
            scope.spawn(|| {
                let mut cx = Context::from_waker(Waker::noop());
                assert!(half.poll_shutdown(&mut cx).is_pending());
            });
            for _ in 0..10_000 {
                assert!(!shared.state.is_fin_due(), "the steward would send FIN");
                thread::yield_now();
            }
            drop(held);
        });
        assert!(shared.state.is_fin_due());
        assert!(
            !sender.lock().is_all_posted(&shared.state),
            "without a credit"
        );
    }

    /// The payload of a slot of [`Recording`].
    const CHUNK_BYTES: usize = 24;

    /// The number of slots of the sending pool, and of the peer's.
    const SLOTS: usize = 4;

    /// A path that keeps every frame which it is given, and makes progress as a test says.
    struct Recording {
        given: Vec<(Header, Vec<u8>)>,
        free: usize,
        in_flight: usize,
        /// The peer's slots of the frames that have arrived: they can be granted again.
        read: Vec<u32>,
        /// The number of small frames for which there is room; none if small frames need a credit.
        small: Option<usize>,
    }

    impl SendPath for Recording {
        type Slot = Memory;

        fn acquire(&mut self) -> Option<Memory> {
            self.free = self.free.checked_sub(1)?;
            Some(Memory(vec![0; HEADER_BYTES + CHUNK_BYTES].into()))
        }

        fn acquire_to_lend(&mut self) -> Option<Memory> {
            self.acquire()
        }

        fn release(&mut self, _slot: Memory) {
            self.free += 1;
        }

        fn post(&mut self, slot: Memory, frame_bytes: usize, target: u32) {
            let header = slot.bytes().first_chunk().expect("a header");
            let header = Header::decode(header).expect("a whole header");
            assert_eq!((header.slot, header.frame_bytes()), (target, frame_bytes));
            let payload = slot.payload(header.length as usize).to_vec();
            self.given.push((header, payload));
            self.read.push(target);
            self.in_flight += 1;
        }

        fn post_small(&mut self, header: &Header, payload: &[u8]) {
            assert_eq!(header.slot, NO_SLOT);
            self.given.push((*header, payload.to_vec()));
            self.small = self.small.map(|room| room - 1);
        }

        fn small_frame(&mut self, length: usize) -> SmallFrame {
            match self.small {
                Some(_) if length > 2 * CHUNK_BYTES / 3 => SmallFrame::NeedsCredit,
                Some(0) => SmallFrame::Later,
                Some(_) => SmallFrame::WithoutCredit { max_bytes: 5 },
                None => SmallFrame::NeedsCredit,
            }
        }

        fn max_slots(&self) -> usize {
            SLOTS
        }

        fn in_flight(&self) -> usize {
            self.in_flight
        }

        fn poll_complete(
            &mut self,
            _cx: &mut Context<'_>,
            _next_credit: impl FnMut() -> Option<u32>,
        ) -> Poll<io::Result<()>> {
            if self.in_flight == 0 {
                Poll::Ready(Ok(()))
            } else {
                Poll::Pending
            }
        }
    }

    struct RecordingPath;

    impl DataPath for RecordingPath {
        type Send = Recording;
        type Receive = TcpReceive;
    }

    /// The sending half of an encrypted stream over [`Recording`], and what was written to it.
    struct Recorded {
        half: SendHalf<RecordingPath>,
        lent: Vec<LentSlot<RecordingPath>>,
        written: Vec<u8>,
    }

    impl Recorded {
        fn new(cipher: Option<Cipher>) -> Self {
            let state = RailState::new(&State::new("hostB".to_owned(), Direction::Send, 2), 0);
            state.set_peer_slots(SLOTS);
            let path = Recording {
                given: Vec::new(),
                free: SLOTS,
                in_flight: 0,
                read: (0..).take(SLOTS).collect(),
                small: None,
            };
            let guard = StreamSeal::of_seed(7, Role::Dialer, cipher).guard(Way::Out);
            let sender = SharedSender::new(
                path,
                Chain::new(guard),
                SendPart::Only,
                faults::Faults::default(),
            );
            let half = SendHalf::new(Arc::new(Shared {
                state,
                sender: Some(sender),
                receiver: None,
                attended: AtomicWaker::new(),
            }));
            Self {
                half,
                lent: Vec::new(),
                written: Vec::new(),
            }
        }

        fn sender(&self) -> MutexGuard<'_, FrameSender<Recording>> {
            self.half.sender().expect("it sends").lock()
        }

        /// Does one of the things that a user, the steward, the network or the peer does. `count` says how much.
        fn act(&mut self, act: u8, count: usize) {
            let mut cx = Context::from_waker(Waker::noop());
            let next = |written: &Vec<u8>, count| {
                let bytes = written.len()..written.len() + count;
                bytes.map(|at| at.to_le_bytes()[0]).collect::<Vec<_>>()
            };
            match act {
                0 => {
                    let bytes = next(&self.written, count + 1);
                    let parts = [IoSlice::new(&bytes)];
                    if let Poll::Ready(written) = self.half.poll_write(&mut cx, &parts) {
                        self.written.extend(&bytes[..written.unwrap()]);
                    }
                }
                1 => {
                    if let Poll::Ready(room) = self.half.poll_slot(&mut cx) {
                        let room = room.unwrap();
                        let bytes = next(&self.written, count.min(room.len()));
                        room[..bytes.len()].copy_from_slice(&bytes);
                        self.half.advance(bytes.len());
                        self.written.extend(&bytes);
                    }
                }
                2 => drop(self.half.post(&mut cx)),
                3 => drop(self.half.poll_flush(&mut cx)),
                4 => {
                    if let Poll::Ready(lent) = self.half.poll_lent(&mut cx) {
                        self.lent.push(lent.unwrap());
                    }
                }
                5 => {
                    if let Some(mut lent) = self.lent.pop() {
                        let bytes = next(&self.written, count);
                        let filling = lent.filling_mut();
                        filling.room()[..count].copy_from_slice(&bytes);
                        filling.fill(count);
                        self.half.send(lent).unwrap();
                        self.written.extend(&bytes);
                    }
                }
                6 => drop(self.lent.pop()),
                7 => self.steward(),
                8 => self.grant(count),
                9 => self.complete(count),
                _ => self.sender().path.small = count.checked_sub(10),
            }
        }

        fn steward(&self) {
            let mut cx = Context::from_waker(Waker::noop());
            let sender = self.half.shared.sender.as_ref().expect("it sends");
            sender.drive_unattended(&self.half.shared.state, &mut cx);
        }

        /// The peer grants the slots that it has read, as many as these.
        fn grant(&self, count: usize) {
            let mut sender = self.sender();
            let count = count.min(sender.path.read.len());
            let slots = sender.path.read.drain(..count).collect();
            self.half.shared.state.receive(Message::Credit(slots));
        }

        /// Frames in flight, as many as these, have been sent.
        fn complete(&self, count: usize) {
            let mut sender = self.sender();
            let count = count.min(sender.path.in_flight);
            sender.path.in_flight -= count;
            sender.path.free += count;
        }

        /// Sends everything that was written.
        fn end(&mut self) {
            self.lent.clear();
            self.sender().path.small = None;
            for _ in 0..2 * self.written.len() + 10 {
                self.act(8, SLOTS);
                self.act(9, SLOTS);
                self.act(3, 0);
            }
        }
    }

    proptest! {
        /// Whatever the user, the steward, the network and the peer do, the path is given every offset once, and what it
        /// is given opens in order: no offset is sealed twice, and no sealed byte is changed, split or joined.
        #[test]
        fn every_offset_is_sealed_once(acts in prop::collection::vec((0..11_u8, 0..CHUNK_BYTES), 0..300)) {
            for cipher in [None, Some(Cipher::Aes256Gcm), Some(Cipher::ChaCha20Poly1305)] {
                let mut recorded = Recorded::new(cipher);
                for (act, count) in &acts {
                    recorded.act(*act, *count);
                }
                recorded.end();
                let given = std::mem::take(&mut recorded.sender().path.given);
                let guard = StreamSeal::of_seed(7, Role::Acceptor, cipher).guard(Way::In);
                let (mut there, mut opened) = (Chain::new(guard), Vec::new());
                for (header, mut payload) in given {
                    prop_assert_eq!(header.offset, opened.len() as u64);
                    prop_assert_eq!(there.open(&header, &mut payload), Ok(()));
                    opened.extend(payload);
                }
                prop_assert_eq!(&opened, &recorded.written);
                prop_assert_eq!(there.digest(), recorded.sender().chain.digest());
            }
        }
    }
}
