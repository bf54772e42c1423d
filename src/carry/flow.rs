//! The options `--buffer` and `--bwlimit`: without them the bytes go as without this module. The limit is so many bytes
//! per second, for the lanes of a copy, and for a source or a sink.

use std::{
    io,
    pin::Pin,
    sync::{Mutex, PoisonError},
    task::{Context, Poll, ready},
    time::{Duration, Instant},
};

use tokio::{
    io::{AsyncBufRead, AsyncRead, AsyncWrite, ReadBuf},
    time::{Sleep, sleep},
};

use super::{
    CarryError, Finish, StreamSink, StreamSource, Watched,
    buffer::{BufferedSink, BufferedSource},
    pump::{receive_all, send_all},
};
use crate::{
    fd::{Sink, Source},
    options::FlowOptions,
    transport::FillSlots,
};

/// Sends all of `source` through `stream`, as [`send_all`] does.
/// Fails as [`send_all`] does, and if the system gives no thread for the buffer.
/// Cancelling is as with [`send_all`]; bytes in the buffer are lost.
pub(crate) async fn send<T>(
    source: &mut Source,
    stream: &mut T,
    flow: FlowOptions,
) -> Result<u64, CarryError>
where
    T: FillSlots + Watched,
{
    match (flow.buffer, flow.bwlimit) {
        (None, None) => send_all(source, stream).await,
        (None, Some(rate)) => send_all(&mut Paced::new(source, rate), stream).await,
        (Some(most), rate) => {
            let mut source = BufferedSource::start(source, most).map_err(CarryError::Buffer)?;
            match rate {
                None => send_all(&mut source, stream).await,
                Some(rate) => send_all(&mut Paced::new(&mut source, rate), stream).await,
            }
        }
    }
}

/// Sends all of `source`, as [`send`] does, and the end of the stream, and waits until the peer has confirmed both.
///
/// Returns the number of bytes. If the source is not a regular file, the call waits for [`SETTLE_DELAY`] before it sends
/// the end of the stream; a caller that handles signals must drop the future when one arrives.
/// Cancelling is as with [`send`]; the stream ends only if the end was sent before.
pub(crate) async fn send_and_finish<T>(
    source: &mut Source,
    stream: &mut T,
    flow: FlowOptions,
) -> Result<u64, CarryError>
where
    T: FillSlots + Watched + Finish,
{
    let sent = send(source, stream, flow).await?;
    if !source.is_regular_file() {
        sleep(SETTLE_DELAY).await;
    }
    stream.finish().await?;
    Ok(sent)
}

/// The time between the end of a source that is not a regular file and the end of the stream.
///
/// `^C` sends a signal to every program of a shell's pipeline. If the program in front of the pipe
/// dies first, its unfinished output must not be delivered as a complete one: this program needs the
/// time to receive its own signal. The thread that handles signals needs one turn of the scheduler,
/// well under a millisecond on an idle machine; 10 ms are many turns, and too short for a user to see.
pub(super) const SETTLE_DELAY: Duration = Duration::from_millis(10);

/// Receives all of `stream` into `sink`, as [`receive_all`] does.
/// Fails as [`receive_all`] does, and if the system gives no thread for the buffer.
/// Cancelling is as with [`receive_all`]; bytes in the buffer are lost.
pub(crate) async fn receive<R>(
    stream: &mut R,
    sink: &mut Sink,
    flow: FlowOptions,
) -> Result<u64, CarryError>
where
    R: AsyncBufRead + Watched + Unpin,
{
    let most = match (flow.buffer, flow.bwlimit) {
        (None, None) => return receive_all(stream, sink).await,
        (None, Some(rate)) => return receive_all(stream, &mut Paced::new(sink, rate)).await,
        (Some(most), _) => most,
    };
    let mut buffered = BufferedSink::start(sink, most).map_err(CarryError::Buffer)?;
    let received = match flow.bwlimit {
        None => receive_all(stream, &mut buffered).await,
        Some(rate) => receive_all(stream, &mut Paced::new(&mut buffered, rate)).await,
    };
    match received {
        Ok(bytes) => {
            buffered.finish().await;
            Ok(bytes)
        }
        Err(CarryError::Sink { source, .. }) => Err(CarryError::Sink {
            offset: buffered.written(),
            source,
        }),
        Err(error) => Err(error),
    }
}

