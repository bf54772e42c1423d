//! The public types of a stream: [`Stream`], its two halves, and the buffer that a stream lends.
//!
//! They hold an [`Either`], and forward every call through one `match`. So no call on the data path goes through a
//! table of functions.

pub(crate) mod info;
#[cfg(feature = "rdma")]
mod rdma_stream;

use std::{
    fmt,
    future::poll_fn,
    io::{self, IoSlice},
    ops::{Deref, DerefMut},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use tokio::io::{AsyncBufRead, AsyncRead, AsyncWrite, ReadBuf};

use self::info::{StreamInfo, stream_accessors};
use crate::{
    Error,
    threads::CarryThread,
    transport::{
        data::{
            receive::RecvHalf,
            send::{FOREIGN_BUFFER, SendHalf},
            slots::{FillSlots, LentSlot},
            tcp::Tcp,
        },
        rdma::Rdma,
    },
};

pub use self::info::{Stats, Transport, Watch};

#[cfg(feature = "rdma")]
pub use rdma_stream::{NotRdma, RdmaStream};

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
    /// The rails beside the first one.
    rails: Vec<Rail>,
}

/// One of the rails beside the first one. Its steward moves what the user of the stream and the rail hand to each other,
/// unless a loop drives its halves on its thread.
#[cfg_attr(
    not(feature = "cli"),
    allow(dead_code, reason = "only the programs drive rails themselves")
)]
pub(crate) struct Rail {
    /// The thread to whose runtime the halves belong.
    pub(crate) thread: CarryThread,
    pub(crate) send: SendEither,
    pub(crate) recv: RecvEither,
}

impl Stream {
    /// Joins two halves of one stream.
    pub(crate) fn of(recv: ReadHalf, send: WriteHalf) -> Self {
        Self {
            send,
            recv,
            rails: Vec::new(),
        }
    }

    /// Adds the rails beside the first one.
    pub(in crate::transport) fn with_rails(self, rails: Vec<Rail>) -> Self {
        Self { rails, ..self }
    }

    /// Grants the peer all slots, and returns the stream: its program has it from now on.
    pub(crate) fn granted(self) -> Self {
        self.recv.grant_all();
        for rail in &self.rails {
            either!(&rail.recv, half => half.grant_all());
        }
        self
    }

    /// Returns the sending halves of all rails, the first one and the others: each is driven by itself until
    /// [`SendEither::end_placed`].
    #[cfg(feature = "cli")]
    pub(crate) fn rails_to_send(&mut self) -> (&mut SendEither, &mut Vec<Rail>) {
        (&mut self.send.half, &mut self.rails)
    }

    /// Returns the receiving halves of all rails, the first one and the others: each is driven by itself until
    /// [`RecvEither::end_placed`].
    #[cfg(feature = "cli")]
    pub(crate) fn rails_to_receive(&mut self) -> (&mut RecvEither, &mut Vec<Rail>) {
        (&mut self.recv.half, &mut self.rails)
    }

