//! Both directions at once, both halves at once, and futures that are dropped before they complete. Requests and
//! answers: a program ported from TCP needs no extra `flush`, and a request cannot deadlock.

use std::io::IoSlice;

use anyhow::{Result, ensure};
use futures::FutureExt;
use rdpipe::{Stream, StreamConfig};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt},
    sync::oneshot,
    task::yield_now,
};

use super::{CHUNK, POOL, pair};
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

/// A request of one byte gets an answer of one byte, a hundred times, and neither end calls `flush`.
pub(crate) async fn one_byte_is_answered_without_a_flush(
    over: DataPath,
    base: StreamConfig,
) -> Result<()> {
    let (mut client, mut server) = pair(over, &base).await?;
    let asking = async move {
        for number in 0..100 {
            client.write_all(&[number]).await?;
            let mut answer = [0];
            client.read_exact(&mut answer).await?;
            anyhow::ensure!(answer == [number + 1], "{number}: {answer:?}");
        }
        Ok(client)
    };
    let answering = async move {
        for _ in 0..100 {
            let question = server.read_u8().await?;
            server.write_all(&[question + 1]).await?;
        }
        Ok(server)
    };
    together(asking, answering).await?;
    Ok(())
}

/// Many small writes arrive without a call of `flush`, both while the sender has credit and after its credit has
/// run out.
pub(crate) async fn small_writes_are_sent_without_a_flush(
    over: DataPath,
    base: StreamConfig,
) -> Result<()> {
    for before in [0, POOL] {
        let (mut client, mut server) = pair(over, &base).await?;
        let bytes = before + (1..=200).sum::<u64>();
        let (told, written) = oneshot::channel();
        let asking = async move {
            let pattern = Pattern::new(8);
            pattern.write(&mut client, 0..before).await?;
            let mut at = before;
            for count in 1..=200 {
                pattern.write(&mut client, at..at + count).await?;
                at += count;
            }
            told.send(()).ok();
            client.read_exact(&mut [0]).await?;
            Ok(client)
        };
        let answering = async move {
            written.await?;
            Pattern::new(8).read(&mut server, 0..bytes).await?;
            server.write_all(b"!").await?;
            Ok(server)
        };
        together(asking, answering).await?;
    }
    Ok(())
}

/// Both ends make many small writes, flush, and read only then. While the bytes of one end would fit
/// into half a pool as one piece, neither end waits for the other.
pub(crate) async fn both_ends_can_write_before_they_read(
    over: DataPath,
    base: StreamConfig,
) -> Result<()> {
    let (mut a, mut b) = pair(over, &base).await?;
    let pattern = Pattern::new(32);
    // One exchange takes both ends past the start, where no credit has arrived and all writes are combined.
    one_each(&mut a, &mut b).await?;
    for at in 0..POOL / 2 / 10 {
        pattern.write(&mut a, at * 10..at * 10 + 10).await?;
        pattern.write(&mut b, at * 10..at * 10 + 10).await?;
        if at < 500 {
            a.flush().await?;
            b.flush().await?;
        }
    }
    a.shutdown().await?;
    b.shutdown().await?;
    pattern.read_all(&mut a, 0..POOL / 2 / 10 * 10).await?;
    pattern.read_all(&mut b, 0..POOL / 2 / 10 * 10).await
}

async fn one_each(a: &mut Stream, b: &mut Stream) -> Result<()> {
    a.write_all(b"a").await?;
    b.write_all(b"b").await?;
    anyhow::ensure!(a.read_u8().await? == b'b' && b.read_u8().await? == b'a');
    Ok(())
}

/// A client that reads only after its `shutdown` has returned gets its answer, even if the answer fits into
/// no pool, and even if the server begins to send it before it reads the request.
pub(crate) async fn a_large_answer_does_not_block_shutdown(
    over: DataPath,
    base: StreamConfig,
) -> Result<()> {
    for (request, eager) in [(3, false), (3 * POOL, false), (CHUNK + 3, true)] {
        let (mut client, mut server) = pair(over, &base).await?;
        let answer = 5 * POOL + 1;
        let asking = async move {
            Pattern::new(9).write(&mut client, 0..request).await?;
            client.shutdown().await?;
            Pattern::new(10).read_all(&mut client, 0..answer).await?;
            Ok(client)
        };
        let answering = async move {
            let first = if eager { answer } else { 0 };
            Pattern::new(10).write(&mut server, 0..first).await?;
            Pattern::new(9).read_all(&mut server, 0..request).await?;
            Pattern::new(10).write(&mut server, first..answer).await?;
            server.shutdown().await?;
            Ok(server)
        };
        together(asking, answering).await?;
    }
    Ok(())
}
