//! The memory of `--buffer`, between a stream and its source or sink: a thread reads the source ahead, or writes the sink
//! later. So a stall of one side does not stop the other one before the memory is full, or empty.

use std::{
    collections::VecDeque,
    fs, io, mem,
    path::Path,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, ready},
};

use futures::{future::poll_fn, task::AtomicWaker};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf},
    task::JoinHandle,
};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::{CarryThread, StreamSink, StreamSource};
use crate::{
    fd::{Sink, Source},
    printable::size,
    threads,
};

/// The bytes of a piece of the memory: those of a chunk over TCP, so that a piece is moved while it is in the
/// processor's cache.
const PIECE_BYTES: usize = 512 << 10;

/// A source that a thread reads ahead.
pub(super) struct BufferedSource {
    queue: Arc<ByteQueue>,
    piece: Vec<u8>,
    /// The number of bytes of the piece that were taken.
    taken: usize,
    _reading: DropGuard,
}

impl BufferedSource {
    /// Starts to read `source`, up to `most` bytes ahead. The source is not to be used meanwhile.
    /// Fails if the system gives no thread or no descriptor.
    pub(super) fn start(source: &Source, most: u64) -> io::Result<Self> {
        let thread = CarryThread::start("buffer")?;
        let own = {
            let _entered = thread.enter();
            source.duplicate()?
        };
        let queue = Arc::new(ByteQueue::new(most)?);
        let (reader, stopped) = (Arc::clone(&queue), CancellationToken::new());
        let guard = stopped.clone().drop_guard();
        threads::spawn(async move {
            let reading = async move {
                let end = EndGuard(Arc::clone(&reader));
                let read = stopped.run_until_cancelled(read_ahead(own, &reader)).await;
                if let Some(read) = read {
                    reader.end(read);
                }
                drop(end);
            };
            thread.run(reading).await;
        });
        Ok(Self {
            queue,
            piece: Vec::new(),
            taken: 0,
            _reading: guard,
        })
    }
}

async fn read_ahead(mut source: Source, queue: &ByteQueue) -> io::Result<()> {
    let mut piece = vec![0; PIECE_BYTES];
    loop {
        let count = source.read(&mut piece).await?;
        if count == 0 {
            return Ok(());
        }
        let mut rest = &piece[..count];
        while !rest.is_empty() {
            let pushed = poll_fn(|cx| queue.poll_push(rest, cx)).await?;
            rest = &rest[pushed..];
        }
        // A file never makes the thread wait.
        tokio::task::yield_now().await;
    }
}

impl AsyncRead for BufferedSource {
    /// Copies bytes out of the memory.
    /// Cancel safe: bytes are either in `buf` or still in the memory.
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let me = self.get_mut();
        if me.taken == me.piece.len() {
            me.queue.give_back(mem::take(&mut me.piece));
            me.taken = 0;
            match ready!(me.queue.poll_pop(cx))? {
                Some(piece) => me.piece = piece,
                None => return Poll::Ready(Ok(())),
            }
        }
        let rest = &me.piece[me.taken..];
        let count = rest.len().min(buf.remaining());
        buf.put_slice(&rest[..count]);
        me.taken += count;
        Poll::Ready(Ok(()))
    }
}

impl StreamSource for BufferedSource {}

/// A sink that a thread writes later.
pub(super) struct BufferedSink {
    queue: Arc<ByteQueue>,
    writing: JoinHandle<()>,
    _writing: DropGuard,
}

impl BufferedSink {
    /// Makes a sink that keeps up to `most` bytes for `sink`, which is not to be used meanwhile.
    /// Fails if the system gives no thread or no descriptor.
    pub(super) fn start(sink: &Sink, most: u64) -> io::Result<Self> {
        let thread = CarryThread::start("buffer")?;
        let own = {
            let _entered = thread.enter();
            sink.duplicate()?
        };
        let queue = Arc::new(ByteQueue::new(most)?);
        let (writer, stopped) = (Arc::clone(&queue), CancellationToken::new());
        let guard = stopped.clone().drop_guard();
        let writing = threads::spawn(async move {
            let writing = async move {
                let end = EndGuard(Arc::clone(&writer));
                let write = write_later(own, &writer, &stopped);
                stopped.run_until_cancelled(write).await;
                drop(end);
            };
            thread.run(writing).await;
        });
        Ok(Self {
            queue,
            writing,
            _writing: guard,
        })
    }

