//! The halves of a stream in two tasks.

use std::{
    future::{Future, poll_fn},
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use rdpipe::{Stream, StreamConfig, Watch};
use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt},
    task::JoinSet,
};
use tokio_util::sync::CancellationToken;

use super::{CHUNK, POOL, pair};
use crate::support::{
    data_path::DataPath,
    pattern::Pattern,
    waiting::{together, until},
};

/// The number of bytes that each end sends.
const BYTES: u64 = 12 * POOL + 5;

/// The byte at which each end stops reading for a while, in the middle of a chunk.
const STOP: u64 = 3 * POOL + CHUNK / 2;

/// The time without any progress after which both ends count as blocked. No single step of a stream takes as long.
const STILL: Duration = Duration::from_millis(200);

/// Both ends write and read at full speed, stop reading, and go on, with the halves of `into_split`.
pub(crate) async fn both_ends_can_stop_reading_and_go_on(
    over: DataPath,
    base: StreamConfig,
) -> Result<()> {
    let (a, b) = pair(over, &base).await?;
    let mut pause = Pause::new(&a, &b);
    let ((a_reads, a_writes), (b_reads, b_writes)) = (a.into_split(), b.into_split());
    pause.run(a_reads, a_writes, [108, 109]);
    pause.run(b_reads, b_writes, [109, 108]);
    pause.end().await
}

/// Both ends write and read at full speed, stop reading, and go on, with the halves of `tokio::io::split`.
pub(crate) async fn both_ends_can_stop_reading_when_split_by_tokio(
    over: DataPath,
    base: StreamConfig,
) -> Result<()> {
    let (a, b) = pair(over, &base).await?;
    let mut pause = Pause::new(&a, &b);
    let ((a_reads, a_writes), (b_reads, b_writes)) = (tokio::io::split(a), tokio::io::split(b));
    pause.run(a_reads, a_writes, [108, 109]);
    pause.run(b_reads, b_writes, [109, 108]);
    pause.end().await
}

/// Both ends can shut down while both receive pools are full and neither end reads.
pub(crate) async fn both_ends_can_shut_down_with_full_pools(
    over: DataPath,
    base: StreamConfig,
) -> Result<()> {
    let (a, b) = pair(over, &base).await?;
    let ((mut a_reads, mut a_writes), (mut b_reads, mut b_writes)) =
        (a.into_split(), b.into_split());
    let one = async move {
        Pattern::new(110).write(&mut a_writes, 0..POOL).await?;
        Ok((a_writes.shutdown().await?, a_writes))
    };
    let other = async move {
        Pattern::new(111).write(&mut b_writes, 0..POOL).await?;
        Ok((b_writes.shutdown().await?, b_writes))
    };
    together(one, other).await?;
    Pattern::new(111).read_all(&mut a_reads, 0..POOL).await?;
    Pattern::new(110).read_all(&mut b_reads, 0..POOL).await
}

/// The borrowed halves of `split` work at once in one task. The owned halves of `into_split` can be reunited, but only
/// if both come from one stream.
pub(crate) async fn halves_can_be_borrowed_and_reunited(
    over: DataPath,
    base: StreamConfig,
) -> Result<()> {
    let (mut a, mut b) = pair(over, &base).await?;
    tokio::try_join!(exchange(&mut a, [114, 115]), exchange(&mut b, [115, 114]))?;
    let ((a_reads, a_writes), (b_reads, b_writes)) = (a.into_split(), b.into_split());
    let wrong = a_reads.reunite(b_writes).err();
    let (a_reads, b_writes) = wrong.context("halves of two streams")?.into_inner();
    let (mut a, mut b) = (a_reads.reunite(a_writes)?, b_reads.reunite(b_writes)?);
    tokio::try_join!(exchange(&mut a, [114, 115]), exchange(&mut b, [115, 114]))?;
    Ok(())
}

