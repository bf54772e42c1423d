//! The half of a stream that writes.

use std::{
    future::poll_fn,
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use tokio::io::AsyncWrite;

#[cfg(feature = "rdma")]
use super::rdma;
use super::{
    either::{Either, either},
    info::{Info, questions},
    send::SendHalf,
    tcp::Tcp,
};
use crate::{Error, pump::FillSlots};

/// The half of a [`Stream`](crate::Stream) that writes, from
/// [`Stream::into_split`](crate::Stream::into_split).
///
/// Dropping it without [`shutdown`](tokio::io::AsyncWriteExt::shutdown) aborts both directions.
pub struct WriteHalf {
    half: SendEither,
    info: Arc<Info>,
}

#[cfg(feature = "rdma")]
pub(super) type SendEither = Either<SendHalf<Tcp>, SendHalf<rdma::Rdma>>;
#[cfg(not(feature = "rdma"))]
pub(super) type SendEither = Either<SendHalf<Tcp>, std::convert::Infallible>;

impl WriteHalf {
    pub(super) fn new(half: SendEither, info: Arc<Info>) -> Self {
        Self { half, info }
    }

    pub(super) fn info(&self) -> &Arc<Info> {
        &self.info
    }

    /// Completes when the peer's sink has taken every byte written here: [`shutdown`], then the
    /// peer's [`confirm`](crate::Stream::confirm).
    ///
    /// [`shutdown`]: tokio::io::AsyncWriteExt::shutdown
    ///
    /// # Errors
    ///
    /// Whatever ended the stream before; [`Error::Unconfirmed`] when all bytes had arrived and
    /// only the confirmation is missing.
    ///
    /// # Cancel safety
    ///
    /// Safe: call it again.
    pub async fn finish(&mut self) -> Result<(), Error> {
        poll_fn(|cx| either!(&mut self.half, half => half.poll_finish(cx))).await
    }
}

questions!(WriteHalf);

impl AsyncWrite for WriteHalf {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        either!(&mut self.half, half => half.poll_write(cx, bytes)).map_err(Into::into)
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
