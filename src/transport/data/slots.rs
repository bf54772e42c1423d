//! Slots, which users of a stream hold: filled in place, lent, received; and the traits of a data path, which moves
//! frames between them. TCP has one implementation of these traits, RDMA another; the halves are written once, over
//! them.
//!
//! A lent chunk keeps its slot, forever if the user wants. So of `depth` slots at most `depth - 2` are lent. The other
//! two circulate between sender and reader, one being filled while the other is read; a chunk in one of these is copied
//! when the user wants to keep it. So the stream never waits for a lent chunk. A chunk of the express path is always
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
    io::{self, IoSlice},
    mem,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    task::{Context, Poll},
};

use bytes::Bytes;
use futures::task::AtomicWaker;

use super::{
    frame::{HEADER_BYTES, Header},
    steward::Shared,
};

/// The number of a slot that belongs to no pool: a frame in it came without a credit, and the slot is never granted.
pub(crate) const NO_SLOT: u32 = u32::MAX;

/// How a data path carries a small frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(
    not(feature = "rdma"),
    allow(dead_code, reason = "TCP has one way for all frames")
)]
pub(crate) enum SmallFrame {
    /// As any other frame: it needs a credit.
    NeedsCredit,
    /// Without a credit, in small frames of at most `max_bytes`.
    WithoutCredit { max_bytes: usize },
    /// Without a credit, but not now. The task is woken when it can be posted.
    Later,
}

/// One buffer of a pool, with header and payload side by side. Only its owner can access it.
pub(crate) trait Slot: Send + Unpin + 'static {
    /// Returns the number of the slot in its pool.
    fn index(&self) -> u32;
    /// Returns header and payload.
    fn bytes(&self) -> &[u8];
    /// Returns header and payload, to be filled.
    fn bytes_mut(&mut self) -> &mut [u8];

    /// Returns the first `length` bytes of the payload.
    fn payload(&self, length: usize) -> &[u8] {
        &self.bytes()[HEADER_BYTES..HEADER_BYTES + length]
    }

    /// Returns the first `length` bytes of the payload, to be changed.
    fn payload_mut(&mut self, length: usize) -> &mut [u8] {
        &mut self.bytes_mut()[HEADER_BYTES..HEADER_BYTES + length]
    }
}

/// The sending side: moves filled slots to the peer, in order.
pub(crate) trait SendPath: Send + Unpin + 'static {
    type Slot: Slot;

    /// Takes a free slot; `None` while all are in flight. An empty pool is the backpressure.
    fn acquire(&mut self) -> Option<Self::Slot>;

    /// Takes a free slot that writes fill. A path may return one with less room than a chunk has, so that bulk data
    /// does not delay a small message. `credits` returns the number of credits that are left.
    fn acquire_to_fill(&mut self, _credits: impl FnOnce() -> usize) -> Option<Self::Slot> {
        self.acquire()
    }

    /// Takes a free slot for a user that will fill it at some time, of which it may have several.
    fn acquire_ahead(&mut self) -> Option<Self::Slot> {
        self.acquire()
    }

    /// Takes a free slot that the user may keep for long.
    fn acquire_to_lend(&mut self) -> Option<Self::Slot>;

    /// Takes back a slot that was not posted.
    fn release(&mut self, slot: Self::Slot);

    /// Queues a filled slot, whose first `frame_bytes` go into the peer's slot `target`. The next
    /// [`poll_complete`](Self::poll_complete) makes the progress that is possible at once.
    fn post(&mut self, slot: Self::Slot, frame_bytes: usize, target: u32);

    /// Sends a small frame, for which there is room. Its payload is copied.
    fn post_small(&mut self, header: &Header, payload: &[u8]);

    /// Returns how `length` bytes of payload are carried now.
    fn small_frame(&mut self, _length: usize) -> SmallFrame {
        SmallFrame::NeedsCredit
    }

    /// Returns true while bytes that were written should wait, so that more of them are sent together: frames are under
    /// way, and the task is woken when they are done.
    fn is_busy(&self) -> bool {
        self.in_flight() > 0
    }

    /// Returns the largest number of slots that the pool can have.
    fn max_slots(&self) -> usize;

    /// Returns the number of slots that were posted and are not free yet.
    fn in_flight(&self) -> usize;

    /// Makes progress on every posted slot. Ready when none is in flight.
    ///
    /// `next_credit` takes the next slot of the peer's that may be written, if there is one. A path calls it
    /// only for a frame that needs a new target, because the slot that it was posted for is gone.
    /// The path must not be used after an error.
    fn poll_complete(
        &mut self,
        cx: &mut Context<'_>,
        next_credit: impl FnMut() -> Option<u32>,
    ) -> Poll<io::Result<()>>;
}