/// The time that a rate may be made up for: bytes that were not sent for longer are not caught up.
const BURST: Duration = Duration::from_millis(100);

/// The fewest bytes that are sent at a time.
const MIN_PIECE: usize = 4 << 10;

/// A limit of the bytes per second, shared by all who move them.
pub(crate) struct RateLimit {
    bytes_per_second: u64,
    /// When all bytes that were sent so far may have been sent.
    paid: Mutex<Instant>,
}

impl RateLimit {
    /// Returns a limit. A rate of 0 counts as 1 byte per second.
    pub(crate) fn new(bytes_per_second: u64) -> Self {
        Self {
            bytes_per_second: bytes_per_second.max(1),
            paid: Mutex::new(Instant::now()),
        }
    }

    /// Returns the most bytes that are sent at a time: those of a twentieth of a second, so that a slow rate is even.
    pub(crate) fn most_bytes(&self) -> usize {
        let piece = usize::try_from(self.bytes_per_second / 20).unwrap_or(usize::MAX);
        piece.max(MIN_PIECE)
    }

    /// Counts bytes that were sent, and returns how long the caller has to wait now.
    pub(crate) fn count(&self, bytes: usize) -> Duration {
        let now = Instant::now();
        let mut paid = self.paid.lock().unwrap_or_else(PoisonError::into_inner);
        let earliest = now.checked_sub(BURST).unwrap_or(now);
        #[allow(clippy::cast_precision_loss, reason = "a duration of some seconds")]
        let cost = Duration::from_secs_f64(bytes as f64 / self.bytes_per_second as f64);
        *paid = (*paid).max(earliest) + cost;
        paid.saturating_duration_since(now)
    }
}

/// A source or a sink that is slowed down.
pub(super) struct Paced<'a, T> {
    inner: &'a mut T,
    limit: RateLimit,
    pause: Pin<Box<Sleep>>,
}

impl<'a, T> Paced<'a, T> {
    /// Slows `inner` down to so many bytes per second.
    pub(super) fn new(inner: &'a mut T, bytes_per_second: u64) -> Self {
        Self {
            inner,
            limit: RateLimit::new(bytes_per_second),
            pause: Box::pin(sleep(Duration::ZERO)),
        }
    }

    fn moved(&mut self, bytes: usize) {
        let pause = Instant::now() + self.limit.count(bytes);
        self.pause.as_mut().reset(pause.into());
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Paced<'_, T> {
    /// Reads a part of the bytes, after a pause.
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let me = self.get_mut();
        ready!(me.pause.as_mut().poll(cx));
        let most = me.limit.most_bytes().min(buf.remaining());
        let mut part = ReadBuf::new(buf.initialize_unfilled_to(most));
        ready!(Pin::new(&mut *me.inner).poll_read(cx, &mut part))?;
        let count = part.filled().len();
        buf.advance(count);
        me.moved(count);
        Poll::Ready(Ok(()))
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Paced<'_, T> {
    /// Writes a part of the bytes, after a pause.
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let me = self.get_mut();
        ready!(me.pause.as_mut().poll(cx));
        let part = &buf[..buf.len().min(me.limit.most_bytes())];
        let count = ready!(Pin::new(&mut *me.inner).poll_write(cx, part))?;
        me.moved(count);
        Poll::Ready(Ok(count))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.get_mut().inner).poll_flush(cx)
    }

    /// Shuts the sink down.
    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.get_mut().inner).poll_shutdown(cx)
    }
}

impl<T: StreamSource> StreamSource for Paced<'_, T> {}

impl<T: StreamSink> StreamSink for Paced<'_, T> {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_of_bytes_takes_a_second() {
        let limit = RateLimit::new(1 << 20);
        assert_eq!(limit.most_bytes(), (1 << 20) / 20);
        let mut wait = Duration::ZERO;
        for _ in 0..32 {
            wait = limit.count(1 << 15);
        }
        assert!(wait > Duration::from_millis(800) && wait <= Duration::from_secs(1));
        assert_eq!(RateLimit::new(10).most_bytes(), MIN_PIECE);
    }
}
