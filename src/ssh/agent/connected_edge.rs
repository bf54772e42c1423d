//! One end of a connected edge: moves the bytes of its stage, counts them and the time for which the stage waited, and
//! reports why it ends.

use std::{
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll},
    time::{Duration, Instant},
};

use tokio::io::{AsyncBufRead, AsyncRead, AsyncWrite, ReadBuf};

use super::cause::FirstCause;
use crate::{
    Error, Stream, Watch,
    carry::{self, CarryError, Watched},
    ssh::protocol::FaultKind,
    transport::FillSlots,
};

/// The stream of an edge, with its counts and the names for messages.
pub(crate) struct ConnectedEdge {
    pub(crate) stream: Stream,
    pub(super) meter: Arc<Meter>,
    /// The name of the other end in messages: "stage 1 (fs1)".
    pub(crate) peer: String,
    pub(super) cause: Arc<FirstCause>,
    /// The name of this stage in messages to peers: "stage 2 (fs2)".
    pub(super) stage: String,
}

/// The reason why an edge ends before all of its bytes are carried.
#[derive(Debug)]
pub(super) enum EarlyEnd {
    /// The next stage has stopped reading.
    Stopped,
    /// The stream broke.
    Stream(Error),
    /// The local source or sink failed after this many bytes.
    Local(io::Error, u64),
    /// Another part of the order failed. The failure is in the [`FirstCause`] already.
    Elsewhere,
}

impl From<Error> for EarlyEnd {
    fn from(error: Error) -> Self {
        match error {
            Error::Stopped { .. } => Self::Stopped,
            error => Self::Stream(error),
        }
    }
}

impl From<CarryError> for EarlyEnd {
    fn from(error: CarryError) -> Self {
        match error {
            CarryError::Source { offset, source } | CarryError::Sink { offset, source } => {
                Self::Local(source, offset)
            }
            CarryError::Stream(error) => error.into(),
        }
    }
}

impl ConnectedEdge {
    /// Writes the whole input to `sink`, up to a verified FIN.
    pub(super) async fn drain(
        &mut self,
        sink: &mut (impl AsyncWrite + Unpin),
    ) -> Result<(), EarlyEnd> {
        let mut input = Metered::new(&mut self.stream, &self.meter);
        let draining = carry::receive_all(&mut input, sink);
        unless_failed(&self.cause, draining).await.map(drop)
    }

    /// Sends all of `source`, without a FIN.
    pub(super) async fn fill(
        &mut self,
        source: &mut (impl AsyncRead + Unpin),
    ) -> Result<(), EarlyEnd> {
        let mut output = Metered::new(&mut self.stream, &self.meter);
        let filling = carry::send_all(source, &mut output);
        unless_failed(&self.cause, filling).await.map(drop)
    }

    /// Waits for `event`. Fails earlier if the stream breaks, the peer stops reading, or the order fails.
    ///
    /// # Cancel safety
    ///
    /// That of `event`.
    pub(super) async fn until<T>(&self, event: impl Future<Output = T>) -> Result<T, EarlyEnd> {
        let watch = self.stream.watch();
        unless_failed(&self.cause, carry::unless_interrupted(&watch, event)).await
    }

    /// Sends the FIN, and waits until the peer has confirmed that its sink accepted all bytes.
    pub(super) async fn finish(&mut self) -> Result<(), EarlyEnd> {
        unless_failed(&self.cause, self.stream.finish()).await
    }

    /// Fails the order because this edge broke. The peers on all edges receive the reason.
    pub(super) fn broken(&self, error: Error) {
        self.cause.broken(error, &self.peer, &self.stage);
    }

    /// Fails the order because of a failure in this process: of a file or a pipe, say.
    pub(super) fn fail_local(&self, text: impl Into<String>) {
        let text = text.into();
        let reason = format!("{}: {text}", self.stage);
        self.cause.fail(FaultKind::Local, text, reason);
    }

    /// Aborts the stream with the reason of the first failure, if the order has failed.
    pub(super) fn abort_if_failed(&mut self) {
        if self.cause.has_failed() {
            self.stream.abort(&self.cause.reason());
        }
    }

    /// Closes the edge, and waits until the peer has received how it ended.
    pub(super) async fn close(mut self) {
        self.abort_if_failed();
        self.stream.close().await;
    }
}

/// Waits for `work`. Fails with [`EarlyEnd::Elsewhere`] if another part of the order fails first.
///
/// # Cancel safety
///
/// That of `work`, which is dropped when the order fails.
async fn unless_failed<T, E: Into<EarlyEnd>>(
    cause: &FirstCause,
    work: impl Future<Output = Result<T, E>>,
) -> Result<T, EarlyEnd> {
    tokio::select! {
        biased;
        result = work => result.map_err(Into::into),
        () = cause.failed() => Err(EarlyEnd::Elsewhere),
    }
}

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
