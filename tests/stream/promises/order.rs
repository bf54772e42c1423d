//! All bytes arrive, in order, followed by the end of file; a slow or absent reader or writer loses none and does not
//! block the rest of the stream.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures::FutureExt;
use rdpipe::{Error, Fault, Stream, StreamConfig, WriteHalf};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    sync::oneshot,
    task::yield_now,
    time::sleep,
};

use super::{CHUNK, DEPTH, POOL, pair};
use crate::support::{
    data_path::DataPath,
    pattern::{End, Pattern},
    random::Random,
    waiting::{patience, together, until},
};

/// Streams of no bytes, of one byte and of sizes around the chunk size arrive whole, in both directions.
pub(crate) async fn bytes_of_every_size_arrive_in_order(
    over: DataPath,
    base: StreamConfig,
) -> Result<()> {
    for bytes in [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 8 * CHUNK + 3] {
        let what = format!("{bytes} bytes");
        let (dialer, acceptor) = pair(over, &base).await?;
        carry(dialer, acceptor, bytes)
            .await
            .with_context(|| what.clone())?;
        let (dialer, acceptor) = pair(over, &base).await?;
        carry(acceptor, dialer, bytes)
            .await
            .with_context(|| format!("{what}, to the dialer"))?;
    }
    Ok(())
}

/// Streams of three random sizes arrive whole with the default pool sizes. The largest has up to 1 GiB; over RDMA, except
/// in a full run, up to 48 MiB, which fill each pool several times over: the processor may be emulated.
pub(crate) async fn streams_of_random_sizes_arrive_whole(
    over: DataPath,
    base: StreamConfig,
) -> Result<()> {
    let mut random = Random::new(1);
    let most: u64 = if over.is_slow() { 48 << 20 } else { 1 << 30 };
    for range in [
        1..1 << 20,
        1 << 20..(64 << 20).min(most / 4),
        most / 2..most + 1,
    ] {
        let bytes = random.within(range);
        let (dialer, acceptor) = over.pair(base.clone(), base.clone()).await?;
        carry(dialer, acceptor, bytes)
            .await
            .with_context(|| format!("{bytes} bytes"))?;
    }
    Ok(())
}

/// Writes of all sizes alternate at random, in both directions at once, and half of them are flushed.
pub(crate) async fn small_and_large_writes_arrive_in_order(
    over: DataPath,
    base: StreamConfig,
) -> Result<()> {
    let (a, b) = pair(over, &base).await?;
    let (mut reads_a, mut writes_a) = a.into_split();
    let (mut reads_b, mut writes_b) = b.into_split();
    let sizes = |number| {
        let mut random = Random::new(number);
        let size = move |_| match random.within(0..6) {
            0 => random.within(1..3 * CHUNK),
            1 => random.within(1..6000),
            _ => random.within(1..200),
        };
        (0..400).map(size).collect::<Vec<u64>>()
    };
    let (there, back) = (sizes(70), sizes(71));
    let sums = [there.iter().sum::<u64>(), back.iter().sum::<u64>()];
    let write = async |pattern: &Pattern, half: &mut WriteHalf, sizes: Vec<u64>| {
        let mut at = 0;
        for size in sizes {
            pattern.write(half, at..at + size).await?;
            at += size;
            if size % 2 == 0 {
                half.flush().await?;
            }
        }
        anyhow::Ok(half.shutdown().await?)
    };
    let forth = together(
        async move { write(&Pattern::new(72), &mut writes_a, there).await },
        async move { Pattern::new(72).read_all(&mut reads_b, 0..sums[0]).await },
    );
    let back = together(
        async move { write(&Pattern::new(73), &mut writes_b, back).await },
        async move { Pattern::new(73).read_all(&mut reads_a, 0..sums[1]).await },
    );
    tokio::try_join!(forth, back)?;
    Ok(())
}

/// If a bit of the payload flips on the way, every byte that the reader gets is right, and then it gets
/// `Fault::Corrupt`.
pub(crate) async fn a_reader_never_gets_a_wrong_byte(
    over: DataPath,
    base: StreamConfig,
) -> Result<()> {
    let (mut from, mut to) = pair(over, &base).await?;
    let writer = async move { Pattern::new(1).write_on(&mut from).await };
    let reader = async move { Pattern::new(1).drain(&mut to, 0).await?.failure() };
    let (_, error) = together(writer, reader).await?;
    let told = matches!(
        error,
        Error::Receive {
            fault: Fault::Corrupt(_),
            ..
        }
    );
    ensure!(told, "not told that the bytes were damaged: {error:?}");
    Ok(())
}

