//! A slot of the sending pool, lent to the user.

use std::{
    fmt,
    io::{self, IoSlice},
    ops::{Deref, DerefMut},
};

use super::either::{Either, either};
use crate::transport::{
    data::{slots::lent_slot::LentSlot, tcp::Tcp},
    rdma::Rdma,
};

/// A registered buffer to fill and send without a copy, from
/// [`WriteHalf::send_buffer`](crate::WriteHalf::send_buffer).
///
/// A buffer is empty at first and holds at most one chunk; it dereferences to its content. Fill it in place
/// ([`unfilled_mut`](Self::unfilled_mut), then [`advance`](Self::advance)) or as an [`io::Write`], on
/// any thread, and pass it to [`WriteHalf::send`](crate::WriteHalf::send). A buffer that is dropped unsent returns
/// to the pool, even after the stream was dropped.
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
pub struct SendBuffer(LentEither);

type LentEither = Either<LentSlot<Tcp>, LentSlot<Rdma>>;

impl SendBuffer {
    pub(super) fn new(inner: LentEither) -> Self {
        Self(inner)
    }

    pub(super) fn into_inner(self) -> LentEither {
        self.0
    }

    /// Returns the number of bytes that the buffer can hold: the payload of a chunk.
    #[must_use]
    pub fn capacity(&self) -> usize {
        either!(&self.0, slot => slot.filling().capacity())
    }

    /// Returns the free bytes after the content, to be overwritten. They may hold bytes of earlier chunks.
    pub fn unfilled_mut(&mut self) -> &mut [u8] {
        either!(&mut self.0, slot => slot.filling_mut().room())
    }

    /// Adds the first `count` bytes of [`unfilled_mut`](Self::unfilled_mut) to the content.
    ///
    /// # Panics
    ///
    /// If fewer than `count` bytes are free.
    pub fn advance(&mut self, count: usize) {
        assert!(
            count <= self.unfilled_mut().len(),
            "advanced beyond the capacity of the buffer"
        );
        either!(&mut self.0, slot => slot.filling_mut().fill(count));
    }

    /// Empties the buffer.
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

/// A write copies as many bytes as fit, and returns 0 if the buffer is full.
impl io::Write for SendBuffer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        Ok(either!(&mut self.0, slot => slot.filling_mut().copy(parts)))
    }

    /// Does nothing: the content is sent by [`WriteHalf::send`](crate::WriteHalf::send).
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
