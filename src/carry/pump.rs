//! The loop that moves bytes: source to stream, and stream to sink.
//!
//! The loop uses tokio's traits and [`FillSlots`], and allocates and copies nothing.

use std::{
    future::poll_fn,
    io,
    pin::Pin,
    task::{Context, Poll, ready},
};

use tokio::io::{AsyncBufRead, AsyncRead, AsyncWrite, ReadBuf};

use super::CarryError;
use crate::transport::FillSlots;

/// The number of bytes after which a pump lets the other tasks of its thread run.
///
/// Files are read and written on the thread and never return `Pending`, so the pump must yield by
/// itself. 4 MiB is half of the slots of a default pool (16 × 512 KiB over TCP, 4 × 2 MiB over RDMA),
/// so that a pump that is ready again soon finds the other half still in flight. From the page cache, at 10 GB/s, a turn takes
/// 0.4 ms, and a yield of about a microsecond costs a quarter of a percent. From a disk that gives
/// 100 MB/s, a turn takes 40 ms, which is the longest that another task of the thread waits.
const TURN_BYTES: usize = 4 << 20;

/// Reads `source` to its end, straight into the slots of `stream`. Returns the number of bytes.
///
/// A partly filled slot is posted when the source is idle. The end of the source is not sent.
///
/// # Errors
///
/// Returns [`CarryError::Source`] or [`CarryError::Stream`], for the end that fails first.
///
/// # Cancel safety
///
/// Bytes that were read stay in the stream's slots; only their number is lost.
///
/// # Panics
///
/// Panics if `stream` lends an empty slot: a read into it would look like the end of the source.
pub(super) async fn fill<S, T>(source: &mut S, stream: &mut T) -> Result<u64, CarryError>
where
    S: AsyncRead + Unpin,
    T: FillSlots,
{
    let mut total = 0;
    let mut turn = TurnBudget::default();
    poll_fn(|cx| poll_fill(source, stream, &mut total, &mut turn, cx)).await?;
    Ok(total)
}

fn poll_fill<S: AsyncRead + Unpin, T: FillSlots>(
    source: &mut S,
    stream: &mut T,
    total: &mut u64,
    turn: &mut TurnBudget,
    cx: &mut Context<'_>,
) -> Poll<Result<(), CarryError>> {
    loop {
        ready!(turn.poll_yield(cx));
        let slot = ready!(stream.poll_slot(cx)).map_err(|error| CarryError::of_stream(&error))?;
        assert!(!slot.is_empty(), "an empty slot was lent out");
        let mut buf = ReadBuf::new(slot);
        match Pin::new(&mut *source).poll_read(cx, &mut buf) {
            Poll::Ready(Ok(())) => {}
            Poll::Ready(Err(source)) => {
                let offset = *total;
                return Poll::Ready(Err(CarryError::Source { offset, source }));
            }
            Poll::Pending => {
                if let Poll::Ready(Err(error)) = stream.post(cx) {
                    return Poll::Ready(Err(CarryError::of_stream(&error)));
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

/// Writes all of `stream` into `sink`, straight out of the stream's buffers, and flushes the sink.
/// Returns the number of bytes.
///
/// # Errors
///
/// Returns [`CarryError::Stream`] or [`CarryError::Sink`], for the end that fails first.
///
/// # Cancel safety
///
/// Bytes that the sink took are consumed from the stream; only their number is lost.
pub(super) async fn drain<R, W>(stream: &mut R, sink: &mut W) -> Result<u64, CarryError>
where
    R: AsyncBufRead + Unpin,
    W: AsyncWrite + Unpin,
{
    let mut sink = ObservedSink {
        sink,
        turn: TurnBudget::default(),
        taken: 0,
        failed: false,
    };
    match tokio::io::copy_buf(stream, &mut sink).await {
        Ok(total) => Ok(total),
        Err(source) if sink.failed => {
            let offset = sink.taken;
            Err(CarryError::Sink { offset, source })
        }
        Err(error) => Err(CarryError::of_stream(&error)),
    }
}

/// Counts the bytes that were moved since the other tasks of the thread could run.
#[derive(Default)]
struct TurnBudget {
    bytes: usize,
}

impl TurnBudget {
    fn spend(&mut self, bytes: usize) {
        self.bytes = self.bytes.saturating_add(bytes);
    }

    /// Returns `Pending` once after each [`TURN_BYTES`], and wakes the task for its next turn.
    fn poll_yield(&mut self, cx: &Context<'_>) -> Poll<()> {
        if self.bytes < TURN_BYTES {
            return Poll::Ready(());
        }
        self.bytes = 0;
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

/// A sink that records whether it failed and how many bytes it took. An error of tokio's `copy_buf`
/// tells neither which end failed nor at which byte.
struct ObservedSink<'a, W> {
    sink: &'a mut W,
    turn: TurnBudget,
    taken: u64,
    failed: bool,
}

impl<W> ObservedSink<'_, W> {
    fn observe<T>(&mut self, result: io::Result<T>) -> io::Result<T> {
        // `copy_buf` tries again after Interrupted, so that is no failure of the sink.
        self.failed |= matches!(&result, Err(error) if error.kind() != io::ErrorKind::Interrupted);
        result
    }
}

impl<W: AsyncWrite + Unpin> AsyncWrite for ObservedSink<'_, W> {
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
        Poll::Ready(self.observe(result))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let result = ready!(Pin::new(&mut *self.sink).poll_flush(cx));
        Poll::Ready(self.observe(result))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let result = ready!(Pin::new(&mut *self.sink).poll_shutdown(cx));
        Poll::Ready(self.observe(result))
    }
}

#[cfg(test)]
mod tests;