async fn carry(mut from: Stream, mut to: Stream, bytes: u64) -> Result<()> {
    let writer = async move {
        Pattern::new(1).write(&mut from, 0..bytes).await?;
        from.shutdown().await?;
        Ok(from)
    };
    let reader = async move {
        Pattern::new(1).read_all(&mut to, 0..bytes).await?;
        Ok(to)
    };
    let (from, to) = together(writer, reader).await?;
    ensure!(
        from.stats().bytes_sent == bytes,
        "the sender counts {:?}",
        from.stats()
    );
    ensure!(
        to.stats().bytes_received == bytes,
        "the receiver counts {:?}",
        to.stats()
    );
    ensure!(
        from.stats().chunks_sent == to.stats().chunks_received,
        "a chunk too many or too few"
    );
    Ok(())
}

/// A reader that waits until its whole pool is full, again and again, gets every byte.
pub(crate) async fn a_slow_reader_loses_nothing(over: DataPath, base: StreamConfig) -> Result<()> {
    let (mut from, mut to) = pair(over, &base).await?;
    let bytes = 4 * POOL + 5;
    let writer = async move {
        Pattern::new(2).write(&mut from, 0..bytes).await?;
        from.shutdown().await?;
        Ok(from)
    };
    let reader = async move {
        let pattern = Pattern::new(2);
        let watch = to.watch();
        let failed = || watch.interrupted().now_or_never().is_some();
        let mut at = 0;
        for stop in [0, 1, CHUNK, 3 * CHUNK + 77, 2 * POOL + 1] {
            pattern.read(&mut to, at..stop).await?;
            at = stop;
            // The chunk that the reader has partly read still occupies its slot.
            let full = (at / CHUNK + DEPTH).min(bytes / CHUNK);
            until(|| to.stats().chunks_received >= full || failed()).await;
        }
        pattern.read_all(&mut to, at..bytes).await?;
        Ok(to)
    };
    together(writer, reader).await?;
    Ok(())
}

/// A writer that writes single bytes and odd numbers of bytes, with pauses, loses nothing.
pub(crate) async fn a_slow_writer_loses_nothing(over: DataPath, base: StreamConfig) -> Result<()> {
    let (mut from, mut to) = pair(over, &base).await?;
    let writer = async move {
        let (pattern, mut random) = (Pattern::new(3), Random::new(3));
        let mut at = 0;
        while at < 2 * POOL {
            let count = if at < 500 { 1 } else { random.within(1..9001) };
            pattern.write(&mut from, at..at + count).await?;
            at += count;
            for _ in 0..random.within(0..20) {
                yield_now().await;
            }
        }
        from.shutdown().await?;
        Ok((at, from))
    };
    let reader = async move {
        let end = Pattern::new(3).drain(&mut to, 0).await?;
        Ok((end, to))
    };
    let ((bytes, _from), (end, _to)) = together(writer, reader).await?;
    ensure!(matches!(end, End::Eof(at) if at == bytes), "{end:?}");
    Ok(())
}

/// One end writes and does not read for a while. The direction that it does not read stops; the other
/// direction goes on; afterwards no byte is missing.
pub(crate) async fn an_unread_direction_does_not_block_the_other(
    over: DataPath,
    base: StreamConfig,
) -> Result<()> {
    let (a, mut b) = pair(over, &base).await?;
    let (mut a_reads, mut a_writes) = a.into_split();
    let (blocked_bytes, free_bytes) = (3 * over.pool(), 8 * POOL);
    let held_up = async move {
        Pattern::new(4)
            .write(&mut a_writes, 0..blocked_bytes)
            .await?;
        a_writes.shutdown().await?;
        Ok(a_writes)
    };
    let goes_on = async move {
        let a = tokio::spawn(async move {
            Pattern::new(5)
                .read_all(&mut a_reads, 0..free_bytes)
                .await?;
            anyhow::Ok(a_reads)
        });
        Pattern::new(5).write(&mut b, 0..free_bytes).await?;
        b.shutdown().await?;
        let a_reads = a.await??;
        ensure!(
            b.stats().bytes_received <= over.pool(),
            "received more than a pool: {:?}",
            b.stats()
        );
        Pattern::new(4).read_all(&mut b, 0..blocked_bytes).await?;
        Ok((a_reads, b))
    };
    together(held_up, goes_on).await?;
    Ok(())
}