    /// Waits until the thread has closed its descriptor, after a flush.
    pub(super) async fn finish(self) {
        self.queue.end(Ok(()));
        let _ = self.writing.await;
    }

    /// Returns the number of bytes that the sink itself has taken.
    pub(super) fn written(&self) -> u64 {
        self.queue.lock().written
    }
}

async fn write_later(mut sink: Sink, queue: &ByteQueue, stopped: &CancellationToken) {
    // A file never makes the thread wait.
    while !stopped.is_cancelled() {
        let Ok(Some(piece)) = poll_fn(|cx| queue.poll_pop(cx)).await else {
            return;
        };
        let mut rest = &piece[..];
        while !rest.is_empty() {
            let count = match sink.write(rest).await {
                Ok(0) => return queue.fail(io::ErrorKind::WriteZero.into()),
                Ok(count) => count,
                Err(error) => return queue.fail(error),
            };
            rest = &rest[count..];
            queue.lock().written += count as u64;
        }
        queue.give_back(piece);
    }
}

impl AsyncWrite for BufferedSink {
    /// Copies bytes into the memory.
    /// Cancel safe: bytes that are counted are in the memory.
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.queue.poll_push(buf, cx)
    }

    /// Waits until the sink has taken everything.
    /// Cancel safe.
    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.queue.poll_empty(cx)
    }

    /// Does what [`poll_flush`](Self::poll_flush) does.
    /// Cancel safe.
    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.queue.poll_empty(cx)
    }
}

impl StreamSink for BufferedSink {}

/// Bytes in order, between two threads.
struct ByteQueue {
    state: Mutex<QueueState>,
    /// Wakes the thread that takes bytes.
    filled: AtomicWaker,
    /// Wakes the thread that brings bytes.
    drained: AtomicWaker,
    most: usize,
}

#[derive(Default)]
struct QueueState {
    pieces: VecDeque<Vec<u8>>,
    /// Pieces without bytes. The last one is used first: while nothing stalls, all bytes go through the same memory.
    free: Vec<Vec<u8>>,
    /// The bytes of all pieces, and of the one that is being moved.
    bytes: usize,
    /// The bytes that the sink has taken.
    written: u64,
    /// How the bytes end, once that is known.
    end: Option<io::Result<()>>,
    /// True if no more bytes are taken.
    is_closed: bool,
    /// Why no more bytes are taken.
    failure: Option<io::Error>,
}

impl ByteQueue {
    /// Returns an empty queue for up to so many bytes.
    /// Fails if the host has less memory.
    fn new(most: u64) -> io::Result<Self> {
        let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let limit = group_limit(&own, |path| fs::read_to_string(path).ok());
        check_memory(most, &meminfo, limit)?;
        Ok(Self {
            state: Mutex::default(),
            filled: AtomicWaker::new(),
            drained: AtomicWaker::new(),
            most: usize::try_from(most).unwrap_or(usize::MAX).max(1),
        })
    }

    /// Copies as many of the bytes, of which there is one, as there is room for in a piece.
    fn poll_push(&self, bytes: &[u8], cx: &Context<'_>) -> Poll<io::Result<usize>> {
        let mut state = self.lock();
        state.check()?;
        let room = self.most.saturating_sub(state.bytes);
        if room == 0 {
            self.drained.register(cx.waker());
            return Poll::Pending;
        }
        let is_full = |piece: &Vec<u8>| piece.len() >= PIECE_BYTES;
        if state.pieces.back().is_none_or(is_full) {
            let free = state.free.pop();
            let piece = free.unwrap_or_else(|| Vec::with_capacity(PIECE_BYTES));
            state.pieces.push_back(piece);
        }
        let mut count = 0;
        if let Some(piece) = state.pieces.back_mut() {
            count = bytes.len().min(room).min(PIECE_BYTES - piece.len());
            piece.extend_from_slice(&bytes[..count]);
        }
        state.bytes += count;
        drop(state);
        self.filled.wake();
        Poll::Ready(Ok(count))
    }