    pub(in crate::transport) fn info(&self) -> &Arc<StreamInfo> {
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

/// The half of a [`Stream`] that reads, from
/// [`Stream::into_split`](crate::Stream::into_split).
///
/// Dropping it before the end of the stream does not end the other half: the stream takes up to 64 KiB more for two
/// seconds, and then tells the peer to stop sending. A stream that only receives is aborted by the drop, unless
/// [`OnDrop::Fin`](crate::OnDrop::Fin) is set, and a panic aborts every stream. Call [`stop`](Self::stop) first to discard the
/// rest without an abort.
pub struct ReadHalf {
    half: RecvEither,
    info: Arc<StreamInfo>,
}

pub(crate) type RecvEither = Either<RecvHalf<Tcp>, RecvHalf<Rdma>>;

/// The receiving half of one of several rails, whose chunks are taken in any order.
#[cfg(feature = "cli")]
impl RecvEither {
    /// Begins to take the chunks of each rail by itself. Returns the number of bytes that were taken before.
    pub(crate) fn begin_placed(&mut self) -> u64 {
        either!(self, half => half.begin_placed())
    }

    /// Continues in order after `bytes` bytes.
    pub(crate) fn end_placed(&mut self, bytes: u64) {
        either!(self, half => half.end_placed(bytes));
    }

    /// Returns the unread rest of the next chunk of this rail, and the number of bytes of the direction before it. It is
    /// empty at the end of the stream.
    pub(crate) fn poll_placed(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(u64, &[u8]), Error>> {
        either!(self, half => half.poll_placed(cx))
    }

    /// Consumes `count` bytes of what [`poll_placed`](Self::poll_placed) returned.
    pub(crate) fn take(&mut self, count: usize) {
        either!(self, half => half.take(count));
    }
}

/// The sending half of one of several rails, whose chunks are sent in any order.
#[cfg(feature = "cli")]
impl SendEither {
    /// Begins to send the chunks of each rail by itself. Returns the number of bytes that were sent before.
    pub(crate) fn begin_placed(&mut self) -> Result<u64, Error> {
        either!(self, half => half.begin_placed())
    }

    /// Continues in order after `bytes` bytes.
    pub(crate) fn end_placed(&mut self, bytes: u64) {
        either!(self, half => half.end_placed(bytes));
    }

    /// Returns the free bytes of an empty slot.
    pub(crate) fn poll_slot(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<&mut [u8]>> {
        either!(self, half => half.poll_slot(cx))
    }

    /// Sends the first `count` bytes of the slot as the chunk at `offset`.
    pub(crate) fn post_at(
        &mut self,
        count: usize,
        offset: u64,
        cx: &mut Context<'_>,
    ) -> Result<(), Error> {
        either!(self, half => {
            half.advance(count);
            half.post_at(offset, cx)
        })
    }

    /// Ready when the data path has everything that was queued.
    pub(crate) fn poll_all_posted(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        either!(self, half => half.poll_flush(cx))
    }
}

impl ReadHalf {
    pub(crate) fn new(half: RecvEither, info: Arc<StreamInfo>) -> Self {
        Self { half, info }
    }

    /// Grants the peer all slots, at the start of the stream.
    fn grant_all(&self) {
        either!(&self.half, half => half.grant_all());
    }

    fn info(&self) -> &Arc<StreamInfo> {
        &self.info
    }

    /// Returns the unread rest of the next chunk, as bytes that own their slot; `None` at the end of the stream. The
    /// slot is not copied. Its credit returns to the peer when the last clone of the bytes is dropped.
    ///
    /// The bytes may be kept forever, and dropped on any thread, even after the stream. At least two slots of
    /// the pool are never lent: a chunk in one of those is copied, as is a rest of up to 4 KiB. After the stream
    /// has ended or, over RDMA, has replaced its link, the memory of kept bytes adds to that of the pools.
    ///
    /// # Peers that are not trusted
    ///
    /// Over RDMA the bytes are memory that the peer's device has written, and the peer keeps the right to write it as
    /// long as the link lives. A peer writes only slots that were granted to it. But a peer that *has the key and
    /// breaks the protocol* can change the bytes at any time, also after they were verified and while this end holds
    /// them. A program that reads a byte twice, for instance to check a length and then to use it, may get two values;
    /// and bytes that were checked to be text may stop being text.
    /// [`StreamConfig::copy_received`](crate::StreamConfig::copy_received) prevents this with a copy. A peer without
    /// the key has no such right, and over TCP no peer has.
    ///
    /// # Errors
    ///
    /// Those of reading.
    ///
    /// # Cancel safety
    ///
    /// Safe: a chunk that was not returned is returned by the next call, or read.
    pub async fn read_chunk(&mut self) -> io::Result<Option<Bytes>> {
        poll_fn(|cx| self.poll_read_chunk(cx)).await
    }

    /// Polls for the next chunk: [`read_chunk`](Self::read_chunk) as a poll function.
    ///
    /// # Errors
    ///
    /// Those of reading.
    ///
    /// # Cancel safety
    ///
    /// Safe: `Pending` has consumed nothing.
    pub fn poll_read_chunk(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Option<Bytes>>> {
        either!(&mut self.half, half => half.poll_chunk(cx)).map_err(Into::into)
    }

    /// Confirms to the peer's [`finish`](crate::WriteHalf::finish) that this end has processed the stream to its end:
    /// all bytes are written, flushed or committed, as the use of the stream requires.
    ///
    /// # Errors
    ///
    /// [`Error::Misuse`] if the stream has not been read to its end; otherwise the error that ended the stream.
    pub fn confirm(&mut self) -> Result<(), Error> {
        either!(&self.half, half => half.confirm())
    }

    /// Tells the peer to stop sending, without a failure. The peer's writes then fail with [`Error::Stopped`], like
    /// writes to a pipe whose reader has closed it.
    pub fn stop(&mut self) {
        either!(&self.half, half => half.stop());
    }
}

stream_accessors!(ReadHalf);

// Every method is forwarded by hand, from the stream to its halves. So the data path has no dynamic calls, and the
// compiler can inline all of it.

impl AsyncRead for ReadHalf {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        either!(&mut self.half, half => half.poll_read(cx, buf)).map_err(Into::into)
    }
}

impl AsyncBufRead for ReadHalf {
    /// Returns the unread rest of the current chunk, in its slot. Over RDMA, a peer that has the key and breaks the
    /// protocol can change these bytes: see [`read_chunk`](Self::read_chunk).
    fn poll_fill_buf(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<&[u8]>> {
        either!(&mut self.get_mut().half, half => half.poll_fill(cx)).map_err(Into::into)
    }

    fn consume(mut self: Pin<&mut Self>, count: usize) {
        either!(&mut self.half, half => half.take(count));
    }
}

/// The half of a [`Stream`] that writes, from
/// [`Stream::into_split`](crate::Stream::into_split).
///
/// Dropping it without [`shutdown`](tokio::io::AsyncWriteExt::shutdown) aborts both directions, unless
/// [`OnDrop::Fin`](crate::OnDrop::Fin) is set.
pub struct WriteHalf {
    half: SendEither,
    info: Arc<StreamInfo>,
}

pub(crate) type SendEither = Either<SendHalf<Tcp>, SendHalf<Rdma>>;

impl WriteHalf {
    pub(crate) fn new(half: SendEither, info: Arc<StreamInfo>) -> Self {
        Self { half, info }
    }

    fn info(&self) -> &Arc<StreamInfo> {
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
    fn new(inner: LentEither) -> Self {
        Self(inner)
    }

    fn into_inner(self) -> LentEither {
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

/// A value over one of the two data paths.
pub(crate) enum Either<T, R> {
    /// Over TCP.
    Tcp(T),
    /// Over RDMA. In a build without RDMA no value of this kind is ever made.
    Rdma(R),
}

/// Runs one expression on the value of an [`Either`], whichever data path it is over.
macro_rules! either {
    ($either:expr, $inner:ident => $call:expr) => {
        match $either {
            $crate::transport::stream::Either::Tcp($inner) => $call,
            $crate::transport::stream::Either::Rdma($inner) => $call,
        }
    };
}

use either;
