//! Received chunks that the reader keeps as `Bytes`.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use rdpipe::{Stream, StreamConfig};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt},
    task::JoinHandle,
    time::sleep,
};

use super::{CHUNK, DEPTH, FULL, POOL, cancelled::at_once, fill, pair, small};
use crate::support::{data_path::DataPath, pattern::Pattern, random::Random};

/// Received chunks with their offsets in the stream.
type Kept = Vec<(u64, Bytes)>;

/// A reader that keeps chunks forever still receives ten more pools of bytes, and the kept chunks do not change.
pub(crate) async fn kept_chunks_never_block_the_stream(
    over: DataPath,
    base: StreamConfig,
) -> Result<()> {
    for depth in [2, 3, 4, 16] {
        let mut config = small(&base);
        config.depth = depth;
        let (from, mut to) = over.pair(config.clone(), config).await?;
        let bytes = 10 * CHUNK * depth as u64 + 5;
        let writer = sending(from, bytes);
        let (pattern, mut at) = (Pattern::new(140), 0);
        let mut kept = Kept::new();
        while at < bytes {
            let chunk = to.read_chunk().await?.context("it ends early")?;
            ensure!(!chunk.is_empty(), "an empty chunk");
            let begin = at;
            at += chunk.len() as u64;
            if kept.len() < 2 * depth {
                kept.push((begin, chunk));
            } else {
                pattern.check(begin, &chunk)?;
            }
        }
        ensure!(to.read_chunk().await?.is_none(), "more than was sent");
        ensure!(
            to.read_chunk().await?.is_none(),
            "an end that does not last"
        );
        to.confirm()?;
        writer.await??;
        unchanged(&kept).with_context(|| format!("depth {depth}"))?;
        drop(to);
        unchanged(&kept).with_context(|| format!("depth {depth}, the stream is gone"))?;
    }
    Ok(())
}

/// `read_chunk` (also cancelled), `read` and `fill_buf` can be mixed in any order, with chunks kept for a while.
pub(crate) async fn all_ways_to_read_can_be_mixed(
    over: DataPath,
    base: StreamConfig,
) -> Result<()> {
    let (from, mut to) = pair(over, &base).await?;
    let bytes = 10 * POOL + 7;
    let writer = sending(from, bytes);
    let (pattern, mut random) = (Pattern::new(140), Random::new(141));
    let (mut at, mut kept) = (0, Kept::new());
    let mut buffer = vec![0; 30_000];
    loop {
        let count = match random.within(0..4) {
            0 | 1 => {
                let chunk = match at_once(to.read_chunk()).await {
                    Some(chunk) => chunk?,
                    None => to.read_chunk().await?,
                };
                let Some(chunk) = chunk else { break };
                let count = chunk.len();
                kept.push((at, chunk));
                count
            }
            2 => {
                let most = usize::try_from(random.within(1..30_000))?;
                let count = to.read(&mut buffer[..most]).await?;
                pattern.check(at, &buffer[..count])?;
                count
            }
            _ => {
                let found = to.fill_buf().await?;
                pattern.check(at, found)?;
                // Sometimes no byte, or only a part of the chunk, is consumed.
                let count = found.len() / usize::try_from(random.within(1..4))?;
                to.consume(count);
                count
            }
        };
        at += count as u64;
        while !kept.is_empty() && random.within(0..3) == 0 {
            let place = usize::try_from(random.within(0..kept.len() as u64))?;
            unchanged(&[kept.swap_remove(place)])?;
        }
        if at == bytes && to.fill_buf().await?.is_empty() {
            break;
        }
    }
    ensure!(at == bytes, "{at} of {bytes} bytes");
    to.confirm()?;
    writer.await??;
    unchanged(&kept)
}