    /// Takes the next piece; none at the end.
    fn poll_pop(&self, cx: &Context<'_>) -> Poll<io::Result<Option<Vec<u8>>>> {
        let mut state = self.lock();
        if let Some(piece) = state.pieces.pop_front() {
            return Poll::Ready(Ok(Some(piece)));
        }
        match state.end.take() {
            Some(Ok(())) => {
                state.end = Some(Ok(()));
                Poll::Ready(Ok(None))
            }
            Some(Err(error)) => Poll::Ready(Err(error)),
            None => {
                self.filled.register(cx.waker());
                Poll::Pending
            }
        }
    }

    /// Takes back a piece whose bytes were moved.
    fn give_back(&self, mut piece: Vec<u8>) {
        let mut state = self.lock();
        state.bytes -= piece.len();
        if piece.capacity() > 0 {
            piece.clear();
            state.free.push(piece);
        }
        drop(state);
        self.drained.wake();
    }

    /// Waits until all bytes were moved.
    fn poll_empty(&self, cx: &Context<'_>) -> Poll<io::Result<()>> {
        let mut state = self.lock();
        if state.bytes == 0 {
            return Poll::Ready(Ok(()));
        }
        state.check()?;
        self.drained.register(cx.waker());
        Poll::Pending
    }

    /// Ends the bytes, behind those that are there.
    fn end(&self, end: io::Result<()>) {
        self.lock().end.get_or_insert(end);
        self.filled.wake();
    }

    /// Takes no more bytes, for this reason.
    fn fail(&self, error: io::Error) {
        self.lock().failure.get_or_insert(error);
        self.close();
    }

    fn close(&self) {
        self.lock().is_closed = true;
        self.drained.wake();
    }