async fn exchange(end: &mut Stream, [ours, theirs]: [u64; 2]) -> Result<()> {
    let (reads, writes) = end.split();
    let (ours, theirs) = (Pattern::new(ours), Pattern::new(theirs));
    let writing = async {
        ours.write(writes, 0..BYTES).await?;
        anyhow::Ok(writes.flush().await?)
    };
    tokio::try_join!(writing, theirs.read(reads, 0..BYTES))?;
    Ok(())
}

/// Two ends with a task for each half. The reading tasks pause until they are told to go on.
struct Pause {
    watches: [Watch; 2],
    /// The number of bytes that the pools of all rails hold at one end.
    pools: u64,
    going_on: CancellationToken,
    /// The number of polls of the writing tasks.
    polls: Arc<AtomicUsize>,
    /// The number of writing tasks that have written everything.
    written: Arc<AtomicUsize>,
    tasks: JoinSet<Result<()>>,
}

impl Pause {
    fn new(a: &Stream, b: &Stream) -> Self {
        Self {
            watches: [a.watch(), b.watch()],
            pools: a.rails() as u64 * POOL,
            going_on: CancellationToken::new(),
            polls: Arc::default(),
            written: Arc::default(),
            tasks: JoinSet::new(),
        }
    }

    /// Spawns the two tasks of one end, which writes the first pattern and reads the second.
    fn run(
        &mut self,
        mut reads: impl AsyncRead + Unpin + Send + 'static,
        mut writes: impl AsyncWrite + Unpin + Send + 'static,
        [ours, theirs]: [u64; 2],
    ) {
        let written = Arc::clone(&self.written);
        let writing = async move {
            Pattern::new(ours).write(&mut writes, 0..BYTES).await?;
            written.fetch_add(1, Ordering::SeqCst);
            anyhow::Ok(writes.shutdown().await?)
        };
        self.tasks.spawn(counted(writing, Arc::clone(&self.polls)));
        let going_on = self.going_on.clone();
        self.tasks.spawn(async move {
            let pattern = Pattern::new(theirs);
            pattern.read(&mut reads, 0..STOP).await?;
            going_on.cancelled().await;
            pattern.read(&mut reads, STOP..BYTES).await?;
            let more = tokio::io::copy(&mut reads, &mut tokio::io::sink()).await?;
            ensure!(more == 0, "{more} bytes more");
            Ok(())
        });
    }

    /// Waits until backpressure blocks both ends (a task in a busy loop is polled, so it does not count as blocked),
    /// lets the readers go on, and waits for the end of all tasks.
    async fn end(mut self) -> Result<()> {
        let mut last = self.standing();
        let mut since = Instant::now();
        until(|| {
            let now = self.standing();
            if now != last {
                (last, since) = (now, Instant::now());
            }
            let is_full = self.sent().iter().all(|sent| *sent >= STOP + POOL - CHUNK);
            is_full && since.elapsed() > STILL
        })
        .await;
        for sent in self.sent() {
            ensure!(sent <= STOP + self.pools, "{sent} bytes sent, {STOP} read");
        }
        ensure!(self.written.load(Ordering::SeqCst) == 0, "all was written");
        self.going_on.cancel();
        while let Some(ended) = self.tasks.join_next().await {
            ended??;
        }
        Ok(())
    }

    fn sent(&self) -> [u64; 2] {
        self.watches.each_ref().map(|end| end.stats().bytes_sent)
    }

    fn standing(&self) -> ([u64; 2], usize) {
        (self.sent(), self.polls.load(Ordering::SeqCst))
    }
}

/// Counts how often `future` is polled.
async fn counted<T>(future: impl Future<Output = T>, polls: Arc<AtomicUsize>) -> T {
    let mut future = pin!(future);
    poll_fn(|cx| {
        polls.fetch_add(1, Ordering::SeqCst);
        future.as_mut().poll(cx)
    })
    .await
}
