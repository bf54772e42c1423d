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

use super::{CarryError, StreamSink, StreamSource, Watched, rails, unless_interrupted};
use crate::transport::FillSlots;

/// Sends all of `source` through `stream`, and no end of stream: more bytes may follow.
///
/// Returns the number of bytes. Bytes in a partly filled slot are posted when the source is idle.
/// The call fails as soon as the stream does, even while the source is idle.
/// Fails with [`CarryError::Source`] or [`CarryError::Stream`], for the end that fails first.
/// Cancelling loses only the number of bytes: those that were read stay in the stream's slots.
pub(crate) async fn send_all<S, T>(source: &mut S, stream: &mut T) -> Result<u64, CarryError>
where
    S: StreamSource,
    T: FillSlots + Watched,
{
    let watch = stream.watch();
    if let Some(railed) = stream.railed() {
        let chunks = 2 * railed.stream.rails() * railed.stream.chunk_bytes();
        if let Some(file) = source.positioned(chunks as u64) {
            return unless_interrupted(&watch, rails::send(file, railed)).await?;
        }
    }
    unless_interrupted(&watch, fill(source, stream)).await?
}

/// Receives all of `stream` into `sink`, up to the verified end of the stream, and flushes the sink.
///
/// Returns the number of bytes. The output is not committed and the peer is not told: a caller
/// commits its output first, and confirms the stream afterwards.
///
/// The call fails as soon as the stream does, even while the sink takes nothing. A failure that
/// arrives after the last byte and before the return counts as well: a peer that is gone by then
/// has not been served.
/// Fails with [`CarryError::Stream`] or [`CarryError::Sink`], for the end that fails first.
/// Cancelling loses only the number of bytes: those that the sink took are consumed from the stream.
pub(crate) async fn receive_all<R, W>(stream: &mut R, sink: &mut W) -> Result<u64, CarryError>
where
    R: AsyncBufRead + Watched + Unpin,
    W: StreamSink,
{
    let watch = stream.watch();
    let file = stream.railed().and_then(|_| sink.positioned());
    let received = match (stream.railed(), file) {
        (Some(railed), Some(file)) => {
            unless_interrupted(&watch, rails::receive(file, railed)).await??
        }
        _ => unless_interrupted(&watch, drain(stream, sink)).await??,
    };
    match watch.error() {
        None => Ok(received),
        Some(error) => Err(error.into()),
    }
}

/// The number of bytes after which a pump lets the other tasks of its thread run.
///
/// Files are read and written on the thread and never return `Pending`, so the pump must yield by itself. 4 MiB is half
/// of the slots of a default pool (16 × 512 KiB over TCP, 4 × 2 MiB over RDMA), so that a pump that is ready again soon
/// finds the other half still in flight. From the page cache, at 10 GB/s, a turn takes 0.4 ms, and a yield of about a
/// microsecond costs a quarter of a percent. From a disk that gives 100 MB/s, a turn takes 40 ms, which is the longest
/// that another task of the thread waits.
pub(super) const TURN_BYTES: usize = 4 << 20;

/// Reads `source` to its end, straight into the slots of `stream`. Returns the number of bytes.
///
/// A partly filled slot is posted when the source is idle. The end of the source is not sent.
/// Fails with [`CarryError::Source`] or [`CarryError::Stream`], for the end that fails first.
/// Cancelling loses only the number of bytes: those that were read stay in the stream's slots.
/// Panics if `stream` lends an empty slot: a read into it would look like the end of the source.
async fn fill<S, T>(source: &mut S, stream: &mut T) -> Result<u64, CarryError>
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
/// Fails with [`CarryError::Stream`] or [`CarryError::Sink`], for the end that fails first.
/// Cancelling loses only the number of bytes: those that the sink took are consumed from the stream.
async fn drain<R, W>(stream: &mut R, sink: &mut W) -> Result<u64, CarryError>
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
mod tests {
    use std::{
        collections::VecDeque,
        io,
        pin::Pin,
        sync::{
            Arc,
            atomic::{AtomicUsize, Ordering},
        },
        task::{Context, Poll, Wake, Waker},
    };

    use tokio::io::{AsyncBufRead, AsyncRead, AsyncWrite, ReadBuf};

    use super::{CarryError, FillSlots, TURN_BYTES, drain, fill};

    const SLOT_BYTES: usize = 8;

    /// One answer of a fake; after the last one it is at its end.
    enum Step {
        Give(&'static [u8]),
        Stall,
        Fail(io::ErrorKind),
    }

    #[derive(Default)]
    struct FakeSource(VecDeque<Step>);

    impl FakeSource {
        fn new(steps: impl IntoIterator<Item = Step>) -> Self {
            Self(steps.into_iter().collect())
        }

