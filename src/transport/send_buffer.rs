//! A slot of the sending pool in the hands of the user.

use std::{
    fmt,
    io::{self, IoSlice},
    ops::{Deref, DerefMut},
    sync::{Arc, Weak},
};

#[cfg(feature = "rdma")]
use super::rdma;
use super::{
    either::{Either, either},
    path::{DataPath, SendPath},
    sender::Filling,
    shared::Shared,
    tcp::Tcp,
};

/// A registered buffer to fill and send without a copy, from
/// [`WriteHalf::send_buffer`](crate::WriteHalf::send_buffer).
///
/// It begins empty, holds at most one chunk, and reads as the bytes that it holds. Fill it in place
/// ([`unfilled_mut`](Self::unfilled_mut), then [`advance`](Self::advance)) or as an [`io::Write`], on
/// any thread, and give it to [`WriteHalf::send`](crate::WriteHalf::send). Dropped unsent it goes back
/// to the pool, also when the stream is gone.
///
/// ```no_run
/// # async fn example(stream: &mut rdpipe::Stream, detector: &mut impl std::io::Read) -> std::io::Result<()> {
/// let mut buffer = stream.send_buffer().await?;
/// let count = detector.read(buffer.unfilled_mut())?; // straight into registered memory
/// buffer.advance(count);
/// stream.send(buffer)?;
/// # Ok(())
/// # }
/// ```
pub struct SendBuffer(Inner);

#[cfg(feature = "rdma")]
type Inner = Either<LentSlot<Tcp>, LentSlot<rdma::Rdma>>;
#[cfg(not(feature = "rdma"))]
type Inner = Either<LentSlot<Tcp>, std::convert::Infallible>;

/// The same over one kind of data path.
pub(super) struct LentSlot<D: DataPath> {
    /// Always there until it is sealed or dropped.
    filling: Option<FillingOf<D>>,
    /// Gone with the stream: the slot is nobody's then but the user's.
    shared: Weak<Shared<D>>,
}

type FillingOf<D> = Filling<<<D as DataPath>::Send as SendPath>::Slot>;

impl SendBuffer {
    pub(super) fn new(inner: Inner) -> Self {
        Self(inner)
    }

    pub(super) fn into_inner(self) -> Inner {
        self.0
    }

    /// Bytes that it can hold in all: the payload of a chunk.
    #[must_use]
    pub fn capacity(&self) -> usize {
        either!(&self.0, slot => slot.filling().capacity())
    }

    /// The bytes behind those that it holds: what was in them before, to be overwritten.
    pub fn unfilled_mut(&mut self) -> &mut [u8] {
        either!(&mut self.0, slot => slot.filling_mut().room())
    }

    /// It holds `count` bytes more, the first ones of [`unfilled_mut`](Self::unfilled_mut).
    ///
    /// # Panics
    ///
    /// When there are fewer.
    pub fn advance(&mut self, count: usize) {
        assert!(
            count <= self.unfilled_mut().len(),
            "advanced beyond the capacity of the buffer"
        );
        either!(&mut self.0, slot => slot.filling_mut().fill(count));
    }

    /// It holds none any more.
    pub fn clear(&mut self) {
        either!(&mut self.0, slot => slot.filling_mut().clear());
    }
}

impl Deref for SendBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        either!(&self.0, slot => slot.filling().data())
    }
}

impl DerefMut for SendBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        either!(&mut self.0, slot => slot.filling_mut().data_mut())
    }
}

/// Takes as much as there is room for; nothing when it is full.
impl io::Write for SendBuffer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        Ok(either!(&mut self.0, slot => slot.filling_mut().copy(parts)))
    }

    /// Does nothing: what it holds is sent by [`WriteHalf::send`](crate::WriteHalf::send).
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl fmt::Debug for SendBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SendBuffer")
            .field("len", &self.len())
            .field("capacity", &self.capacity())
            .finish()
    }
}

impl<D: DataPath> LentSlot<D> {
    /// A slot that was lent by the sending lane of `shared`.
    pub(super) fn new(filling: FillingOf<D>, shared: &Arc<Shared<D>>) -> Self {
        Self {
            filling: Some(filling),
            shared: Arc::downgrade(shared),
        }
    }

    /// The slot, if `shared` has lent it; otherwise it goes back to where it came from.
    pub(super) fn into_filling(mut self, shared: &Arc<Shared<D>>) -> Option<FillingOf<D>> {
        let is_ours = std::ptr::eq(self.shared.as_ptr(), Arc::as_ptr(shared));
        is_ours.then(|| self.filling.take()).flatten()
    }

    fn filling(&self) -> &FillingOf<D> {
        self.filling.as_ref().expect(HELD)
    }

    fn filling_mut(&mut self) -> &mut FillingOf<D> {
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
