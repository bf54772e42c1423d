//! The receiving half of a stream: frames become verified chunks, which its user reads, and credits for their slots.
//!
//! A half belongs to one user. Each read moves the data of the frame receiver, so that a chunk is read from the data
//! path, verified and handed out while it is in the processor's cache; while the user does not read, the steward
//! verifies.
//!
//! The frame receiver verifies each frame before its payload is delivered, and grants the slots of chunks that were
//! read. It has no task: the user's calls drive it, or the steward.

use std::{
    collections::VecDeque,
    io,
    sync::{Arc, Mutex, MutexGuard, PoisonError, atomic::AtomicU64},
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use tokio::io::ReadBuf;

use super::{
    frame::{Chain, Damage, Header, credit_batch},
    handover::ReceiveHandover,
    slots::{
        ChunkLender, DataPath, NO_SLOT, Readable, ReceivePath, ReturnedChunks, Slot, violation,
    },
    steward::{Attendance, Shared},
};
use crate::{
    Error, Fault, faults,
    transport::control::state::{RailState, StreamFault, WrongEnd},
};

/// The receiving half of a stream over one kind of data path.
pub(crate) struct RecvHalf<D: DataPath> {
    shared: Arc<Shared<D>>,
    /// The chunk that the user is reading.
    current: Option<Readable<<D::Receive as ReceivePath>::Slot>>,
    /// The number of bytes that the user has taken.
    taken: u64,
}

impl<D: DataPath> RecvHalf<D> {
    /// Returns the one receiving half of `shared`.
    pub(crate) fn new(shared: Arc<Shared<D>>) -> Self {
        Self {
            shared,
            current: None,
            taken: 0,
        }
    }

    /// Grants the peer all slots, at the start of the stream.
    pub(crate) fn grant_all(&self) {
        if let Some(receiver) = &self.shared.receiver {
            receiver.grant_all(&self.shared.state);
        }
    }

    /// Returns the unread rest of the current chunk; empty at the end of the stream.
    pub(crate) fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<Result<&[u8], Error>> {
        if self.current.is_none() {
            self.current = ready!(self.poll_next(cx))?;
        }
        Poll::Ready(Ok(self.current.as_ref().map_or(&[], Readable::rest)))
    }

    /// Takes the next chunk; `None` at the end of the stream.
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<ReadableOf<D>>, Error>> {
        let Some(receiver) = &self.shared.receiver else {
            return Poll::Ready(Ok(None));
        };
        let state = &self.shared.state;
        let _attended = Attendance::new(&receiver.polls, &self.shared.attended);
        // The waker is registered before the state is checked, so that no change is missed.
        state.wait_to_receive(cx);
        receiver.lock().poll_next(state, cx)
    }

    /// Takes the unread rest of the current chunk, to keep; `None` at the end of the stream.
    pub(crate) fn poll_chunk(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Option<Bytes>, Error>> {
        ready!(self.poll_fill(cx))?;
        let (Some(chunk), Some(receiver)) = (self.current.take(), &self.shared.receiver) else {
            return Poll::Ready(Ok(None));
        };
        let bytes = receiver.lock().lend(&self.shared.state, chunk);
        self.taken += bytes.len() as u64;
        Poll::Ready(Ok(Some(bytes)))
    }

    /// Consumes `count` bytes of what [`poll_fill`](Self::poll_fill) returned.
    pub(crate) fn take(&mut self, count: usize) {
        let Some(current) = &mut self.current else {
            return;
        };
        self.taken += count as u64;
        if !current.take(count) {
            return;
        }
        let Some(done) = self.current.take() else {
            return;
        };
        if let Some(receiver) = &self.shared.receiver {
            receiver.lock().release(&self.shared.state, done);
        }
    }

    /// Copies the rest of the current chunk into `buf`, as far as there is room.
    pub(crate) fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<Result<(), Error>> {
        if buf.remaining() > 0 {
            let rest = ready!(self.poll_fill(cx))?;
            let count = rest.len().min(buf.remaining());
            buf.put_slice(&rest[..count]);
            self.take(count);
        }
        Poll::Ready(Ok(()))
    }

    /// Sends STOP: the user needs no more bytes, and this is no failure.
    pub(crate) fn stop(&self) {
        self.shared.state.stop(self.taken);
    }

    /// Confirms to the peer that the sink has taken every byte.
    pub(crate) fn confirm(&self) -> Result<(), Error> {
        faults::point("before-confirmation-sent");
        self.shared.state.confirm()
    }
}

/// What one of several rails does while its user takes the chunks of each rail by itself.
#[cfg(feature = "cli")]
impl<D: DataPath> RecvHalf<D> {
    /// Returns the number of bytes that were taken before.
    pub(crate) fn begin_placed(&mut self) -> u64 {
        self.set_placed(true);
        self.taken
    }

    /// Continues in order after `bytes` bytes.
    pub(crate) fn end_placed(&mut self, bytes: u64) {
        self.taken = bytes;
        self.set_placed(false);
    }

    fn set_placed(&mut self, placed: bool) {
        let Some(receiver) = &self.shared.receiver else {
            return;
        };
        if let ReceivePart::First {
            next, is_placed, ..
        } = &mut receiver.lock().part
        {
            *is_placed = placed;
            *next = (*next).max(self.taken);
        }
    }

    /// Returns the unread rest of the next chunk of this rail, and the number of bytes of the direction before it. It is
    /// empty at the end of the stream.
    pub(crate) fn poll_placed(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(u64, &[u8]), Error>> {
        ready!(self.poll_fill(cx))?;
        let current = self.current.as_ref();
        Poll::Ready(Ok(
            current.map_or((0, &[]), |chunk| (chunk.offset(), chunk.rest()))
        ))
    }
}

type ReadableOf<D> = Readable<<<D as DataPath>::Receive as ReceivePath>::Slot>;

impl<D: DataPath> Drop for RecvHalf<D> {
    fn drop(&mut self) {
        // The frame receiver stays locked, so that the steward adds no chunk to those that were left unread.
        let receiver = self.shared.receiver.as_ref().map(SharedReceiver::lock);
        let is_queued = receiver
            .as_ref()
            .is_some_and(|receiver| receiver.has_ready());
        let unread = self.current.is_some() || is_queued;
        self.shared.state.release_receiver(self.taken, unread);
    }
}

/// The frame receiver, as the receiving half and the steward share it.
pub(crate) struct SharedReceiver<P: ReceivePath> {
    receiver: Mutex<FrameReceiver<P>>,
    /// The number of polls by the user, which tells the steward whether the user drives the frame receiver.
    pub(crate) polls: AtomicU64,
    /// The lent chunks that were dropped.
    pub(crate) returns: Arc<ReturnedChunks<P::Slot>>,
    /// What this rail hands to the user, if it is not the first one.
    pub(super) handover: Option<Arc<ReceiveHandover<P::Slot>>>,
}

/// The chunks that arrive, and the credits for their slots.
pub(crate) struct FrameReceiver<P: ReceivePath> {
    pub(super) path: P,
    pub(super) chain: Chain,
    /// Verified chunks that the reader has not taken yet.
    pub(super) ready: VecDeque<Readable<P::Slot>>,
    /// By slot: true if the peer may write it.
    pub(super) granted: Vec<bool>,
    /// The number of slots that the peer may write.
    pub(super) outstanding: usize,
    /// Slots that were read and are not granted again yet.
    pub(super) freed: Vec<u32>,
    /// The number of chunks that arrived and whose slot is not released.
    pub(super) unread: usize,
    /// Slots of a new pool that are not granted while chunks of the old pool are unread, so that the memory in use does
    /// not grow.
    pub(super) withheld: Vec<u32>,
    lender: ChunkLender<P::Slot>,
    broken: bool,
    pub(super) faults: faults::Faults,
    part: ReceivePart<P::Slot>,
}

/// The part of a frame receiver in a stream.
pub(crate) enum ReceivePart<S> {
    /// The stream has one rail.
    Only,
    /// The user's rail of several.
    First {
        /// The rails from the second one on.
        others: Vec<Arc<ReceiveHandover<S>>>,
        /// The number of bytes in the chunks that the user has had.
        next: u64,
        /// The user takes the chunks of each rail by itself, in any order.
        is_placed: bool,
    },
    /// Another rail, which gives its chunks to the user.
    Other(Arc<ReceiveHandover<S>>),
}

impl<S> ReceivePart<S> {
    /// The part of the user's rail beside these others.
    pub(crate) fn first(others: Vec<Arc<ReceiveHandover<S>>>) -> Self {
        if others.is_empty() {
            return Self::Only;
        }
        Self::First {
            others,
            next: 0,
            is_placed: false,
        }
    }
}

impl<P: ReceivePath> SharedReceiver<P> {
    /// A frame receiver with `depth` slots over `path`, whose chunks make up `chain`.
    pub(crate) fn new(
        path: P,
        depth: u32,
        chain: Chain,
        part: ReceivePart<P::Slot>,
        faults: faults::Faults,
    ) -> Self {
        let handover = match &part {
            ReceivePart::Other(handover) => Some(Arc::clone(handover)),
            ReceivePart::Only | ReceivePart::First { .. } => None,
        };
        let receiver = FrameReceiver {
            path,
            chain,
            ready: VecDeque::with_capacity(depth as usize),
            granted: vec![false; depth as usize],
            outstanding: 0,
            freed: (0..depth).collect(),
            unread: 0,
            withheld: Vec::new(),
            lender: ChunkLender::new(depth),
            broken: false,
            faults,
            part,
        };
        Self {
            polls: AtomicU64::new(0),
            handover,
            returns: receiver.lender.returns(),
            receiver: Mutex::new(receiver),
        }
    }

    /// Locks the frame receiver. Only the user and the steward contend for it.
    pub(crate) fn lock(&self) -> MutexGuard<'_, FrameReceiver<P>> {
        self.receiver.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Grants every slot, at the start of the stream, or when the pool comes later.
    pub(crate) fn grant_all(&self, state: &RailState) {
        self.lock().grant(state);
        // A steward that has looked for frames before the grant had nothing to wait for.
        self.returns.waker.wake();
    }

    /// Drives the frame receiver in place of the user, and wakes the user after progress.
    pub(crate) fn drive_unattended(&self, state: &RailState, cx: &mut Context<'_>) {
        if let Some(handover) = &self.handover {
            return self.drive_rail(handover, state, cx);
        }
        let mut receiver = self.lock();
        let before = (receiver.ready.len(), state.receives());
        receiver.receive_frames(state, cx, usize::MAX);
        if before != (receiver.ready.len(), state.receives()) {
            state.wake_receiver();
        }
    }

    /// Takes back what the user has read, and hands over each chunk as soon as it is verified.
    fn drive_rail(
        &self,
        handover: &ReceiveHandover<P::Slot>,
        state: &RailState,
        cx: &mut Context<'_>,
    ) {
        let mut receiver = self.lock();
        let mut has_progress = false;
        loop {
            for chunk in handover.take_read() {
                receiver.release(state, chunk);
            }
            receiver.receive_frames(state, cx, 1);
            if !handover.deliver(&mut receiver.ready) {
                break;
            }
            has_progress = true;
            state.wake_receiving_user();
        }
        drop(receiver);
        if has_progress {
            // A loop of its own may drive the half of this rail.
            state.wake_receiver();
        }
    }
}

impl<P: ReceivePath> FrameReceiver<P> {
    /// Takes the next verified chunk; `None` at the end of the stream.
    ///
    /// The chunk and the end are looked for under one lock. Otherwise the steward could verify the last chunk and
    /// complete the stream in between, and the user would get the end in place of the chunk.
    pub(crate) fn poll_next(
        &mut self,
        state: &RailState,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Option<Readable<P::Slot>>, Error>> {
        if let Some(chunk) = self.next(state, cx) {
            return Poll::Ready(Ok(Some(chunk)));
        }
        let taken = match &self.part {
            ReceivePart::First {
                next,
                is_placed: false,
                ..
            } => *next,
            _ => u64::MAX,
        };
        if state.at_end(taken)? {
            Poll::Ready(Ok(None))
        } else {
            Poll::Pending
        }
    }

    /// Takes the next verified chunk: one that waits, or the next that arrives.
    pub(crate) fn next(
        &mut self,
        state: &RailState,
        cx: &mut Context<'_>,
    ) -> Option<Readable<P::Slot>> {
        self.take_returned(state);
        if let Some(chunk) = self.next_of_others() {
            return Some(chunk);
        }
        if self.ready.is_empty() {
            if !self.broken {
                self.path.spin(|| state.expects_more());
            }
            self.receive_frames(state, cx, 1);
        }
        let chunk = self.ready.front()?;
        if let ReceivePart::First {
            next,
            is_placed: false,
            ..
        } = &mut self.part
        {
            if chunk.offset() != *next {
                return None;
            }
            *next = chunk.end_offset();
        }
        self.ready.pop_front()
    }

    /// Takes the next chunk if another rail has verified it, or if this rail has given it to its user's queue.
    fn next_of_others(&mut self) -> Option<Readable<P::Slot>> {
        match &mut self.part {
            ReceivePart::Only
            | ReceivePart::First {
                is_placed: true, ..
            } => None,
            ReceivePart::Other(handover) => handover.take(|_| true),
            ReceivePart::First { others, next, .. } => {
                let take = |(index, other): (usize, &Arc<ReceiveHandover<_>>)| {
                    let mut chunk = other.take(|chunk| chunk.offset() == *next)?;
                    chunk.rail = index + 1;
                    Some(chunk)
                };
                let chunk = others.iter().enumerate().find_map(take)?;
                *next = chunk.end_offset();
                Some(chunk)
            }
        }
    }

    /// Returns the unread rest of `chunk` as bytes that the user may keep: see [`ChunkLender::lend`].
    pub(crate) fn lend(&mut self, state: &RailState, chunk: Readable<P::Slot>) -> Bytes {
        let (bytes, chunk) = self.lender.lend(chunk);
        if let Some(chunk) = chunk {
            self.release(state, chunk);
        }
        bytes
    }

    /// Releases the lent chunks that were dropped.
    pub(crate) fn take_returned(&mut self, state: &RailState) {
        for chunk in self.lender.take_returned() {
            self.release(state, chunk);
        }
    }

    /// Returns true if verified chunks wait for the reader.
    pub(crate) fn has_ready(&self) -> bool {
        let has_other = match &self.part {
            ReceivePart::First { others, .. } => others.iter().any(|other| other.has_chunks()),
            ReceivePart::Only | ReceivePart::Other(_) => false,
        };
        has_other || !self.ready.is_empty()
    }

    /// Takes frames from the path until `enough` chunks are ready, or no more have arrived. Damage and broken rules
    /// fail the stream before the payload is delivered.
    pub(super) fn receive_frames(
        &mut self,
        state: &RailState,
        cx: &mut Context<'_>,
        enough: usize,
    ) {
        self.path.follow();
        loop {
            if let Err(fault) = self.check_end(state) {
                self.broken = true;
                state.fail(StreamFault::Found(fault));
            }
            if self.broken || self.ready.len() >= enough || !state.receives() {
                return;
            }
            if self.faults.loses_completions() {
                return;
            }
            match self.path.poll_frame(cx) {
                Poll::Pending => {
                    // A part of a frame may have arrived after the end was announced.
                    if let Err(fault) = self.check_end(state) {
                        self.broken = true;
                        state.fail(StreamFault::Found(fault));
                    }
                    return;
                }
                Poll::Ready(Ok((slot, header))) => {
                    if let Err(fault) = self.accept_frame(state, slot, header) {
                        self.broken = true;
                        state.fail(StreamFault::Found(fault));
                    }
                }
                Poll::Ready(Err(error)) => {
                    self.broken = true;
                    connection_lost(state, error);
                }
            }
        }
    }

    /// Verifies one frame and queues its payload.
    fn accept_frame(
        &mut self,
        state: &RailState,
        mut slot: P::Slot,
        header: Header,
    ) -> Result<(), Fault> {
        let index = slot.index();
        if index != NO_SLOT {
            let granted = self
                .granted
                .get_mut(index as usize)
                .is_some_and(std::mem::take);
            if !granted {
                return Err(Fault::Protocol("a chunk for a slot that was not granted"));
            }
            self.outstanding -= 1;
            self.unread += 1;
        }
        if header.slot != index {
            return Err(Fault::Protocol("a chunk that names another slot"));
        }
        let length = header.length as usize;
        if self.faults.ignores_digest() {
            self.chain.advance(&header);
        } else {
            let opened = self.chain.open(&header, slot.payload_mut(length));
            opened.map_err(|damage| Fault::Corrupt(damage.text()))?;
        }
        state.count_received(length as u64, self.chain.digest());
        faults::point("first-chunk-received");
        if self.faults.reuses_slots_early() && index != NO_SLOT {
            self.freed.push(index);
            self.grant(state);
        }
        // A chunk waits here only while the reader is away, so a reader that keeps up never copies.
        let joined = |last: &mut Readable<_>| last.join(slot.payload(length), header.offset);
        let is_joined = self.ready.back_mut().is_some_and(joined);
        let readable = Readable::new(slot, length, header.offset);
        if is_joined {
            self.release(state, readable);
        } else {
            self.ready.push_back(readable);
        }
        self.grant_due(state);
        Ok(())
    }

    /// Compares what has arrived with the FIN, if the FIN has arrived.
    fn check_end(&self, state: &RailState) -> Result<(), Fault> {
        let checked = state.check_end(self.path.arriving_end());
        checked.map_err(|wrong| {
            let damage = match wrong {
                WrongEnd::Excess => Damage::Excess,
                WrongEnd::Digest => Damage::Whole,
            };
            Fault::Corrupt(damage.text())
        })
    }

    /// Takes a slot back from the reader, and grants it again: at once if the peer has few slots, otherwise together
    /// with others, so that not every chunk costs a control message.
    pub(crate) fn release(&mut self, state: &RailState, done: Readable<P::Slot>) {
        if let (ReceivePart::First { others, .. }, rail @ 1..) = (&self.part, done.rail) {
            others[rail - 1].give_back(done);
            return;
        }
        let slot = done.into_slot();
        let index = slot.index();
        if index == NO_SLOT {
            self.path.release(slot);
            return;
        }
        self.unread -= 1;
        let is_free = self.path.release(slot);
        if self.faults.skips_credits() || self.faults.reuses_slots_early() || !self.path.can_grant()
        {
            return;
        }
        let Some(index) = is_free.then_some(index).or_else(|| self.withheld.pop()) else {
            return;
        };
        self.freed.push(index);
        self.grant_due(state);
    }

    /// Grants the free slots if they are enough for a message, or if the peer has few slots.
    fn grant_due(&mut self, state: &RailState) {
        let batch = credit_batch(self.granted.len());
        let is_due = self.freed.len() >= batch || self.outstanding < batch;
        if is_due && self.path.can_grant() && !self.faults.skips_credits() {
            self.grant(state);
        }
    }

    pub(super) fn grant(&mut self, state: &RailState) {
        if self.freed.is_empty() || !self.path.has_pool() {
            return;
        }
        for index in &self.freed {
            self.granted[*index as usize] = true;
            self.path.post_receive(*index);
        }
        self.outstanding += self.freed.len();
        if let Err(fault) = state.grant(&mut self.freed, self.granted.len()) {
            self.broken = true;
            state.fail(StreamFault::Found(fault));
        }
    }
}

/// Records the loss of the data connection. A broken rule is a fault of its own; any other error may be the consequence
/// of a cause that the control connection tells.
fn connection_lost(state: &RailState, error: io::Error) {
    match violation(&error) {
        Some(rule) => state.fail(StreamFault::Found(Fault::Corrupt(rule))),
        None => state.suspect(Fault::Data(Arc::new(error))),
    }
}

#[cfg(feature = "rdma")]
impl<P: ReceivePath> SharedReceiver<P> {
    /// Applies `keep` to the slots of the chunks that this rail has handed to the user: their pool is gone.
    pub(crate) fn leave_pool(&self, keep: impl Fn(&mut P::Slot)) {
        if let Some(handover) = &self.handover {
            handover.leave_pool(keep);
        }
    }
}

#[cfg(feature = "rdma")]
impl<P: ReceivePath> super::slots::Renewable for FrameReceiver<P> {
    type Path = P;
    type Slot = P::Slot;

    /// Keeps the chunks that the reader has not taken.
    fn path_and_kept(&mut self) -> (&mut P, impl Iterator<Item = &mut P::Slot>) {
        let chunks = self.ready.iter_mut();
        (&mut self.path, chunks.map(|chunk| &mut chunk.slot))
    }
}

/// What the renewal of a link asks.
#[cfg(feature = "rdma")]
impl<P: ReceivePath> FrameReceiver<P> {
    /// Takes every frame that has arrived. The user of another rail's chunks gets them at once: the peer may leave before
    /// there is a new link.
    pub(crate) fn take_all(&mut self, state: &RailState, cx: &mut Context<'_>) {
        self.receive_frames(state, cx, usize::MAX);
        if let ReceivePart::Other(handover) = &self.part {
            if handover.deliver(&mut self.ready) {
                state.wake_receiving_user();
            }
        }
    }

    /// Takes the frames that have arrived without a report of the device.
    pub(crate) fn take_unreported(&mut self, state: &RailState, cx: &mut Context<'_>) {
        self.faults.find_completions();
        self.take_all(state, cx);
    }

    /// Returns the number of bytes that have arrived and been verified.
    pub(crate) fn verified(&self) -> u64 {
        self.chain.offset()
    }

    /// Starts again with an empty pool, and grants its slots to the peer. For each chunk that is still unread, one slot
    /// of the new pool is withheld. With `keeps_one`, one slot is granted all the same, up to two pools of unread
    /// chunks: the peer may have to send a frame again that had no slot before.
    pub(crate) fn restart(&mut self, state: &RailState, keeps_one: bool) {
        self.granted.fill(false);
        self.outstanding = 0;
        let depth = u32::try_from(self.granted.len()).unwrap_or(u32::MAX);
        let unread = u32::try_from(self.unread).unwrap_or(u32::MAX);
        let is_one_granted = keeps_one && unread < 2 * depth;
        let unread = unread.min(depth - u32::from(is_one_granted));
        self.freed = (0..depth - unread).collect();
        self.withheld = (depth - unread..depth).collect();
        self.grant(state);
    }
}

#[cfg(any(test, fuzzing))]
impl<P: ReceivePath> FrameReceiver<P> {
    /// Returns the length of the longest queue, and the largest count of slots.
    pub(crate) fn longest_queue(&self) -> usize {
        let queues = [self.ready.len(), self.freed.len(), self.withheld.len()];
        let counts = [self.outstanding, self.unread];
        queues.into_iter().chain(counts).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc, task::Waker, thread, time::Duration};

    use futures::task::AtomicWaker;
    use tokio::time::{sleep, timeout};

    use super::{RecvHalf, *};
    use crate::{
        Direction,
        transport::{
            control::{
                message::Message,
                seal::{Guard, Mark},
                state::State,
            },
            data::{
                frame::HEADER_BYTES,
                slots::DataPath,
                steward::{self, Shared},
                tcp::TcpSend,
            },
        },
    };

    /// The number of slots of the pool, and the payload of a slot in bytes.
    const DEPTH: u32 = 2;
    const CHUNK: usize = 8192;

    const SEED: u8 = 7;

    /// A slot in heap memory.
    struct Memory {
        index: u32,
        bytes: Box<[u8]>,
    }

    impl Slot for Memory {
        fn index(&self) -> u32 {
            self.index
        }

        fn bytes(&self) -> &[u8] {
            &self.bytes
        }

        fn bytes_mut(&mut self) -> &mut [u8] {
            &mut self.bytes
        }
    }

    /// A peer that sends one byte in each frame, as fast as the frames are taken: the first frame into slot 0, and all
    /// others into slot 1, whatever it is granted.
    struct Flood {
        chain: Chain,
        next: u32,
        /// The header that the peer leaves in the slot after this end has read the right one.
        left_in_slot: Option<Header>,
    }

    impl Flood {
        fn new() -> Self {
            Self {
                chain: Chain::new(Guard::of_seed(SEED)),
                next: 0,
                left_in_slot: None,
            }
        }
    }

    impl ReceivePath for Flood {
        type Slot = Memory;

        fn poll_frame(&mut self, _cx: &mut Context<'_>) -> Poll<io::Result<(Memory, Header)>> {
            let mut payload = [1];
            let header = self.chain.seal(self.next, &mut payload);
            let mut bytes = vec![0; HEADER_BYTES + CHUNK].into_boxed_slice();
            bytes[..HEADER_BYTES].copy_from_slice(&self.left_in_slot.unwrap_or(header).encode());
            bytes[HEADER_BYTES..=HEADER_BYTES].copy_from_slice(&payload);
            let index = std::mem::replace(&mut self.next, 1);
            Poll::Ready(Ok((Memory { index, bytes }, header)))
        }

        fn release(&mut self, _slot: Memory) -> bool {
            true
        }

        fn can_grant(&self) -> bool {
            true
        }

        fn post_receive(&mut self, _index: u32) {}
    }

    fn state() -> RailState {
        RailState::new(&State::new("hostB".to_owned(), Direction::Receive, 2), 0)
    }

    fn credits(state: &RailState) -> usize {
        let messages = state.outgoing().messages;
        let slots = messages.iter().map(|message| match message {
            Message::Credit(slots) => slots.len(),
            _ => 0,
        });
        slots.sum()
    }

    #[test]
    fn a_peer_that_ignores_credits_cannot_fill_the_outbox() {
        let state = state();
        let receiver = SharedReceiver::new(
            Flood::new(),
            DEPTH,
            Chain::new(Guard::of_seed(SEED)),
            ReceivePart::Only,
            faults::Faults::default(),
        );
        receiver.grant_all(&state);
        let mut cx = Context::from_waker(Waker::noop());
        // The peer does not read the control connection, so the outbox stays as it is.
        receiver.lock().receive_frames(&state, &mut cx, CHUNK);
        let error = state.receive_error().expect("the peer broke the protocol");
        let text = error.to_string();
        assert!(text.contains("credits were not sent"), "{text}");
        assert!(credits(&state) <= DEPTH as usize);
    }

    #[test]
    fn a_header_that_the_peer_rewrites_has_no_effect() {
        let header = Header {
            length: u32::MAX,
            slot: 0,
            offset: 0,
            mark: Mark::default(),
            follows: 0,
        };
        let (state, mut flood) = (state(), Flood::new());
        flood.left_in_slot = Some(header);
        let receiver = SharedReceiver::new(
            flood,
            DEPTH,
            Chain::new(Guard::of_seed(SEED)),
            ReceivePart::Only,
            faults::Faults::default(),
        );
        receiver.grant_all(&state);
        let mut cx = Context::from_waker(Waker::noop());
        let chunk = receiver.lock().next(&state, &mut cx).expect("a chunk");
        assert_eq!(chunk.rest(), [1]);
    }

    #[test]
    fn bytes_after_the_announced_end_are_not_delivered() {
        let state = state();
        let receiver = SharedReceiver::new(
            Flood::new(),
            DEPTH,
            Chain::new(Guard::of_seed(SEED)),
            ReceivePart::Only,
            faults::Faults::default(),
        );
        receiver.grant_all(&state);
        let digest = Chain::new(Guard::of_seed(SEED)).digest();
        state.receive(Message::Fin { bytes: 0, digest });
        let mut cx = Context::from_waker(Waker::noop());
        for _ in 0..2 {
            assert!(receiver.lock().next(&state, &mut cx).is_none());
            assert!(state.at_end(u64::MAX).unwrap());
        }
    }

    /// A peer of which nothing has arrived. The thread that looks for it stops before its next use of the stream's
    /// state.
    struct Held {
        is_looked_at: mpsc::Sender<()>,
        is_held: mpsc::Receiver<()>,
    }

    impl ReceivePath for Held {
        type Slot = Memory;

        fn poll_frame(&mut self, _cx: &mut Context<'_>) -> Poll<io::Result<(Memory, Header)>> {
            self.is_looked_at.send(()).unwrap();
            self.is_held.recv().unwrap();
            Poll::Pending
        }

        fn release(&mut self, _slot: Memory) -> bool {
            true
        }

        fn can_grant(&self) -> bool {
            true
        }

        fn post_receive(&mut self, _index: u32) {}
    }

    struct HeldPath;

    impl DataPath for HeldPath {
        type Send = TcpSend;
        type Receive = Held;
    }

    fn shared(path: Held) -> Arc<Shared<HeldPath>> {
        let chain = Chain::new(Guard::of_seed(SEED));
        let faults = faults::Faults::default();
        let receiver = SharedReceiver::new(path, DEPTH, chain, ReceivePart::Only, faults);
        Arc::new(Shared {
            state: state(),
            sender: None,
            receiver: Some(receiver),
            attended: AtomicWaker::new(),
        })
    }

    /// The thread that makes a stream can be slower than its steward. Before the first grant no receive is posted whose
    /// completion could wake the steward.
    #[tokio::test]
    async fn a_steward_that_has_found_no_slot_looks_again_after_the_first_grant() {
        let (is_looked_at, looked) = mpsc::channel();
        let (hold, is_held) = mpsc::channel();
        let shared = shared(Held {
            is_looked_at,
            is_held,
        });
        (0..100).for_each(|_| hold.send(()).unwrap());
        let steward = tokio::spawn(steward::serve(Arc::clone(&shared)));
        let look = async || {
            while looked.try_recv().is_err() {
                sleep(Duration::from_millis(1)).await;
            }
        };
        look().await;
        // Its timer may wake it once more.
        while timeout(Duration::from_millis(100), look()).await.is_ok() {}
        let receiver = shared.receiver.as_ref().unwrap();
        receiver.grant_all(&shared.state);
        let again = timeout(Duration::from_secs(60), look()).await;
        again.expect("the steward looks again");
        steward.abort();
    }

    /// A read looks for a chunk, and then for the end. In between the steward cannot take the frame receiver: it could
    /// verify the last chunk and complete the stream, and the reader would get the end in place of the chunk.
    #[test]
    fn the_receiver_stays_locked_between_a_look_for_chunks_and_for_the_end() {
        let (is_looked_at, looked) = mpsc::channel();
        let (hold, is_held) = mpsc::channel();
        let shared = shared(Held {
            is_looked_at,
            is_held,
        });
        let receiver = shared.receiver.as_ref().unwrap();
        receiver.grant_all(&shared.state);
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut half = RecvHalf::new(Arc::clone(&shared));
                let read = half.poll_fill(&mut Context::from_waker(Waker::noop()));
                assert!(read.is_pending());
            });
            looked.recv().unwrap();
            let stopped = shared.state.hold();
            hold.send(()).unwrap();
            // A second look fails the test instead of waiting.
            drop(hold);
            for _ in 0..10_000 {
                assert!(
                    receiver.receiver.try_lock().is_err(),
                    "the steward can take it"
                );
                thread::yield_now();
            }
            drop(stopped);
        });
    }
}
