//! A stream that is RDMA or an error.

use std::{
    fmt,
    io::{self, IoSlice},
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use tokio::io::{AsyncBufRead, AsyncRead, AsyncWrite, ReadBuf};

use super::{
    info::{StreamInfo, stream_accessors},
    read_half::ReadHalf,
    send_buffer::SendBuffer,
    stream::Stream,
    transport::Transport,
    write_half::WriteHalf,
};
use crate::{Error, HandshakeFault};

/// A [`Stream`] whose bytes travel over RDMA: [`AsyncRead`], [`AsyncBufRead`] and [`AsyncWrite`]
/// over pools of registered buffers.
///
/// It comes from [`connect`](Self::connect), from [`accept`](Self::accept), or from a [`Stream`] that
/// turns out to use RDMA (`RdmaStream::try_from`). It never uses TCP for its data. The two ends need
/// not be of one type: a peer sees a `Stream`, and `rdrecv` takes what `RdmaStream` sends.
///
/// Reading, writing and the ways to end are those of [`Stream`]: what is written is copied once, into
/// a registered slot; [`AsyncBufRead`] lends the slot that the peer's device wrote.
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use rdpipe::{Direction, Key, RdmaStream, StreamConfig};
///
/// let key = Key::parse(std::env::var("RDPIPE_KEY")?)?;
/// let mut config = StreamConfig::default();
/// config.direction = Direction::Send;
/// let mut rdma_stream = RdmaStream::connect("hostB", 12345, &key, &config).await?;
/// tokio::io::copy(&mut tokio::io::stdin(), &mut rdma_stream).await?;
/// rdma_stream.finish().await?; // without this the peer sees a failure, not an end
/// # Ok(())
/// # }
/// ```
///
/// # Cancel safety
///
/// Dropping any future of a stream's loses no byte: reads take nothing, writes have either
/// accepted their bytes or not. Memory that the device may still touch stays until it does not.
pub struct RdmaStream(Stream);

impl RdmaStream {
    /// Completes when the peer's sink has taken every byte written here: see [`Stream::finish`].
    ///
    /// # Errors
    ///
    /// What ended the stream before; [`Error::Unconfirmed`] when all bytes had arrived and
    /// only the confirmation is missing.
    ///
    /// # Cancel safety
    ///
    /// Safe: call it again.
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
    /// Safe: a buffer that was not returned is in the pool.
    pub async fn send_buffer(&mut self) -> io::Result<SendBuffer> {
        self.0.send_buffer().await
    }

    /// Sends what `buffer` holds behind everything that was written before, and never waits: see
    /// [`WriteHalf::send`].
    ///
    /// # Errors
    ///
    /// Those of writing, and [`Error::Misuse`] when another stream has lent the buffer.
    pub fn send(&mut self, buffer: SendBuffer) -> io::Result<()> {
        self.0.send(buffer)
    }

    /// Returns the unread rest of the next chunk, as bytes that own their slot; `None` at the end of the stream. See [`ReadHalf::read_chunk`].
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

    /// Tells the peer's [`finish`](Self::finish) that everything read from this stream, to its
    /// end, has been taken: see [`Stream::confirm`].
    ///
    /// # Errors
    ///
    /// When the end of the stream has not been read, or the stream failed before.
    pub fn confirm(&mut self) -> Result<(), Error> {
        self.0.confirm()
    }

    /// Tells the peer that this end needs no more of its bytes, and that this is no failure: see [`Stream::stop`].
    pub fn stop(&mut self) {
        self.0.stop();
    }

    /// Drops the stream and waits until its last message has arrived at the peer, for at
    /// most two seconds: see [`Stream::close`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future is dropping the stream.
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

    /// Returns the stream, for code that reads from one whatever its transport.
    #[must_use]
    pub fn get_ref(&self) -> &Stream {
        &self.0
    }

    fn info(&self) -> &StreamInfo {
        self.0.info()
    }

    /// Returns the stream, for code that takes one whatever its transport.
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

/// The data of a stream goes over TCP, and that stream, unharmed.
///
/// As an [`Error`] it is [`HandshakeFault::Transport`] with the reason; turning it into one aborts the
/// stream, and its peer receives the reason too.
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
    /// When the stream's data goes over TCP. The error returns the stream.
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
