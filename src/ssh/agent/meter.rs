//! Counts the bytes of an edge, and the time for which its stage waited for the edge.

use std::{
    io,
    pin::Pin,
    sync::atomic::{AtomicU64, Ordering},
    task::{Context, Poll},
    time::{Duration, Instant},
};

use tokio::io::{AsyncBufRead, AsyncRead, ReadBuf};

use crate::{Stream, Watch, carry::Watched, transport::FillSlots};

/// The counts of one edge. Other threads read them while the edge is in use.
#[derive(Debug, Default)]
pub(crate) struct Meter {
    bytes: AtomicU64,
    blocked_ns: AtomicU64,
}

impl Meter {
    /// Returns the number of bytes that the stage has received from the edge or sent into it.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Returns how long the stage has waited because the edge had no bytes to read or no room to write.
    pub(super) fn blocked(&self) -> Duration {
        Duration::from_nanos(self.blocked_ns.load(Ordering::Relaxed))
    }

    fn count(&self, bytes: usize) {
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }
}

/// A stream whose bytes and waiting times are counted. The clock is read only when a wait begins and when it ends, so
/// measuring costs nothing while the stream never waits.
pub(super) struct Metered<'a> {
    stream: &'a mut Stream,
    clock: WaitClock<'a>,
}

impl<'a> Metered<'a> {
    pub(super) fn new(stream: &'a mut Stream, meter: &'a Meter) -> Self {
        let clock = WaitClock { meter, since: None };
        Self { stream, clock }
    }
}

/// A clock that runs while the stage waits for the stream.
struct WaitClock<'a> {
    meter: &'a Meter,
    since: Option<Instant>,
}

impl WaitClock<'_> {
    /// Starts the clock if the stream returned `Pending`, and stops it otherwise.
    fn watch<T>(&mut self, answer: Poll<T>) -> Poll<T> {
        if answer.is_pending() {
            self.since.get_or_insert_with(Instant::now);
        } else {
            self.stop();
        }
        answer
    }

    fn stop(&mut self) {
        if let Some(since) = self.since.take() {
            let blocked = u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX);
            self.meter.blocked_ns.fetch_add(blocked, Ordering::Relaxed);
        }
    }
}

impl Drop for WaitClock<'_> {
    fn drop(&mut self) {
        self.stop();
    }
}

impl AsyncRead for Metered<'_> {
    /// Forwards to the stream without counting: the pump reads through [`AsyncBufRead`].
    ///
    /// # Cancel safety
    ///
    /// That of the stream.
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.get_mut().stream).poll_read(cx, buf)
    }
}

impl AsyncBufRead for Metered<'_> {
    /// Forwards to the stream, and counts the time for which it makes the stage wait.
    ///
    /// # Cancel safety
    ///
    /// That of the stream.
    fn poll_fill_buf(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<&[u8]>> {
        let Self { stream, clock } = self.get_mut();
        clock.watch(Pin::new(&mut **stream).poll_fill_buf(cx))
    }

    fn consume(mut self: Pin<&mut Self>, count: usize) {
        self.clock.meter.count(count);
        Pin::new(&mut *self.stream).consume(count);
    }
}

impl Watched for Metered<'_> {
    fn watch(&self) -> Watch {
        self.stream.watch()
    }
}

impl FillSlots for Metered<'_> {
    fn poll_slot(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<&mut [u8]>> {
        self.clock.watch(self.stream.poll_slot(cx))
    }

    fn advance(&mut self, count: usize) {
        self.clock.meter.count(count);
        self.stream.advance(count);
    }

    fn post(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream.post(cx)
    }
}
