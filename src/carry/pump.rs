//! The loop under every stage: source to stream, and stream to sink.
//!
//! Knows the tokio traits and [`FillSlots`], nothing else.

use std::{
    future::poll_fn,
    io,
    pin::Pin,
    task::{Context, Poll, ready},
};

use tokio::io::{AsyncBufRead, AsyncRead, AsyncWrite, ReadBuf};

use crate::transport::FillSlots;

/// Bytes after which a pump lets the other tasks of its thread run.
///
/// Files are read and written on the thread and never say `Pending`, so the pump must yield by
/// itself. 4 MiB is one round through the default pool (16 × 256 KiB): 0.4 ms from the page cache
/// at 10 GB/s, against which the microsecond that a yield costs is a quarter of a percent, and
/// 40 ms from a disk that gives 100 MB/s, the longest that a neighbour has to wait.
const TURN_BYTES: usize = 4 << 20;

/// Which end of a pump failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PumpError {
    /// The source could not be read after so many bytes.
    #[error("cannot read the input at byte {1}: {0}")]
    Source(#[source] io::Error, u64),
    /// The stream failed, or its peer wants no more.
    #[error("{0}")]
    Stream(#[source] io::Error),
    /// The sink took so many bytes, and not the next ones.
    #[error("cannot write the output at byte {1}: {0}")]
    Sink(#[source] io::Error, u64),
}

/// Reads `source` to its end, straight into the slots of `stream`. Returns the bytes moved.
///
/// Posts a partly filled slot when the source is idle. The end of the source is not passed on:
/// that takes the caller's `shutdown`.
///
/// # Errors
///
/// [`PumpError::Source`] or [`PumpError::Stream`], whichever fails first.
///
/// # Cancel safety
///
/// What was read is in the stream's slots and stays there; only the count is lost.
///
/// # Panics
///
/// When `stream` lends an empty slot: the read of nothing would look like the source's end.
pub(crate) async fn fill<S, T>(source: &mut S, stream: &mut T) -> Result<u64, PumpError>
where
    S: AsyncRead + Unpin,
    T: FillSlots,
{
    let mut total = 0;
    let mut turn = Turn::default();
    poll_fn(|cx| poll_fill(source, stream, &mut total, &mut turn, cx)).await?;
    Ok(total)
}

fn poll_fill<S: AsyncRead + Unpin, T: FillSlots>(
    source: &mut S,
    stream: &mut T,
    total: &mut u64,
    turn: &mut Turn,
    cx: &mut Context<'_>,
) -> Poll<Result<(), PumpError>> {
    loop {
        ready!(turn.poll_yield(cx));
        let slot = ready!(stream.poll_slot(cx)).map_err(PumpError::Stream)?;
        assert!(!slot.is_empty(), "an empty slot was lent out");
        let mut buf = ReadBuf::new(slot);
        match Pin::new(&mut *source).poll_read(cx, &mut buf) {
            Poll::Ready(Ok(())) => {}
            Poll::Ready(Err(error)) => return Poll::Ready(Err(PumpError::Source(error, *total))),
            Poll::Pending => {
                if let Poll::Ready(Err(error)) = stream.post(cx) {
                    return Poll::Ready(Err(PumpError::Stream(error)));
                }
                return Poll::Pending;
            }
        }
        let count = buf.filled().len();
        if count == 0 {
            return Poll::Ready(Ok(()));
        }
        stream.advance(count);
        *total += count as u64;
        turn.spend(count);
    }
}

/// Writes `stream` to its end into `sink`, straight out of the stream's buffers, and flushes it.
/// Returns the bytes moved.
///
/// # Errors
///
/// [`PumpError::Stream`] or [`PumpError::Sink`], whichever fails first.
///
/// # Cancel safety
///
/// Bytes that the sink has taken are consumed from the stream; only the count is lost.
pub(crate) async fn drain<R, W>(stream: &mut R, sink: &mut W) -> Result<u64, PumpError>
where
    R: AsyncBufRead + Unpin,
    W: AsyncWrite + Unpin,
{
    let mut sink = Blamed {
        sink,
        turn: Turn::default(),
        taken: 0,
        failed: false,
    };
    match tokio::io::copy_buf(stream, &mut sink).await {
        Ok(total) => Ok(total),
        Err(error) if sink.failed => Err(PumpError::Sink(error, sink.taken)),
        Err(error) => Err(PumpError::Stream(error)),
    }
}

/// How much was moved since the other tasks had their turn.
#[derive(Default)]
struct Turn {
    bytes: usize,
}

impl Turn {
    fn spend(&mut self, bytes: usize) {
        self.bytes = self.bytes.saturating_add(bytes);
    }

    /// `Pending` once, with the task woken already, after each [`TURN_BYTES`].
    fn poll_yield(&mut self, cx: &Context<'_>) -> Poll<()> {
        if self.bytes < TURN_BYTES {
            return Poll::Ready(());
        }
        self.bytes = 0;
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

/// A sink that remembers its own failure and how far it came, since `copy_buf` says neither whose
/// error it returns nor at which byte.
struct Blamed<'a, W> {
    sink: &'a mut W,
    turn: Turn,
    taken: u64,
    failed: bool,
}

impl<W> Blamed<'_, W> {
    fn blame<T>(&mut self, result: io::Result<T>) -> io::Result<T> {
        // `copy_buf` tries again after Interrupted, so that one is nobody's failure.
        self.failed |= matches!(&result, Err(error) if error.kind() != io::ErrorKind::Interrupted);
        result
    }
}

impl<W: AsyncWrite + Unpin> AsyncWrite for Blamed<'_, W> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        ready!(self.turn.poll_yield(cx));
        let result = match ready!(Pin::new(&mut *self.sink).poll_write(cx, buf)) {
            Ok(0) if !buf.is_empty() => Err(io::ErrorKind::WriteZero.into()),
            result => result,
        };
        let count = *result.as_ref().unwrap_or(&0);
        self.turn.spend(count);
        self.taken += count as u64;
        Poll::Ready(self.blame(result))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let result = ready!(Pin::new(&mut *self.sink).poll_flush(cx));
        Poll::Ready(self.blame(result))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let result = ready!(Pin::new(&mut *self.sink).poll_shutdown(cx));
        Poll::Ready(self.blame(result))
    }
}

#[cfg(test)]
mod tests;
