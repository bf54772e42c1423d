//! A stream that uses RDMA, or fails to connect.

use std::{
    fmt,
    io::{self, IoSlice},
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use tokio::io::{AsyncBufRead, AsyncRead, AsyncWrite, ReadBuf};

use super::{
    ReadHalf, SendBuffer, Stream, WriteHalf,
    info::{StreamInfo, Transport, stream_accessors},
};
use crate::{Error, HandshakeFault};

/// A [`Stream`] whose bytes travel over RDMA: [`AsyncRead`], [`AsyncBufRead`] and [`AsyncWrite`]
/// over pools of registered buffers.
///
/// An `RdmaStream` comes from [`connect`](Self::connect), from [`accept`](Self::accept), or from a [`Stream`] that
/// uses RDMA (`RdmaStream::try_from`). It never uses TCP for its data. The two ends may have different
/// types: the peer may use a `Stream`, and `rdrecv` receives what an `RdmaStream` sends.
///
/// Reading, writing and ending work as for [`Stream`]: written bytes are copied once, into
/// a registered slot; [`AsyncBufRead`] lends the slot that the peer's device wrote.
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use rdpipe::{Direction, Key, RdmaStream, StreamConfig};
///
/// let key = Key::parse(std::env::var("RDPIPE_KEY")?)?;
/// let mut config = StreamConfig::default();
/// config.direction = Direction::Send;
/// let mut rdma_stream = RdmaStream::connect("hostB:12345", &key, &config).await?;
/// tokio::io::copy(&mut tokio::io::stdin(), &mut rdma_stream).await?;
/// rdma_stream.finish().await?; // without this the peer sees a failure, not an end
/// # Ok(())
/// # }
/// ```
///
/// # Cancel safety
///
/// Dropping any future of a stream loses no byte: a read consumes bytes, and a write accepts them, only when it
/// completes. Memory is freed only when the device cannot access it any more.
pub struct RdmaStream(Stream);

impl RdmaStream {
    /// Shuts the stream down, and waits until the peer has confirmed that it processed every byte: see
    /// [`Stream::finish`].
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
        self.0.finish().await
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
        self.0.send_buffer().await
    }

    /// Sends the content of `buffer` after all bytes that were written before. Never waits: see
    /// [`WriteHalf::send`].
    ///
    /// # Errors
    ///
    /// Those of writing, and [`Error::Misuse`] if the buffer is of another stream.
    pub fn send(&mut self, buffer: SendBuffer) -> io::Result<()> {
        self.0.send(buffer)
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
        self.0.read_chunk().await
    }

    /// Confirms to the peer's [`finish`](Self::finish) that this end has processed the stream to its end: see
    /// [`Stream::confirm`].
    ///
    /// # Errors
    ///
    /// [`Error::Misuse`] if the stream has not been read to its end; otherwise the error that ended the stream.
    pub fn confirm(&mut self) -> Result<(), Error> {
        self.0.confirm()
    }

    /// Tells the peer to stop sending, without a failure: see [`Stream::stop`].
    pub fn stop(&mut self) {
        self.0.stop();
    }

    /// Drops the stream, and waits for at most two seconds until its last message has arrived at the peer: see
    /// [`Stream::close`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops the stream.
    pub async fn close(self) {
        self.0.close().await;
    }

    /// Splits the stream into two halves, for two tasks.
    #[must_use]
    pub fn into_split(self) -> (ReadHalf, WriteHalf) {
        self.0.into_split()
    }

    /// Borrows the two halves, for two tasks or for one that uses both at once.
    pub fn split(&mut self) -> (&mut ReadHalf, &mut WriteHalf) {
        self.0.split()
    }

    /// Borrows the [`Stream`] inside, for code that works over either transport.
    #[must_use]
    pub fn get_ref(&self) -> &Stream {
        &self.0
    }

    fn info(&self) -> &StreamInfo {
        self.0.info()
    }

    /// Returns the [`Stream`] inside, for code that works over either transport.
    #[must_use]
    pub fn into_inner(self) -> Stream {
        self.0
    }
}

stream_accessors!(RdmaStream);

impl From<RdmaStream> for Stream {
    fn from(stream: RdmaStream) -> Self {
        stream.0
    }
}

/// The error of `RdmaStream::try_from` for a [`Stream`] whose data goes over TCP. It holds that stream, which can
/// still be used.
///
/// Converting it into an [`Error`] gives [`HandshakeFault::Transport`] with the reason. The conversion aborts the
/// stream, and the peer receives the reason too.
#[derive(Debug)]
pub struct NotRdma(Box<Stream>);

impl NotRdma {
    /// Returns the stream over TCP.
    #[must_use]
    pub fn into_inner(self) -> Stream {
        *self.0
    }
}

impl fmt::Display for NotRdma {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let reason = self.0.transport_reason();
        write!(f, "the data would go over TCP: {reason}")
    }
}

impl std::error::Error for NotRdma {}

impl From<NotRdma> for Error {
    fn from(mut not: NotRdma) -> Self {
        not.0.abort(&not.to_string());
        Self::Handshake {
            peer: not.0.peer().to_owned(),
            fault: HandshakeFault::Transport(not.0.transport_reason().to_owned()),
        }
    }
}

impl TryFrom<Stream> for RdmaStream {
    type Error = NotRdma;

    /// # Errors
    ///
    /// [`NotRdma`] if the stream's data goes over TCP. The error returns the stream.
    fn try_from(stream: Stream) -> Result<Self, NotRdma> {
        match stream.transport() {
            Transport::Rdma => Ok(Self(stream)),
            Transport::Tcp => Err(NotRdma(Box::new(stream))),
        }
    }
}

impl AsyncRead for RdmaStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl AsyncBufRead for RdmaStream {
    /// Returns the unread rest of the current chunk, in its slot. Over RDMA, a peer that has the key and breaks the
    /// protocol can change these bytes: see [`ReadHalf::read_chunk`].
    fn poll_fill_buf(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<&[u8]>> {
        Pin::new(&mut self.get_mut().0).poll_fill_buf(cx)
    }

    fn consume(mut self: Pin<&mut Self>, count: usize) {
        Pin::new(&mut self.0).consume(count);
    }
}

impl AsyncWrite for RdmaStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write_vectored(cx, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.0.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}
