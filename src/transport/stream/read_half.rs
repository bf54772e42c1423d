//! The half of a stream that reads.

use std::{
    future::poll_fn,
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use tokio::io::{AsyncBufRead, AsyncRead, ReadBuf};

use super::info::{Either, StreamInfo, either, stream_accessors};
use crate::{
    Error,
    transport::{
        data::{recv_half::RecvHalf, tcp::Tcp},
        rdma::Rdma,
    },
};

/// The half of a [`Stream`](crate::Stream) that reads, from
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

pub(in crate::transport) type RecvEither = Either<RecvHalf<Tcp>, RecvHalf<Rdma>>;

impl ReadHalf {
    pub(crate) fn new(half: RecvEither, info: Arc<StreamInfo>) -> Self {
        Self { half, info }
    }

    /// Grants the peer all slots, at the start of the stream.
    pub(super) fn grant_all(&self) {
        either!(&self.half, half => half.grant_all());
    }

    pub(super) fn info(&self) -> &Arc<StreamInfo> {
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
