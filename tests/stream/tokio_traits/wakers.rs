//! A waiting task is woken when it can go on, and hardly ever otherwise.

use std::{
    future::Future,
    io,
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use anyhow::{Context as _, Result, bail, ensure};
use rdpipe::{Error, Stream, StreamConfig};
use tokio::{
    io::{AsyncBufRead, AsyncWrite, AsyncWriteExt},
    task::JoinHandle,
    time::sleep,
};

use super::{CHUNK, fill, pair};
use crate::support::{
    data_path::DataPath,
    pattern::{Pattern, own},
    waiting::{together, until},
    wakes::Wakes,
};

/// The most wakes for a chunk: its arrival, credits, completions, and a few that were not necessary.
const PER_CHUNK: usize = 8;

/// The most wakes within [`IDLE`], in which nothing happens.
const WHILE_IDLE: usize = 8;

/// A pause that is long enough to reveal a timer that wakes a task again and again.
const IDLE: Duration = Duration::from_millis(200);

/// A task that waits for a read, write, flush, shutdown or finish is woken when it can go on.
pub(crate) async fn a_waiting_task_is_woken(over: DataPath, base: StreamConfig) -> Result<()> {
    for wait in WAITS {
        let (mut a, b) = wait.begin(over, &base).await?;
        let wakes = Wakes::new();
        wait.pends(&mut a, &wakes)?;
        let (_b, outcome) = wait.go_on_and_drive(over, &mut a, b, &wakes).await?;
        outcome.with_context(|| format!("{wait:?}"))?;
        let chunks = a.stats().chunks_sent + 1;
        ensure!(
            wakes.count() <= PER_CHUNK * usize::try_from(chunks)?,
            "{wait:?}: woken {} times for {chunks} chunks",
            wakes.count()
        );
    }
    Ok(())
}

/// A task that polls after another task replaces its waker, and is woken in its place.
pub(crate) async fn the_last_task_to_poll_is_woken(
    over: DataPath,
    base: StreamConfig,
) -> Result<()> {
    for wait in WAITS {
        let (mut a, b) = wait.begin(over, &base).await?;
        let (first, second) = (Wakes::new(), Wakes::new());
        wait.pends(&mut a, &first)?;
        wait.pends(&mut a, &second)?;
        let (_b, outcome) = wait.go_on_and_drive(over, &mut a, b, &second).await?;
        outcome.with_context(|| format!("{wait:?}"))?;
        ensure!(second.count() > 0, "{wait:?}: never woken");
        ensure!(
            first.count() <= WHILE_IDLE,
            "{wait:?}: the first was woken {} times",
            first.count()
        );
    }
    Ok(())
}

/// A waiting task is not woken again and again while nothing happens.
pub(crate) async fn an_idle_task_is_not_woken(over: DataPath, base: StreamConfig) -> Result<()> {
    for wait in WAITS {
        let (mut a, b) = wait.begin(over, &base).await?;
        let wakes = Wakes::new();
        wait.pends(&mut a, &wakes)?;
        sleep(IDLE).await;
        let count = wakes.count();
        ensure!(count <= WHILE_IDLE, "{wait:?}: woken {count} times");
        wait.pends(&mut a, &wakes)?;
        let (_b, outcome) = wait.go_on_and_drive(over, &mut a, b, &wakes).await?;
        outcome.with_context(|| format!("{wait:?}"))?;
    }
    Ok(())
}

pub(crate) async fn a_failure_wakes_a_waiting_task(
    over: DataPath,
    base: StreamConfig,
) -> Result<()> {
    for wait in WAITS {
        let (mut a, mut b) = wait.begin(over, &base).await?;
        let wakes = Wakes::new();
        wait.pends(&mut a, &wakes)?;
        b.abort("part of the test");
        let outcome = wakes.drive(|cx| wait.poll(&mut a, cx)).await;
        let error = own(&outcome.expect_err("it was aborted"))?;
        let told = matches!(error, Error::PeerAborted { .. });
        ensure!(told, "{wait:?}: {error:?}");
    }
    Ok(())
}

/// A stream of many chunks comes to its end if both ends poll only after a wake.
pub(crate) async fn wakes_alone_drive_a_stream_to_its_end(
    over: DataPath,
    base: StreamConfig,
) -> Result<()> {
    const CHUNKS: u64 = 100;
    let (mut from, mut to) = pair(over, &base).await?;
    let writer = async move {
        let (wakes, pattern, mut at) = (Wakes::new(), Pattern::new(113), 0);
        while at < CHUNKS * CHUNK {
            let piece = pattern.piece(at, usize::try_from(CHUNKS * CHUNK - at)?);
            let write = |cx: &mut Context<'_>| Pin::new(&mut from).poll_write(cx, piece);
            at += wakes.drive(write).await? as u64;
        }
        let end = |cx: &mut Context<'_>| Pin::new(&mut from).poll_shutdown(cx);
        wakes.drive(end).await?;
        Ok((wakes.count(), from.stats().chunks_sent))
    };
    let reader = async move {
        let (wakes, pattern, mut at) = (Wakes::new(), Pattern::new(113), 0);
        loop {
            let count = wakes
                .drive(|cx| {
                    let bytes = ready!(Pin::new(&mut to).poll_fill_buf(cx))?;
                    pattern.check(at, bytes)?;
                    Poll::Ready(anyhow::Ok(bytes.len()))
                })
                .await?;
            if count == 0 {
                break;
            }
            Pin::new(&mut to).consume(count);
            at += count as u64;
        }
        ensure!(at == CHUNKS * CHUNK, "{at} bytes");
        Ok((wakes.count(), to.stats().chunks_received))
    };
    let ends = together(writer, reader).await?;
    for (wakes, chunks) in <[_; 2]>::from(ends) {
        println!("{wakes} wakes for {chunks} chunks");
        ensure!(
            wakes <= PER_CHUNK * usize::try_from(chunks)?,
            "{wakes} wakes for {chunks} chunks"
        );
    }
    Ok(())
}

/// More writes than fit into all pools and queues of a stream.
const MOST_WRITES: usize = 10_000;

/// The operation that a task waits for.
#[derive(Debug, Clone, Copy)]
enum Wait {
    Read,
    Write,
    Flush,
    Shutdown,
    Finish,
}

/// All operations that a task can wait for.
const WAITS: [Wait; 5] = [
    Wait::Read,
    Wait::Write,
    Wait::Flush,
    Wait::Shutdown,
    Wait::Finish,
];

impl Wait {
    fn poll(self, stream: &mut Stream, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut stream = Pin::new(stream);
        match self {
            Self::Read => {
                let count = ready!(stream.as_mut().poll_fill_buf(cx))?.len();
                stream.consume(count);
                Poll::Ready(Ok(()))
            }
            Self::Write => stream.poll_write(cx, &[0; 1000]).map_ok(drop),
            Self::Flush => stream.poll_flush(cx),
            Self::Shutdown => stream.poll_shutdown(cx),
            Self::Finish => pin!(stream.get_mut().finish()).poll(cx).map_err(Into::into),
        }
    }

    /// Returns two ends, the first of which must wait for the second.
    async fn begin(self, over: DataPath, base: &StreamConfig) -> Result<(Stream, Stream)> {
        let (mut a, b) = pair(over, base).await?;
        if !matches!(self, Self::Read) {
            fill(over, (&mut a, &b), &Pattern::new(112), 0).await?;
        }
        Ok((a, b))
    }

    /// Spawns a task in which the second end does what lets the first end go on.
    fn go_on(self, over: DataPath, mut b: Stream) -> JoinHandle<Result<Stream>> {
        tokio::spawn(async move {
            match self {
                Self::Read => {
                    b.write_all(b"!").await?;
                    b.flush().await?;
                }
                Self::Write | Self::Flush => {
                    Pattern::new(112).read(&mut b, 0..over.full()).await?;
                }
                Self::Shutdown | Self::Finish => {
                    Pattern::new(112).read_all(&mut b, 0..over.full()).await?;
                    b.confirm()?;
                }
            }
            Ok(b)
        })
    }

    /// Polls the operation and checks that it is pending. Writes may be accepted before: after a renewal, the chunks
    /// that were sealed before it wait beside the new pool, and leave room for others.
    fn pends(self, a: &mut Stream, wakes: &Arc<Wakes>) -> Result<()> {
        for _ in 0..MOST_WRITES {
            match wakes.poll(|cx| self.poll(a, cx)) {
                Poll::Pending => return Ok(()),
                Poll::Ready(Ok(())) if matches!(self, Self::Write) => {}
                polled @ Poll::Ready(_) => bail!("{self:?} has nothing to wait for: {polled:?}"),
            }
        }
        bail!("{self:?} never has anything to wait for")
    }

    /// Lets the second end act, waits for the wake of the first end, and returns the outcome of its operation.
    async fn go_on_and_drive(
        self,
        over: DataPath,
        a: &mut Stream,
        b: Stream,
        wakes: &Arc<Wakes>,
    ) -> Result<(Stream, io::Result<()>)> {
        let other = self.go_on(over, b);
        // The first end polls only after it was woken.
        until(|| wakes.count() > 0).await;
        let outcome = wakes.drive(|cx| self.poll(a, cx)).await;
        Ok((other.await??, outcome))
    }
}