        fn poll_step(&mut self, most: usize) -> Poll<io::Result<&'static [u8]>> {
            match self.0.pop_front() {
                None => Poll::Ready(Ok(&[])),
                Some(Step::Stall) => Poll::Pending,
                Some(Step::Fail(kind)) => Poll::Ready(Err(kind.into())),
                Some(Step::Give(bytes)) => {
                    let (now, later) = bytes.split_at(bytes.len().min(most));
                    if !later.is_empty() {
                        self.0.push_front(Step::Give(later));
                    }
                    Poll::Ready(Ok(now))
                }
            }
        }
    }

    impl AsyncRead for FakeSource {
        fn poll_read(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            buf: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            self.poll_step(buf.remaining())
                .map_ok(|bytes| buf.put_slice(bytes))
        }
    }

    /// The other direction: gives what its steps say, and is asked to forget what was consumed.
    struct FakeReceiver {
        steps: FakeSource,
        current: &'static [u8],
    }

    impl FakeReceiver {
        fn new(steps: impl IntoIterator<Item = Step>) -> Self {
            Self {
                steps: FakeSource::new(steps),
                current: &[],
            }
        }
    }

    impl AsyncRead for FakeReceiver {
        fn poll_read(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
            _: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            unreachable!("the pump reads through the buffer")
        }
    }

    impl AsyncBufRead for FakeReceiver {
        fn poll_fill_buf(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<&[u8]>> {
            let me = self.get_mut();
            if me.current.is_empty() {
                match me.steps.poll_step(usize::MAX) {
                    Poll::Ready(Ok(bytes)) => me.current = bytes,
                    other => return other,
                }
            }
            Poll::Ready(Ok(me.current))
        }

        fn consume(mut self: Pin<&mut Self>, count: usize) {
            self.current = &self.current[count..];
        }
    }

    /// A stream that keeps what was posted, slot by slot.
    #[derive(Default)]
    struct FakeStream {
        slot: [u8; SLOT_BYTES],
        filled: usize,
        posted: Vec<Vec<u8>>,
        /// Fails once this many slots were posted.
        fails_after: Option<usize>,
        /// Calls of `post` that succeed before one fails.
        posts_until_failure: Option<usize>,
        /// Calls of `poll_slot` that find every slot in flight.
        stalls: usize,
    }

    impl FakeStream {
        fn check(&self) -> io::Result<()> {
            match self.fails_after {
                Some(limit) if self.posted.len() >= limit => {
                    Err(io::ErrorKind::ConnectionReset.into())
                }
                _ => Ok(()),
            }
        }

        fn flush(&mut self) {
            if self.filled > 0 {
                self.posted.push(self.slot[..self.filled].to_vec());
                self.filled = 0;
            }
        }
    }

    impl FillSlots for FakeStream {
        fn poll_slot(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<&mut [u8]>> {
            self.check()?;
            if self.stalls > 0 {
                self.stalls -= 1;
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            Poll::Ready(Ok(&mut self.slot[self.filled..]))
        }

        fn advance(&mut self, count: usize) {
            self.filled += count;
            if self.filled == SLOT_BYTES {
                self.flush();
            }
        }

        fn post(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            match &mut self.posts_until_failure {
                Some(0) => return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into())),
                Some(left) => *left -= 1,
                None => {}
            }
            self.flush();
            Poll::Ready(Ok(()))
        }
    }

    /// Takes at most `most` bytes a call, and fails once it holds `limit`.
    struct FakeSink {
        taken: Vec<u8>,
        most: usize,
        limit: usize,
        flush_fails: bool,
    }

    impl FakeSink {
        fn new(most: usize, limit: usize) -> Self {
            Self {
                taken: Vec::new(),
                most,
                limit,
                flush_fails: false,
            }
        }
    }

    impl AsyncWrite for FakeSink {
        fn poll_write(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            buf: &[u8],
        ) -> Poll<io::Result<usize>> {
            if self.taken.len() >= self.limit {
                return Poll::Ready(Err(io::ErrorKind::StorageFull.into()));
            }
            let count = buf.len().min(self.most);
            self.taken.extend_from_slice(&buf[..count]);
            Poll::Ready(Ok(count))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(if self.flush_fails {
                Err(io::ErrorKind::StorageFull.into())
            } else {
                Ok(())
            })
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    #[derive(Default)]
    struct Wakes(AtomicUsize);

    impl Wake for Wakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Polls `future` to its end, whether or not it was woken; counts the polls and the wakes.
    fn run<T>(future: impl Future<Output = T>) -> (T, usize, usize) {
        let count = Arc::new(Wakes::default());
        let waker = Waker::from(count.clone());
        let mut future = std::pin::pin!(future);
        for polls in 1.. {
            if let Poll::Ready(result) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
                return (result, polls, count.0.load(Ordering::Relaxed));
            }
        }
        unreachable!("the loop does not end")
    }

    #[test]
    fn short_reads_fill_whole_slots() {
        let mut source = FakeSource::new([
            Step::Give(b"abc"),
            Step::Give(b"defghijklm"),
            Step::Give(b"n"),
        ]);
        let mut stream = FakeStream::default();
        let (result, polls, _) = run(fill(&mut source, &mut stream));
        assert_eq!((result.unwrap(), polls), (14, 1));
        assert_eq!(stream.posted, [b"abcdefgh"]);
        assert_eq!(
            &stream.slot[..stream.filled],
            b"ijklmn",
            "the last slot is the shutdown's to post"
        );
    }

