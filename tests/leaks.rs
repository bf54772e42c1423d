//! A thousand connections one after another leave no thread, descriptor or memory behind.
//!
//! Alone in its process: it counts what the whole process holds.

mod common;

use anyhow::{Context, Result, bail, ensure};
use common::{
    limit::{GENEROUS, until, within},
    pattern::Pattern,
    process,
};
use rdpipe::{Key, Listener, Stream, StreamConfig, connect};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// Connections before the first count: allocators, pools of threads and the like settle.
const WARM_UP: u32 = 200;

/// Connections between the counts.
const MANY: u32 = 1000;

/// What the allocator may keep in its own drawers, in bytes: 2 KiB for each connection, a quarter of
/// the smallest chunk that one of them holds.
const SLACK_BYTES: u64 = 2 << 20;

#[test]
fn a_thousand_connections_leave_nothing_behind() -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    runtime.block_on(within(GENEROUS, "a thousand connections", measure()))
}

async fn measure() -> Result<()> {
    let mut config = StreamConfig::default();
    (config.chunk_bytes, config.depth) = (8 << 10, 4);
    let key = Key::generate()?.key().clone();
    let mut listener = Listener::bind("127.0.0.1:0".parse()?, key.clone(), config.clone())?;
    let empty = (process::threads(), process::descriptors());
    for number in 0..WARM_UP {
        connection(&mut listener, &key, &config, number).await?;
    }
    settle(empty).await?;
    let resident_bytes = process::resident_bytes();
    for number in 0..MANY {
        connection(&mut listener, &key, &config, number)
            .await
            .with_context(|| format!("number {number}"))?;
    }
    settle(empty).await?;
    let grown = process::resident_bytes().saturating_sub(resident_bytes);
    ensure!(
        grown < SLACK_BYTES,
        "{grown} more bytes resident after {MANY} connections"
    );
    Ok(())
}

/// Waits until no more threads and descriptors are held than `empty`.
async fn settle(empty: (usize, usize)) -> Result<()> {
    let now = || (process::threads(), process::descriptors());
    let settled = until(|| now() <= empty && now().1 <= empty.1);
    let limit = std::time::Duration::from_secs(10);
    match tokio::time::timeout(limit, settled).await {
        Ok(()) => Ok(()),
        Err(_) => bail!(
            "(threads, descriptors): {:?}, and {empty:?} without any stream",
            now()
        ),
    }
}

/// One stream, let go of in one of several states.
async fn connection(
    listener: &mut Listener,
    key: &Key,
    config: &StreamConfig,
    number: u32,
) -> Result<()> {
    let port = listener.local_addr().port();
    let (dialed, accepted) =
        tokio::join!(connect("127.0.0.1", port, key, config), listener.accept());
    let (a, b) = (dialed?, accepted?);
    match number % 8 {
        0..=2 => to_the_end(a, b).await,
        3 => {
            drop((a, b));
            Ok(())
        }
        4 => full_then_dropped(a, b).await,
        5 => half_read_then_dropped(a, b).await,
        6 => stopped_then_dropped(a, b).await,
        _ => finished_on_one_side(a, b).await,
    }
}

async fn to_the_end(mut a: Stream, mut b: Stream) -> Result<()> {
    let pattern = Pattern::new(40);
    let one = async {
        pattern.write(&mut a, 0..100_000).await?;
        a.finish().await?;
        pattern.read_all(&mut a, 0..10).await
    };
    let other = async {
        pattern.read_all(&mut b, 0..100_000).await?;
        b.confirm()?;
        pattern.write(&mut b, 0..10).await?;
        anyhow::Ok(b.shutdown().await?)
    };
    tokio::try_join!(one, other)?;
    tokio::join!(a.close(), b.close());
    Ok(())
}

/// The pools are full and a write waits.
async fn full_then_dropped(mut a: Stream, b: Stream) -> Result<()> {
    let pattern = Pattern::new(41);
    let full = async { until(|| b.stats().chunks_received == 4).await };
    tokio::select! {
        written = pattern.write(&mut a, 0..1 << 30) => bail!("written: {written:?}"),
        () = full => Ok(()),
    }
}

async fn half_read_then_dropped(mut a: Stream, mut b: Stream) -> Result<()> {
    let pattern = Pattern::new(42);
    pattern.write(&mut a, 0..20_000).await?;
    a.shutdown().await?;
    pattern.read(&mut b, 0..10_000).await?;
    drop(b);
    ensure!(a.finish().await.is_err(), "confirmed by nobody");
    Ok(())
}

async fn stopped_then_dropped(mut a: Stream, mut b: Stream) -> Result<()> {
    b.stop();
    Pattern::new(43).write_on(&mut a).await?;
    a.abort("part of the test");
    ensure!(b.read_u8().await.is_err(), "aborted");
    Ok(())
}

async fn finished_on_one_side(mut a: Stream, mut b: Stream) -> Result<()> {
    a.write_all(b"all").await?;
    a.shutdown().await?;
    let mut all = Vec::new();
    b.read_to_end(&mut all).await?;
    drop(b);
    ensure!(a.read_u8().await.is_err(), "dropped");
    Ok(())
}