    fn lock(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the least memory limit, in bytes, of the control groups that this `/proc/self/cgroup` names, and of the groups
/// above them; none if they have no limit. A container has one.
fn group_limit(own: &str, read: impl Fn(&Path) -> Option<String>) -> Option<u64> {
    let group = own.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let root = Path::new("/sys/fs/cgroup");
    let path = root.join(group);
    let groups = path.ancestors().take_while(|path| path.starts_with(root));
    let limits = groups.filter_map(|path| read(&path.join("memory.max")));
    limits.filter_map(|text| text.trim().parse().ok()).min()
}

/// Fails if a host with this `/proc/meminfo`, and this limit of the control group, has less than so many bytes of memory
/// available: the kernel would end this process, or another one, when the buffer fills.
fn check_memory(bytes: u64, meminfo: &str, limit: Option<u64>) -> io::Result<()> {
    let mut lines = meminfo.lines();
    let line = lines.find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib = line.and_then(|line| line.trim().strip_suffix("kB"));
    let kib = kib.and_then(|kib| kib.trim().parse::<u64>().ok());
    let Some(kib) = kib.into_iter().chain(limit.map(|bytes| bytes >> 10)).min() else {
        return Ok(());
    };
    if bytes >> 10 <= kib {
        return Ok(());
    }
    let text = format!(
        "a buffer of {} needs more memory than this host has available, {}; give a smaller --buffer",
        size(bytes),
        size(kib >> 10 << 20)
    );
    Err(io::Error::new(io::ErrorKind::OutOfMemory, text))
}

impl QueueState {
    fn check(&mut self) -> io::Result<()> {
        match self.failure.take() {
            Some(error) => Err(error),
            None if self.is_closed => Err(io::Error::other("the thread of the buffer has ended")),
            None => Ok(()),
        }
    }
}

/// Ends a queue when its thread ends, by a panic too.
struct EndGuard(Arc<ByteQueue>);

impl Drop for EndGuard {
    fn drop(&mut self) {
        self.0.close();
        let why = io::Error::other("the thread of the buffer has ended");
        self.0.end(Err(why));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_limit_of_the_control_groups_counts() {
        let read = |path: &Path| match path.to_str()? {
            "/sys/fs/cgroup/jobs/one/memory.max" => Some("max\n".to_owned()),
            "/sys/fs/cgroup/jobs/memory.max" => Some("1048576\n".to_owned()),
            "/sys/fs/cgroup/memory.max" => Some("4194304\n".to_owned()),
            _ => None,
        };
        assert_eq!(group_limit("0::/jobs/one\n", read), Some(1 << 20));
        assert_eq!(group_limit("0::/\n", read), Some(4 << 20));
        assert_eq!(group_limit("1:cpu:/jobs\n", read), None);
    }

    #[test]
    fn a_buffer_that_is_larger_than_the_memory_is_refused() {
        let meminfo = "MemTotal:  2097152 kB\nMemAvailable:   1048576 kB\n";
        check_memory(1 << 30, meminfo, None).unwrap();
        check_memory(1 << 30, meminfo, Some(1 << 30)).unwrap();
        check_memory(1 << 40, "", None).unwrap();
        check_memory(1 << 30, meminfo, Some(1 << 29)).unwrap_err();
        let error = check_memory((1 << 30) + (1 << 20), meminfo, None).unwrap_err();
        assert_eq!(
            error.to_string(),
            "a buffer of 1025M needs more memory than this host has available, 1G; give a smaller --buffer"
        );
    }

    /// Small writes share a piece, and the memory of a piece is used again.
    #[test]
    fn the_memory_is_that_of_the_bytes() {
        let cx = &Context::from_waker(std::task::Waker::noop());
        let queue = ByteQueue::new(2 * PIECE_BYTES as u64).unwrap();
        let mut pushed = 0;
        while let Poll::Ready(count) = queue.poll_push(&[7; 100], cx) {
            pushed += count.unwrap();
        }
        assert_eq!((pushed, queue.lock().pieces.len()), (2 * PIECE_BYTES, 2));
        assert!(queue.poll_empty(cx).is_pending());
        for left in [1, 0] {
            let Poll::Ready(Ok(Some(piece))) = queue.poll_pop(cx) else {
                panic!("there is a piece");
            };
            assert_eq!(piece.len(), PIECE_BYTES);
            queue.give_back(piece);
            assert_eq!(queue.lock().pieces.len(), left);
        }
        assert!(queue.poll_empty(cx).is_ready());
        assert!(queue.poll_push(&[7], cx).is_ready());
        let state = queue.lock();
        assert_eq!((state.free.len(), state.pieces.len()), (1, 1));
    }

    #[test]
    fn a_queue_ends_for_both_sides() {
        let cx = &Context::from_waker(std::task::Waker::noop());
        let queue = ByteQueue::new(1 << 20).unwrap();
        assert!(queue.poll_push(b"last", cx).is_ready());
        queue.end(Ok(()));
        queue.end(Err(io::ErrorKind::Other.into()));
        assert!(matches!(queue.poll_pop(cx), Poll::Ready(Ok(Some(piece))) if piece == b"last"));
        for _ in 0..2 {
            assert!(matches!(queue.poll_pop(cx), Poll::Ready(Ok(None))));
        }
        queue.fail(io::ErrorKind::StorageFull.into());
        let failed = queue.poll_push(b"more", cx);
        assert!(
            matches!(failed, Poll::Ready(Err(error)) if error.kind() == io::ErrorKind::StorageFull)
        );
        let failed = queue.poll_empty(cx);
        assert!(matches!(failed, Poll::Ready(Err(_))));
    }
}
