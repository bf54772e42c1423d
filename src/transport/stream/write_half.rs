//! The half of a stream that writes, and a slot of the sending pool, lent to the user.

use std::{
    fmt,
    future::poll_fn,
    io::{self, IoSlice},
    ops::{Deref, DerefMut},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use tokio::io::AsyncWrite;

use super::info::{Either, StreamInfo, either, stream_accessors};
use crate::{
    Error,
    transport::{
        data::{
            send_half::{FOREIGN_BUFFER, SendHalf},
            slots::{FillSlots, LentSlot},
            tcp::Tcp,
        },
        rdma::Rdma,
    },
};

/// The half of a [`Stream`](crate::Stream) that writes, from
/// [`Stream::into_split`](crate::Stream::into_split).
///
/// Dropping it without [`shutdown`](tokio::io::AsyncWriteExt::shutdown) aborts both directions, unless
/// [`OnDrop::Fin`](crate::OnDrop::Fin) is set.
pub struct WriteHalf {
    half: SendEither,
    info: Arc<StreamInfo>,
}

pub(in crate::transport) type SendEither = Either<SendHalf<Tcp>, SendHalf<Rdma>>;

impl WriteHalf {
    pub(crate) fn new(half: SendEither, info: Arc<StreamInfo>) -> Self {
        Self { half, info }
    }

    pub(super) fn info(&self) -> &Arc<StreamInfo> {
        &self.info
    }

    /// Shuts the stream down as [`shutdown`] does, and waits for the peer's [`confirm`](crate::Stream::confirm): the
    /// peer has then processed every byte.
    ///
    /// [`shutdown`]: tokio::io::AsyncWriteExt::shutdown
    ///
    /// # Errors
    ///
    /// The error that ended the stream; [`Error::Unconfirmed`] if all bytes have arrived and
    /// only the confirmation is missing.
    ///
    /// # Cancel safety
    ///
    /// Safe: a repeated call continues to wait.
    pub async fn finish(&mut self) -> Result<(), Error> {
        poll_fn(|cx| either!(&mut self.half, half => half.poll_finish(cx))).await
    }

    /// Lends a registered buffer to fill and [`send`](Self::send). Its content is not copied.
    /// Waits while no buffer is free. All slots of a pool but one can be lent at the same time, so
    /// writes never wait for buffers. A program that holds all of them waits here until it returns one itself.
    ///
    /// # Errors
    ///
    /// Those of writing.
    ///
    /// # Cancel safety
    ///
    /// Safe: a buffer that was not returned stays in the pool.
    pub async fn send_buffer(&mut self) -> io::Result<SendBuffer> {
        poll_fn(|cx| self.poll_send_buffer(cx)).await
    }

    /// Polls for a free buffer: [`send_buffer`](Self::send_buffer) as a poll function.
    ///
    /// # Errors
    ///
    /// Those of writing.
    ///
    /// # Cancel safety
    ///
    /// Safe: `Pending` lends no buffer.
    pub fn poll_send_buffer(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<SendBuffer>> {
        let inner = match &mut self.half {
            Either::Tcp(half) => Either::Tcp(ready!(half.poll_lent(cx))?),
            Either::Rdma(half) => Either::Rdma(ready!(half.poll_lent(cx))?),
        };
        Poll::Ready(Ok(SendBuffer::new(inner)))
    }

    /// Sends the content of `buffer`, as a chunk of its own after all bytes that were written before. Never
    /// waits: the buffer is posted at once, or when the peer has a slot for it. [`flush`] waits until the network has
    /// accepted it.
    ///
    /// [`flush`]: tokio::io::AsyncWriteExt::flush
    ///
    /// # Errors
    ///
    /// Those of writing, and [`Error::Misuse`] if the buffer is of another stream. After an error the buffer
    /// is back in its pool, and its content is lost.
    pub fn send(&mut self, buffer: SendBuffer) -> io::Result<()> {
        let sent = match (&mut self.half, buffer.into_inner()) {
            (Either::Tcp(half), Either::Tcp(slot)) => half.send(slot),
            (Either::Rdma(half), Either::Rdma(slot)) => half.send(slot),
            _ => Err(FOREIGN_BUFFER),
        };
        sent.map_err(Into::into)
    }
}

stream_accessors!(WriteHalf);

impl AsyncWrite for WriteHalf {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[IoSlice::new(bytes)])
    }

    /// Copies as many bytes of `parts` as fit into one slot.
    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        either!(&mut self.half, half => half.poll_write(cx, parts)).map_err(Into::into)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        either!(&mut self.half, half => half.poll_flush(cx)).map_err(Into::into)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        either!(&mut self.half, half => half.poll_shutdown(cx)).map_err(Into::into)
    }
}

impl FillSlots for WriteHalf {
    fn poll_slot(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<&mut [u8]>> {
        either!(&mut self.half, half => half.poll_slot(cx))
    }

    fn advance(&mut self, count: usize) {
        either!(&mut self.half, half => half.advance(count));
    }

    fn post(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        either!(&mut self.half, half => half.post(cx))
    }
}

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
