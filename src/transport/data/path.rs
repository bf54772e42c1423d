//! What a data path must do: move frames between slots. TCP has one, RDMA another; everything
//! else about a stream is written once, over these traits.

use std::{
    io,
    task::{Context, Poll},
};

use super::frame::HEADER_BYTES;

/// One buffer of a pool, header and payload side by side, owned by whoever may touch it.
pub(crate) trait Slot: Send + Unpin + 'static {
    /// Its number in the pool.
    fn index(&self) -> u32;
    /// All of it.
    fn bytes(&self) -> &[u8];
    /// All of it, to be filled.
    fn bytes_mut(&mut self) -> &mut [u8];

    /// The first `length` bytes of payload.
    fn payload(&self, length: usize) -> &[u8] {
        &self.bytes()[HEADER_BYTES..HEADER_BYTES + length]
    }
}

/// Moves filled slots to the peer, in order.
pub(crate) trait SendPath: Send + Unpin + 'static {
    /// The pool's buffers.
    type Slot: Slot;

    /// A free slot, or none while all are in flight: an empty pool is the backpressure.
    fn acquire(&mut self) -> Option<Self::Slot>;

    /// A free slot that may be away for long, or none.
    fn acquire_to_lend(&mut self) -> Option<Self::Slot>;

    /// Takes a slot back unused.
    fn release(&mut self, slot: Self::Slot);

    /// Takes a filled slot, whose first `frame_bytes` go into the peer's slot `target`.
    /// What can be done at once is done by the next [`poll_complete`](Self::poll_complete).
    fn post(&mut self, slot: Self::Slot, frame_bytes: usize, target: u32);

    /// Most slots that the pool can have, wherever they are.
    fn max_slots(&self) -> usize;

    /// Slots that have been posted and are not free yet.
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

/// Takes frames from the peer into slots that were granted to it.
pub(crate) trait ReceivePath: Send + Unpin + 'static {
    /// The pool's buffers.
    type Slot: Slot;

    /// The next frame, in the slot that it was written to: the header is whole and its check
    /// fits, the payload is as long as it says, and nothing else has been looked at.
    ///
    /// # Errors
    ///
    /// Of the connection, or [`io::ErrorKind::InvalidData`] with what the peer did wrong; the path
    /// is of no use afterwards.
    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Self::Slot>>;

    /// Takes back a slot whose reader is done with it. Whether it may be granted again: not when it
    /// belongs to a pool that has been replaced since.
    fn release(&mut self, slot: Self::Slot) -> bool;

    /// Whether slots may be granted now: not while the pool is being replaced.
    fn can_grant(&self) -> bool;

    /// Gets ready for a frame in slot `index`, which is granted next: slots are used in the order in
    /// which they are granted.
    fn post_receive(&mut self, index: u32);
}

/// A kind of data path.
pub(crate) trait DataPath: Send + Sync + 'static {
    /// Its sending side.
    type Send: SendPath;
    /// Its receiving side.
    type Receive: ReceivePath;
}

/// What the peer did wrong on the data path, as the source of an [`io::Error`].
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Violation(pub(crate) &'static str);

/// A broken rule as the error of a data path.
pub(crate) fn invalid(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, Violation(what))
}