    #[test]
    fn a_stalled_source_posts_what_it_gave() {
        let mut source = FakeSource::new([
            Step::Stall,
            Step::Give(b"abc"),
            Step::Stall,
            Step::Stall,
            Step::Give(b"d"),
        ]);
        let mut stream = FakeStream::default();
        let (result, polls, _) = run(fill(&mut source, &mut stream));
        assert_eq!((result.unwrap(), polls), (4, 4));
        assert_eq!(stream.posted, [b"abc"]);
    }

    #[test]
    fn an_ended_source_moves_nothing() {
        let mut stream = FakeStream::default();
        let (result, ..) = run(fill(&mut FakeSource::default(), &mut stream));
        assert_eq!(result.unwrap(), 0);
        assert!(stream.posted.is_empty());
    }

    #[test]
    fn a_failing_source_is_blamed() {
        let mut source = FakeSource::new([Step::Give(b"abc"), Step::Fail(io::ErrorKind::Other)]);
        let (result, ..) = run(fill(&mut source, &mut FakeStream::default()));
        assert!(
            matches!(result, Err(CarryError::Source { offset: 3, .. })),
            "{result:?}"
        );
    }

    #[test]
    fn a_failing_stream_is_blamed() {
        let mut source = FakeSource::new([Step::Give(b"abcdefghijkl")]);
        let mut stream = FakeStream {
            fails_after: Some(1),
            ..FakeStream::default()
        };
        let (result, ..) = run(fill(&mut source, &mut stream));
        assert!(matches!(result, Err(CarryError::Stream(_))), "{result:?}");
    }

    /// A peer that dies while standard input is a silent terminal must not go unnoticed.
    #[test]
    fn a_stream_that_fails_while_the_source_is_idle_is_noticed() {
        let mut source = FakeSource::new([Step::Stall, Step::Stall, Step::Give(b"never read")]);
        let mut stream = FakeStream {
            stalls: 1,
            posts_until_failure: Some(1),
            ..FakeStream::default()
        };
        let (result, polls, _) = run(fill(&mut source, &mut stream));
        assert!(matches!(result, Err(CarryError::Stream(_))), "{result:?}");
        assert_eq!(polls, 3, "no slot, an idle source, and then the failure");
    }

    #[test]
    fn both_pumps_yield_once_a_turn() {
        static BYTES: [u8; 3 * TURN_BYTES + 1] = [7; 3 * TURN_BYTES + 1];
        let mut source = FakeSource::new([Step::Give(&BYTES)]);
        let mut stream = FakeStream::default();
        let (result, polls, wakes) = run(fill(&mut source, &mut stream));
        assert_eq!(result.unwrap(), BYTES.len() as u64);
        assert_eq!((polls, wakes), (4, 3), "each Pending comes with a wake");

        let mut receiver = FakeReceiver::new([Step::Give(&BYTES)]);
        let mut sink = FakeSink::new(TURN_BYTES / 4, usize::MAX);
        let (result, polls, wakes) = run(drain(&mut receiver, &mut sink));
        assert_eq!(result.unwrap(), BYTES.len() as u64);
        assert_eq!((polls, wakes), (4, 3));
    }

    #[test]
    fn short_writes_lose_nothing() {
        let mut receiver =
            FakeReceiver::new([Step::Give(b"abcdef"), Step::Stall, Step::Give(b"g")]);
        let mut sink = FakeSink::new(4, usize::MAX);
        let (result, ..) = run(drain(&mut receiver, &mut sink));
        assert_eq!(result.unwrap(), 7);
        assert_eq!(sink.taken, b"abcdefg");
    }

    #[test]
    fn drain_tells_whose_failure_it_was() {
        let broken = [Step::Give(b"abc"), Step::Fail(io::ErrorKind::TimedOut)];
        let (result, ..) = run(drain(
            &mut FakeReceiver::new(broken),
            &mut FakeSink::new(9, 9),
        ));
        assert!(matches!(result, Err(CarryError::Stream(_))), "{result:?}");

        for (most, limit, flush_fails, taken) in
            [(2, 2, false, 2), (0, 9, false, 0), (9, 9, true, 3)]
        {
            let mut sink = FakeSink::new(most, limit);
            sink.flush_fails = flush_fails;
            let mut receiver = FakeReceiver::new([Step::Give(b"abc")]);
            let (result, ..) = run(drain(&mut receiver, &mut sink));
            let blamed = matches!(result, Err(CarryError::Sink { offset: at, .. }) if at == taken);
            assert!(blamed, "{result:?}");
        }
    }

    /// The argument for the number of bytes in a turn.
    #[test]
    fn a_turn_is_half_of_a_default_pool() {
        let default = crate::StreamConfig::default();
        assert_eq!(2 * TURN_BYTES, default.chunk_bytes * default.depth);
    }
}
