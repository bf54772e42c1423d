//! The traits of a data path, which moves frames between slots and has no other part in a stream. TCP has one
//! implementation, RDMA another; the halves are written once, over these traits.

use std::{
    io,
    task::{Context, Poll},
};

use super::frame::{HEADER_BYTES, Header};

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
}

/// The sending side: moves filled slots to the peer, in order.
pub(crate) trait SendPath: Send + Unpin + 'static {
    /// A slot of the pool.
    type Slot: Slot;

    /// Takes a free slot; `None` while all are in flight. An empty pool is the backpressure.
    fn acquire(&mut self) -> Option<Self::Slot>;

    /// Takes a free slot that writes fill. A path may return one with less room than a chunk has, so that bulk data
    /// does not delay a small message. `credits` returns the number of credits that are left.
    fn acquire_to_fill(&mut self, _credits: impl FnOnce() -> usize) -> Option<Self::Slot> {
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
    ///
    /// # Errors
    ///
    /// Those of the connection. The path must not be used after an error.
    fn poll_complete(
        &mut self,
        cx: &mut Context<'_>,
        next_credit: impl FnMut() -> Option<u32>,
    ) -> Poll<io::Result<()>>;
}

/// The receiving side: takes frames from the peer, in slots that were granted to it.
pub(crate) trait ReceivePath: Send + Unpin + 'static {
    /// A slot of the pool.
    type Slot: Slot;

    /// Returns the next frame, in the slot that it was written to, and its header. The check of the header is verified,
    /// and the slot has room for as much payload as the header says; the digest is not verified.
    ///
    /// The header is a copy. Over RDMA the peer may change the bytes in the slot at any time, so the header must not be
    /// read there again.
    ///
    /// # Errors
    ///
    /// Those of the connection, or [`io::ErrorKind::InvalidData`] with the rule that the peer broke. The path must not
    /// be used after an error.
    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<(Self::Slot, Header)>>;

    /// Polls for a short time for the next frame, if one is likely to arrive soon and is still `awaited`. A frame that
    /// has arrived is returned by the next [`poll_frame`](Self::poll_frame).
    fn spin(&mut self, _awaited: impl FnOnce() -> bool) {}

    /// Takes back a slot that has been read. Returns false if the slot belongs to a pool that has been replaced: it
    /// cannot be granted again.
    fn release(&mut self, slot: Self::Slot) -> bool;

    /// Returns true if slots can be granted now. They cannot while the pool is being replaced.
    fn can_grant(&self) -> bool;

    /// Prepares for a frame in slot `index`, which is granted next. Slots are used in the order in which they are
    /// granted.
    fn post_receive(&mut self, index: u32);
}

/// A kind of data path.
pub(crate) trait DataPath: Send + Sync + 'static {
    /// The sending side.
    type Send: SendPath;
    /// The receiving side.
    type Receive: ReceivePath;
}

/// The rule that the peer broke on the data path, as the source of an [`io::Error`].
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Violation(&'static str);

/// A frame sender or receiver whose data path can go on over another link, with another pool.
#[cfg(feature = "rdma")]
pub(crate) trait Renewable {
    /// The data path.
    type Path;
    /// A slot of its pool.
    type Slot;

    /// Returns the data path.
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
    /// The reason, for the user.
    pub(crate) reason: String,
    /// True if the host has RDMA hardware all the same.
    pub(crate) hardware: bool,
}
