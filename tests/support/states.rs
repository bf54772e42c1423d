//! The states in which the tests of leaks drop a stream.

use anyhow::{Result, bail, ensure};
use rdpipe::Stream;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::{pattern::Pattern, waiting::until};

/// The number of slots that a stream must have for [`let_go`]: in one of the states all of them are full.
pub(crate) const DEPTH: usize = 4;

/// Brings a stream of [`DEPTH`] slots of 8 KiB into the state of this number, and drops both ends.
pub(crate) async fn let_go(a: Stream, b: Stream, number: u32) -> Result<()> {
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

/// Drops both ends while the pools are full and a write waits.
async fn full_then_dropped(mut a: Stream, b: Stream) -> Result<()> {
    let pattern = Pattern::new(41);
    let full = async { until(|| b.stats().chunks_received >= DEPTH as u64).await };
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
    ensure!(a.finish().await.is_err(), "finished without a confirmation");
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
