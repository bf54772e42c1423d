//! All bytes arrive, in order, followed by the end of file.

use anyhow::{Context, Result, ensure};
use rdpipe::{Error, Fault, Stream, StreamConfig, WriteHalf};
use tokio::io::AsyncWriteExt;

use super::{CHUNK, pair};
use crate::support::{data_path::DataPath, pattern::Pattern, random::Random, waiting::together};

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

/// Streams of three random sizes, the largest of up to 1 GiB, arrive whole with the default pool sizes.
pub(crate) async fn streams_of_random_sizes_arrive_whole(
    over: DataPath,
    base: StreamConfig,
) -> Result<()> {
    let mut random = Random::new(1);
    for range in [1..1 << 20, 1 << 20..64 << 20, 512 << 20..(1 << 30) + 1] {
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
