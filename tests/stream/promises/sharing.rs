//! Both directions at once, both halves at once, and futures that are dropped before they complete.

use std::io::IoSlice;

use anyhow::{Result, ensure};
use futures::FutureExt;
use rdpipe::{Stream, StreamConfig};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt},
    task::yield_now,
};

use super::{POOL, pair};
use crate::support::{data_path::DataPath, pattern::Pattern, random::Random, waiting::together};

/// Both ends write and read at once, each end in one task.
pub(crate) async fn both_directions_work_at_once(over: DataPath, base: StreamConfig) -> Result<()> {
    let (a, b) = pair(over, &base).await?;
    together(exchange(a, 25, 26), exchange(b, 26, 25)).await?;
    Ok(())
}

/// Writes and reads with the two halves of a stream at once, in one task.
async fn exchange(stream: Stream, ours: u64, theirs: u64) -> Result<()> {
    let (mut reads, mut writes) = tokio::io::split(stream);
    let write = async {
        Pattern::new(ours)
            .write(&mut writes, 0..8 * POOL + 1)
            .await?;
        anyhow::Ok(writes.shutdown().await?)
    };
    let read = async { Pattern::new(theirs).read(&mut reads, 0..8 * POOL + 1).await };
    tokio::try_join!(write, read)?;
    ensure!(reads.read(&mut [0]).await? == 0, "more than was written");
    Ok(())
}

/// Both ends write and read at once, each half in a task of its own.
pub(crate) async fn halves_work_in_two_tasks_at_once(
    over: DataPath,
    base: StreamConfig,
) -> Result<()> {
    let (a, b) = pair(over, &base).await?;
    together(in_two_tasks(a, 27, 28), in_two_tasks(b, 28, 27)).await?;
    Ok(())
}

async fn in_two_tasks(stream: Stream, ours: u64, theirs: u64) -> Result<()> {
    let (mut reads, mut writes) = stream.into_split();
    let write = async move {
        Pattern::new(ours)
            .write(&mut writes, 0..8 * POOL + 1)
            .await?;
        writes.shutdown().await?;
        Ok(writes)
    };
    let read = async move {
        Pattern::new(theirs)
            .read_all(&mut reads, 0..8 * POOL + 1)
            .await?;
        Ok(reads)
    };
    together(write, read).await?;
    Ok(())
}

/// No byte is lost or doubled when every future of a read, write, flush, shutdown and finish is polled once and
/// dropped if it is not ready.
pub(crate) async fn cancelled_futures_lose_nothing(
    over: DataPath,
    base: StreamConfig,
) -> Result<()> {
    let (mut from, mut to) = pair(over, &base).await?;
    let bytes = 3 * POOL + 1;
    let writer = async move {
        let (pattern, mut random) = (Pattern::new(29), Random::new(29));
        let mut at = 0;
        while at < bytes {
            let most = random.within(1..30_000).min(bytes - at);
            let piece = pattern.piece(at, usize::try_from(most)?);
            match from.write(piece).now_or_never() {
                Some(count) => at += count? as u64,
                None => yield_now().await,
            }
            if random.within(0..4) == 0 {
                from.flush().now_or_never().transpose()?;
            }
        }
        while from.shutdown().now_or_never().transpose()?.is_none() {
            yield_now().await;
        }
        while from.finish().now_or_never().transpose()?.is_none() {
            yield_now().await;
        }
        Ok(from)
    };
    let reader = async move {
        let at = read_impatiently(&mut to).await?;
        ensure!(at == bytes, "{at} of {bytes} bytes");
        to.confirm()?;
        Ok(to)
    };
    together(writer, reader).await?;
    Ok(())
}

async fn read_impatiently(to: &mut Stream) -> Result<u64> {
    let (pattern, mut random) = (Pattern::new(29), Random::new(30));
    let mut buffer = vec![0; 20_000];
    let mut at = 0;
    loop {
        let most = usize::try_from(random.within(1..20_000))?;
        let count = if most % 2 == 0 {
            to.read(&mut buffer[..most]).now_or_never().transpose()?
        } else {
            let filled = to.fill_buf().now_or_never().transpose()?;
            filled.map(|bytes| {
                let count = bytes.len().min(most);
                buffer[..count].copy_from_slice(&bytes[..count]);
                count
            })
        };
        match count {
            None => yield_now().await,
            Some(0) => return Ok(at),
            Some(count) => {
                pattern.check(at, &buffer[..count])?;
                at += count as u64;
                if most % 2 == 1 {
                    to.consume(count);
                }
            }
        }
    }
}

/// Vectored writes with empty slices, writes of no bytes, and reads into an empty buffer work.
pub(crate) async fn vectored_and_empty_writes_arrive(
    over: DataPath,
    base: StreamConfig,
) -> Result<()> {
    let (mut from, mut to) = pair(over, &base).await?;
    ensure!(from.write(&[]).await? == 0, "more than nothing was written");
    ensure!(
        from.write_vectored(&[]).await? == 0,
        "more than nothing was written"
    );
    ensure!(to.read(&mut []).await? == 0, "more than nothing was read");
    let pattern = Pattern::new(31);
    let mut at = 0;
    while at < 10_000 {
        let (first, second) = (pattern.piece(at, 7), pattern.piece(at + 7, 300));
        let pieces = [
            IoSlice::new(&[]),
            IoSlice::new(first),
            IoSlice::new(&[]),
            IoSlice::new(second),
        ];
        let count = from.write_vectored(&pieces).await?;
        ensure!(count > 0 && count <= 307, "{count} of 307 bytes");
        at += count as u64;
    }
    from.write_all(&[]).await?;
    from.shutdown().await?;
    ensure!(from.write(&[]).await? == 0, "nothing can always be written");
    pattern.read_all(&mut to, 0..at).await?;
    ensure!(
        to.read(&mut []).await? == 0 && to.read(&mut [0]).await? == 0,
        "no end"
    );
    Ok(())
}