/// The receiving side: takes frames from the peer, in slots that were granted to it.
pub(crate) trait ReceivePath: Send + Unpin + 'static {
    type Slot: Slot;

    /// Returns the next frame, in the slot that it was written to, and its header. The check of the header is verified,
    /// and the slot has room for as much payload as the header says; the digest is not verified.
    ///
    /// The header is a copy. Over RDMA the peer may change the bytes in the slot at any time, so the header must not be
    /// read there again.
    /// Fails with [`io::ErrorKind::InvalidData`] if the peer breaks a rule. The path must not be used after an error.
    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<(Self::Slot, Header)>>;

    /// Goes on over another connection if the one in use is lost.
    fn follow(&mut self) {}

    /// Returns the number of bytes of this direction up to the end of the frame of which a part has arrived, by its
    /// header; 0 if there is none.
    fn arriving_end(&self) -> u64 {
        0
    }

    /// Polls for a short time for the next frame, if one is likely to arrive soon and is still `awaited`. A frame that
    /// has arrived is returned by the next [`poll_frame`](Self::poll_frame).
    fn spin(&mut self, _awaited: impl FnOnce() -> bool) {}

    /// Takes back a slot that has been read. Returns false if the slot belongs to a pool that has been replaced: it
    /// cannot be granted again.
    fn release(&mut self, slot: Self::Slot) -> bool;

    /// Returns true if slots can be granted now. They cannot while there is no pool, or while it is being replaced.
    fn can_grant(&self) -> bool;

    /// Returns true if the pool is registered. Over RDMA that may be later than the start of the stream.
    fn has_pool(&self) -> bool {
        true
    }

    /// Prepares for a frame in slot `index`, which is granted next. Slots are used in the order in which they are
    /// granted.
    fn post_receive(&mut self, index: u32);
}

pub(crate) trait DataPath: Send + Sync + 'static {
    /// The sending side.
    type Send: SendPath;
    type Receive: ReceivePath;
}

/// The rule that the peer broke on the data path, as the source of an [`io::Error`].
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Violation(&'static str);

/// A frame sender or receiver whose data path can go on over another link, with another pool.
#[cfg(feature = "rdma")]
pub(crate) trait Renewable {
    type Path;
    type Slot;

    fn path(&mut self) -> &mut Self::Path {
        self.path_and_kept().0
    }

    /// Returns the data path, and the slots that hold payload which must outlive the pool. The data path does
    /// not know these slots.
    fn path_and_kept(&mut self) -> (&mut Self::Path, impl Iterator<Item = &mut Self::Slot>);
}

/// Returns the rule that the peer broke, if that is the error of a data path.
pub(crate) fn violation(error: &io::Error) -> Option<&'static str> {
    let inner = error.get_ref()?.downcast_ref::<Violation>()?;
    Some(inner.0)
}

/// Returns a broken rule as the error of a data path.
pub(crate) fn invalid(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, Violation(what))
}

/// This host cannot use RDMA.
#[derive(Debug, Clone)]
pub(crate) struct Unavailable {
    pub(crate) reason: String,
    /// True if the host has RDMA hardware all the same.
    pub(crate) hardware: bool,
}