/// Dropping the last clone of a chunk, on any thread, returns its credit to the writer. A writer that waits only for
/// this credit goes on, although the reading end makes no call.
pub(crate) async fn dropping_a_kept_chunk_returns_its_credit(
    over: DataPath,
    base: StreamConfig,
) -> Result<()> {
    for elsewhere in [false, true] {
        let (mut from, mut to) = pair(over, &base).await?;
        let pattern = Pattern::new(140);
        fill(&mut from, &to, &pattern, 0).await?;
        let chunk = to.read_chunk().await?.context("no chunk")?;
        pattern.check(0, &chunk)?;
        let part = chunk.slice(1..chunk.len() - 1);
        drop(chunk);
        // 50 ms are long enough for all tasks of the reading end to become idle.
        for _ in 0..50 {
            let flushed = at_once(from.flush()).await;
            ensure!(flushed.is_none(), "the chunk is still held");
            sleep(Duration::from_millis(1)).await;
        }
        if elsewhere {
            // This thread has no runtime.
            let dropped = std::thread::spawn(move || drop(part)).join();
            ensure!(dropped.is_ok(), "a panic");
        } else {
            drop(part);
        }
        from.flush().await?;
        let received = to.stats().bytes_received;
        ensure!(received >= POOL, "{received}");
        from.shutdown().await?;
        pattern.read_all(&mut to, CHUNK..FULL).await?;
    }
    Ok(())
}

/// Kept chunks stay valid after their stream and its peer are gone, whether the stream was closed or aborted.
pub(crate) async fn chunks_outlive_the_stream(over: DataPath, base: StreamConfig) -> Result<()> {
    for aborted in [false, true] {
        let (mut from, mut to) = pair(over, &base).await?;
        let pattern = Pattern::new(140);
        fill(&mut from, &to, &pattern, 0).await?;
        let mut kept = Kept::new();
        for number in 0..DEPTH {
            let chunk = to.read_chunk().await?.context("no chunk")?;
            ensure!(chunk.len() as u64 == CHUNK, "{}", chunk.len());
            kept.push((number * CHUNK, chunk));
        }
        if aborted {
            from.abort("part of the test");
            // Chunks that were already on their way may arrive first.
            let end = loop {
                let next = to.read_chunk().await;
                if !matches!(next, Ok(Some(_))) {
                    break next;
                }
            };
            ensure!(end.is_err(), "an abort is no end of file");
        }
        tokio::join!(from.close(), to.close());
        unchanged(&kept)?;
        let later = tokio::task::spawn_blocking(move || unchanged(&kept));
        later.await??;
    }
    Ok(())
}

/// `read_chunk` returns the rest of a chunk that was partly read, and a chunk that is not full.
pub(crate) async fn read_chunk_returns_the_rest_of_a_chunk(
    over: DataPath,
    base: StreamConfig,
) -> Result<()> {
    let (mut from, mut to) = pair(over, &base).await?;
    let pattern = Pattern::new(140);
    pattern.write(&mut from, 0..2 * CHUNK + 10).await?;
    from.shutdown().await?;
    pattern.read(&mut to, 0..1000).await?;
    let rest = to.read_chunk().await?.context("no chunk")?;
    ensure!(rest.len() as u64 == CHUNK - 1000, "{}", rest.len());
    pattern.read(&mut to, CHUNK..2 * CHUNK).await?;
    let small = to.read_chunk().await?.context("no chunk")?;
    ensure!(small.len() == 10, "{}", small.len());
    ensure!(to.read_chunk().await?.is_none() && to.read(&mut [0]).await? == 0);
    to.confirm()?;
    from.finish().await?;
    unchanged(&[(1000, rest), (2 * CHUNK, small)])
}

/// Spawns a task that writes `bytes` bytes and finishes the stream.
fn sending(mut from: Stream, bytes: u64) -> JoinHandle<Result<()>> {
    tokio::spawn(async move {
        Pattern::new(140).write(&mut from, 0..bytes).await?;
        Ok(from.finish().await?)
    })
}

fn unchanged(kept: &[(u64, Bytes)]) -> Result<()> {
    let pattern = Pattern::new(140);
    for (at, chunk) in kept {
        pattern.check(*at, chunk).context("a kept chunk")?;
    }
    Ok(())
}
