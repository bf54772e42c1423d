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

use super::{
    either::{Either, either},
    info::{StreamInfo, stream_accessors},
};
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
/// Dropping it before the end of the stream aborts both directions; [`stop`](Self::stop) first where
/// the rest is not wanted.
pub struct ReadHalf {
    half: RecvEither,
    info: Arc<StreamInfo>,
}

pub(super) type RecvEither = Either<RecvHalf<Tcp>, RecvHalf<Rdma>>;

impl ReadHalf {
    pub(crate) fn new(half: RecvEither, info: Arc<StreamInfo>) -> Self {
        Self { half, info }
    }

    pub(super) fn info(&self) -> &Arc<StreamInfo> {
        &self.info
    }

    /// The unread rest of the next chunk that arrives, as bytes to keep: not a copy of the slot that it
    /// arrived in but the slot itself, whose credit goes back to the peer when the last clone is
    /// dropped. `None` at the end of the stream.
    ///
    /// They may be kept for ever, and dropped on any thread, also when the stream is gone: at least two
    /// slots of the pool are never lent, and what arrives in those is copied. So is a rest of up to
    /// 4 KiB. Memory that the bytes hold is beside that of the pools, once the stream has ended or, over RDMA,
    /// replaced its link.
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

    /// [`read_chunk`](Self::read_chunk) as a poll function.
    ///
    /// # Errors
    ///
    /// Those of reading.
    ///
    /// # Cancel safety
    ///
    /// Safe: `Pending` has taken nothing.
    pub fn poll_read_chunk(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Option<Bytes>>> {
        either!(&mut self.half, half => half.poll_chunk(cx)).map_err(Into::into)
    }

    /// Tells the peer's [`finish`](crate::WriteHalf::finish) that everything read from this stream, to its
    /// end, has been taken: written, flushed, committed, whatever that is here.
    ///
    /// # Errors
    ///
    /// When the end of the stream has not been read, or the stream failed before.
    pub fn confirm(&mut self) -> Result<(), Error> {
        either!(&self.half, half => half.confirm())
    }

    /// Tells the peer that this end needs no more of its bytes, and that this is no failure: its writes fail
    /// with [`Error::Stopped`], as a pipe's do whose reader has left.
    pub fn stop(&mut self) {
        either!(&self.half, half => half.stop());
    }
}

stream_accessors!(ReadHalf);

// Every method is forwarded by hand, from the stream to its halves: nothing is dynamic on the data
// path, and the compiler sees through all of it.

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
    fn poll_fill_buf(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<&[u8]>> {
        either!(&mut self.get_mut().half, half => half.poll_fill(cx)).map_err(Into::into)
    }

    fn consume(mut self: Pin<&mut Self>, count: usize) {
        either!(&mut self.half, half => half.take(count));
    }
}