/// The sending side of a stream, which lends out registered memory to be filled in place.
#[cfg_attr(
    not(feature = "cli"),
    allow(dead_code, reason = "only the programs carry bytes")
)]
pub(crate) trait FillSlots {
    /// Returns the free bytes of the slot that is being filled, at least one. Returns `Pending`
    /// while every slot is in flight.
    /// Fails if the stream has failed, or the peer has stopped reading.
    /// Cancel safe: a repeated call lends the same bytes.
    fn poll_slot(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<&mut [u8]>>;

    /// Marks the next `count` bytes of the slot as filled, and posts the slot if it is full.
    fn advance(&mut self, count: usize);

    /// Posts a partly filled slot because the source is idle. Does nothing if no slot is partly filled.
    ///
    /// Unless it fails, the call keeps the waker: while the source is idle, this is the only call
    /// that tells the pump of the stream's failure.
    /// Fails if the stream has failed, or the peer has stopped reading.
    /// Cancel safe: a repeated call posts the slot once.
    fn post(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>>;
}

pub(crate) struct FillingSlot<S> {
    pub(in crate::transport::data) slot: S,
    /// The bytes that have been sent already, in small frames.
    sent: usize,
    /// The end of the bytes that hold data.
    filled: usize,
    /// The number of bytes of the direction before the first unsent one; none while nothing says where it belongs.
    offset: Option<u64>,
    rail: usize,
}

impl<S: Slot> FillingSlot<S> {
    pub(in crate::transport::data) fn new(slot: S) -> Self {
        Self::of_rail(slot, 0)
    }

    /// A slot of the pool of one of several rails.
    pub(in crate::transport::data) fn of_rail(slot: S, rail: usize) -> Self {
        Self {
            slot,
            sent: 0,
            filled: 0,
            offset: None,
            rail,
        }
    }

    /// Returns the number of the rail to whose pool the slot belongs.
    pub(in crate::transport::data) fn rail(&self) -> usize {
        self.rail
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

    /// Sets the number of bytes of the direction before the first unsent one: other rails carry those that come between.
    pub(in crate::transport::data) fn set_offset(&mut self, offset: u64) {
        self.offset = Some(offset);
    }

    /// Returns the number of bytes of the direction before the first unsent one, if it was set.
    pub(in crate::transport::data) fn offset(&self) -> Option<u64> {
        self.offset
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
        self.offset = self.offset.map(|offset| offset + count as u64);
    }

    /// Returns the bytes that have not been sent.
    pub(in crate::transport::data) fn unsent(&self) -> &[u8] {
        &self.data()[self.sent..]
    }

    /// Returns the first `count` bytes of [`unsent`](Self::unsent), to be sealed where they are.
    pub(in crate::transport::data) fn unsent_mut(&mut self, count: usize) -> &mut [u8] {
        &mut self.slot.payload_mut(self.filled)[self.sent..][..count]
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

const SLOTS_NEVER_LENT: usize = 2;

/// The payload up to which a chunk is copied instead of lent, in bytes: a page. To copy it takes less time than to
/// return a slot, and a slot is much memory for a few bytes.
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

/// A slot of the sending pool that the user holds. Dropping it returns the slot to its pool.
pub(crate) struct LentSlot<D: DataPath> {
    /// `None` only after the slot was sealed or dropped.
    filling: Option<FillingOf<D>>,
    /// The stream that lent the slot. The slot outlives it.
    shared: Weak<Shared<D>>,
}

type FillingOf<D> = FillingSlot<<<D as DataPath>::Send as SendPath>::Slot>;

impl<D: DataPath> LentSlot<D> {
    /// Wraps a slot that the frame sender of `shared` has lent.
    pub(crate) fn new(filling: FillingOf<D>, shared: &Arc<Shared<D>>) -> Self {
        Self {
            filling: Some(filling),
            shared: Arc::downgrade(shared),
        }
    }

    /// Returns the slot if `shared` has lent it. Otherwise the slot goes back to the stream that lent it.
    pub(crate) fn into_filling(mut self, shared: &Arc<Shared<D>>) -> Option<FillingOf<D>> {
        let is_ours = std::ptr::eq(self.shared.as_ptr(), Arc::as_ptr(shared));
        is_ours.then(|| self.filling.take()).flatten()
    }

    pub(crate) fn filling(&self) -> &FillingOf<D> {
        self.filling.as_ref().expect(HELD)
    }

    pub(crate) fn filling_mut(&mut self) -> &mut FillingOf<D> {
        self.filling.as_mut().expect(HELD)
    }
}

const HELD: &str = "a buffer has its slot until it is sealed or dropped";

impl<D: DataPath> Drop for LentSlot<D> {
    fn drop(&mut self) {
        let (Some(filling), Some(shared)) = (self.filling.take(), self.shared.upgrade()) else {
            return;
        };
        if let Some(sender) = &shared.sender {
            sender.lock().take_back(filling);
        }
        shared.state.wake_sender();
    }
}

/// A verified chunk, or what is left of it.
pub(crate) struct Readable<S> {
    pub(crate) slot: S,
    next: usize,
    end: usize,
    /// The number of bytes of the direction up to the end.
    end_offset: u64,
    pub(in crate::transport::data) rail: usize,
}

impl<S: Slot> Readable<S> {
    /// A chunk in `slot`, whose payload is `length` bytes after `offset` other bytes of the direction.
    pub(crate) fn new(slot: S, length: usize, offset: u64) -> Self {
        let (next, end) = (HEADER_BYTES, HEADER_BYTES + length);
        let end_offset = offset + length as u64;
        Self {
            slot,
            next,
            end,
            end_offset,
            rail: 0,
        }
    }

    /// Returns the number of bytes of the direction up to the end.
    pub(in crate::transport::data) fn end_offset(&self) -> u64 {
        self.end_offset
    }

    /// Returns the number of bytes of the direction before those that the reader has not taken.
    pub(crate) fn offset(&self) -> u64 {
        self.end_offset - (self.end - self.next) as u64
    }

    /// Removes the first `count` bytes, which the reader has taken. Returns true if none is left.
    pub(crate) fn take(&mut self, count: usize) -> bool {
        self.next += count;
        self.next >= self.end
    }

    /// Returns the bytes that the reader has not taken.
    pub(crate) fn rest(&self) -> &[u8] {
        &self.slot.bytes()[self.next..self.end]
    }

    pub(crate) fn into_slot(self) -> S {
        self.slot
    }

    /// Appends `payload`, which follows after `offset` bytes of the direction, and returns true if there is room for it
    /// and nothing belongs in between. So many small chunks do not use up the pool: of two neighbours that wait for the
    /// reader, at least half is payload.
    pub(crate) fn join(&mut self, payload: &[u8], offset: u64) -> bool {
        if offset != self.end_offset {
            return false;
        }
        let room = self.slot.bytes_mut()[self.end..].get_mut(..payload.len());
        let Some(place) = room else { return false };
        place.copy_from_slice(payload);
        self.end += payload.len();
        self.end_offset += payload.len() as u64;
        true
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
        Readable::new(Heap(index, bytes), payload, 0)
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