/// Returns a short timeout, and two connected ends that have it.
async fn impatient_pair(over: DataPath, base: StreamConfig) -> Result<(Duration, Stream, Stream)> {
    let mut config = base;
    config.timeout = patience(Duration::from_millis(400));
    let (from, to) = pair(over, &config).await?;
    Ok((config.timeout, from, to))
}

/// A reader pauses for twice the timeout after which a silent peer counts as dead, while the writer
/// waits; then both ends are idle for as long. The stream stays intact, because keepalives go on.
pub(crate) async fn a_paused_reader_is_not_taken_for_dead(
    over: DataPath,
    base: StreamConfig,
) -> Result<()> {
    let (timeout, mut from, mut to) = impatient_pair(over, base).await?;
    let bytes = 3 * POOL + 1;
    let (told, resumed) = oneshot::channel();
    let writer = async move {
        Pattern::new(6).write(&mut from, 0..bytes).await?;
        resumed.await?;
        Pattern::new(6).write(&mut from, bytes..bytes + 1).await?;
        from.shutdown().await?;
        Ok(from)
    };
    let reader = async move {
        Pattern::new(6).read(&mut to, 0..10).await?;
        // Longer than a data connection may deliver nothing, too: 1.25 times the timeout and two seconds.
        sleep(2 * timeout + Duration::from_secs(2)).await;
        Pattern::new(6).read(&mut to, 10..bytes).await?;
        sleep(2 * timeout).await;
        told.send(()).ok();
        Pattern::new(6).read_all(&mut to, bytes..bytes + 1).await?;
        Ok(to)
    };
    let (from, to) = together(writer, reader).await?;
    undisturbed(&[&from, &to])
}

/// A reader lets small messages wait for longer than the timeout, and a data connection that delivers nothing. No end
/// takes them for lost.
pub(crate) async fn a_pause_in_small_messages_is_not_taken_for_a_death(
    over: DataPath,
    base: StreamConfig,
) -> Result<()> {
    let (timeout, mut from, mut to) = impatient_pair(over, base).await?;
    for number in 0..10 {
        Pattern::new(7)
            .write(&mut from, number * 100..number * 100 + 100)
            .await?;
        from.flush().await?;
    }
    sleep(2 * timeout + Duration::from_secs(2)).await;
    undisturbed(&[&from, &to])?;
    Pattern::new(7).read(&mut to, 0..1000).await?;
    Pattern::new(7).write(&mut from, 1000..1010).await?;
    from.flush().await?;
    Pattern::new(7).read(&mut to, 1000..1010).await?;
    undisturbed(&[&from, &to])
}

/// Checks that no stream in `streams` has reported a failure.
pub(crate) fn undisturbed(streams: &[&Stream]) -> Result<()> {
    for stream in streams {
        let cause = stream.watch().interrupted().now_or_never();
        ensure!(cause.is_none(), "{stream:?} reports a failure: {cause:?}");
    }
    Ok(())
}

/// `shutdown` returns although the peer polls nothing: bytes that fit into its pool are received and
/// verified without a poll.
pub(crate) async fn shutdown_does_not_wait_for_the_reader(
    over: DataPath,
    base: StreamConfig,
) -> Result<()> {
    for bytes in [0, 1, CHUNK + 1, POOL] {
        let (mut from, mut to) = pair(over, &base).await?;
        Pattern::new(7).write(&mut from, 0..bytes).await?;
        from.shutdown().await?;
        ensure!(
            to.stats().bytes_received == bytes,
            "not verified yet: {:?}",
            to.stats()
        );
        Pattern::new(7).read_all(&mut to, 0..bytes).await?;
        ensure!(to.read(&mut [0]).await? == 0, "an end that does not last");
        to.shutdown().await?;
    }
    Ok(())
}
