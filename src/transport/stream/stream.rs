//! The public stream, over either data path.

use std::{
    io::{self, IoSlice},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use tokio::io::{AsyncBufRead, AsyncRead, AsyncWrite, ReadBuf};

use super::{
    info::{StreamInfo, stream_accessors},
    read_half::ReadHalf,
    write_half::{SendBuffer, WriteHalf},
};
use crate::{Error, transport::data::slots::FillSlots};

/// One authenticated, checked stream to another process: [`AsyncRead`], [`AsyncBufRead`] and
/// [`AsyncWrite`] over slots of fixed size.
///
/// `poll_write` copies into a slot, and posts the slot at once if no other slot is in flight. So a program need
/// not flush a request before it waits for the answer. `poll_flush` completes when the network has accepted
/// all bytes. `poll_shutdown` sends FIN and completes when the peer's endpoint has received and verified every
/// byte, even if the peer's program has not read them. [`finish`](Self::finish) also waits until the peer's
/// program has confirmed that it processed them.
///
/// Dropping a stream before its shutdown aborts it: the peer gets an error, never an end of file.
/// [`Builder::on_drop`](crate::Builder::on_drop) changes this for frameworks, which drop what they own. Dropping a stream
/// after its shutdown is no failure, even if the peer has not ended its direction: see
/// [how a stream ends](crate#how-a-stream-ends).
///
/// ```no_run
/// # async fn example(mut stream: rdpipe::Stream) -> std::io::Result<()> {
/// use tokio::io::AsyncWriteExt;
///
/// tokio::io::copy(&mut tokio::io::stdin(), &mut stream).await?;
/// stream.shutdown().await?; // without this the peer sees a failure, not an end
/// # Ok(())
/// # }
/// ```
///
/// # Cancel safety
///
/// Dropping any future of a stream loses no byte: a read consumes bytes, and a write accepts them, only when it
/// completes.
pub struct Stream {
    // Dropped first: what becomes of the direction that is received depends on how the other ended.
    send: WriteHalf,
    recv: ReadHalf,
}

impl Stream {
    /// Joins two halves of one stream.
    pub(crate) fn of(recv: ReadHalf, send: WriteHalf) -> Self {
        Self { send, recv }
    }

    /// Grants the peer all slots, and returns the stream: its program has it from now on.
    pub(crate) fn granted(self) -> Self {
        self.recv.grant_all();
        self
    }

    pub(super) fn info(&self) -> &Arc<StreamInfo> {
        self.recv.info()
    }

    /// Shuts the stream down as [`shutdown`] does, and waits for the peer's [`confirm`](Self::confirm): the peer has
    /// then processed every byte.
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
        self.send.finish().await
    }

    /// Lends a registered buffer to fill and [`send`](Self::send) without a copy: see
    /// [`WriteHalf::send_buffer`].
    ///
    /// # Errors
    ///
    /// Those of writing.
    ///
    /// # Cancel safety
    ///
    /// Safe: a buffer that was not returned stays in the pool.
    pub async fn send_buffer(&mut self) -> io::Result<SendBuffer> {
        self.send.send_buffer().await
    }

    /// Sends the content of `buffer` after all bytes that were written before. Never waits: see
    /// [`WriteHalf::send`].
    ///
    /// # Errors
    ///
    /// Those of writing, and [`Error::Misuse`] if the buffer is of another stream.
    pub fn send(&mut self, buffer: SendBuffer) -> io::Result<()> {
        self.send.send(buffer)
    }

    /// Returns the unread rest of the next chunk, as bytes that own their slot; `None` at the end of the stream. See
    /// [`ReadHalf::read_chunk`], also for what a peer that has the key can do to the bytes over RDMA.
    ///
    /// # Errors
    ///
    /// Those of reading.
    ///
    /// # Cancel safety
    ///
    /// Safe: a chunk that was not returned is returned by the next call, or read.
    pub async fn read_chunk(&mut self) -> io::Result<Option<Bytes>> {
        self.recv.read_chunk().await
    }

    /// Confirms to the peer's [`finish`](Self::finish) that this end has processed the stream to its end: all bytes
    /// are written, flushed or committed, as the use of the stream requires.
    ///
    /// # Errors
    ///
    /// [`Error::Misuse`] if the stream has not been read to its end; otherwise the error that ended the stream.
    pub fn confirm(&mut self) -> Result<(), Error> {
        self.recv.confirm()
    }

    /// Tells the peer to stop sending, without a failure. The peer's writes then fail with [`Error::Stopped`], like
    /// writes to a pipe whose reader has closed it.
    pub fn stop(&mut self) {
        self.recv.stop();
    }

    /// Drops the stream, and waits for at most two seconds until its last message has arrived at the peer. Call this in
    /// a program that exits right after the end of a stream.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops the stream.
    pub async fn close(self) {
        let info = Arc::clone(self.info());
        drop(self);
        info.state.ended.cancelled().await;
    }

    /// Splits the stream into two halves, for two tasks. [`ReadHalf::reunite`] joins them.
    #[must_use]
    pub fn into_split(self) -> (ReadHalf, WriteHalf) {
        (self.recv, self.send)
    }

    /// Borrows the two halves, for two tasks or for one that uses both at once.
    pub fn split(&mut self) -> (&mut ReadHalf, &mut WriteHalf) {
        (&mut self.recv, &mut self.send)
    }
}

stream_accessors!(Stream);

impl ReadHalf {
    /// Joins the halves of one stream.
    ///
    /// # Errors
    ///
    /// [`ReuniteError`] if `write` belongs to another stream. The error returns both halves.
    pub fn reunite(self, write: WriteHalf) -> Result<Stream, ReuniteError> {
        if Arc::ptr_eq(self.info(), write.info()) {
            Ok(Stream::of(self, write))
        } else {
            Err(ReuniteError(Box::new((self, write))))
        }
    }
}

/// The error of [`ReadHalf::reunite`] for halves of two different streams. Both halves can still be used.
#[derive(Debug, thiserror::Error)]
#[error("these are halves of two different streams")]
pub struct ReuniteError(Box<(ReadHalf, WriteHalf)>);

impl ReuniteError {
    /// Returns the halves.
    #[must_use]
    pub fn into_inner(self) -> (ReadHalf, WriteHalf) {
        *self.0
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.recv).poll_read(cx, buf)
    }
}

impl AsyncBufRead for Stream {
    /// Returns the unread rest of the current chunk, in its slot. Over RDMA, a peer that has the key and breaks the
    /// protocol can change these bytes: see [`ReadHalf::read_chunk`].
    fn poll_fill_buf(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<&[u8]>> {
        Pin::new(&mut self.get_mut().recv).poll_fill_buf(cx)
    }

    fn consume(mut self: Pin<&mut Self>, count: usize) {
        Pin::new(&mut self.recv).consume(count);
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.send).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.send).poll_write_vectored(cx, parts)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.send).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.send).poll_shutdown(cx)
    }
}

impl FillSlots for Stream {
    fn poll_slot(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<&mut [u8]>> {
        self.send.poll_slot(cx)
    }

    fn advance(&mut self, count: usize) {
        self.send.advance(count);
    }

    fn post(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.send.post(cx)
    }
}
