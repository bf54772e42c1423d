//! Every buffer of a stream is freed, in whatever state the stream is dropped. The test counts allocations exactly.
//!
//! These tests are alone in their binary and run one after the other, because the allocator counts for the whole
//! process.

mod states;
#[path = "../support/mod.rs"]
mod support;

use std::{
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use anyhow::{Result, bail, ensure};
use rdpipe::StreamConfig;
use states::{Left, STATES, dead, finished};
use tokio::{io::AsyncBufReadExt, time::timeout};

use crate::support::{
    allocations::{self, Counted},
    data_path::{DataPath, POOL, pair},
    pattern::Pattern,
    process, skip,
    waiting::{generous, limit, patience, until, within},
};

#[global_allocator]
static ALLOCATOR: Counted = Counted;

/// The longest time that buffers may stay in use after their stream was dropped: the last messages to the peer may take
/// two seconds.
const SETTLING: Duration = Duration::from_secs(20);

mod tcp {
    #[test]
    fn every_buffer_is_freed() -> anyhow::Result<()> {
        crate::in_every_state(crate::support::data_path::DataPath::Tcp)
    }
}

#[cfg(feature = "rdma")]
mod rdma {
    #[test]
    fn every_buffer_is_freed() -> anyhow::Result<()> {
        crate::in_every_state(crate::support::data_path::DataPath::Rdma)
    }
}

fn in_every_state(over: DataPath) -> Result<()> {
    static ALONE: Mutex<()> = Mutex::new(());
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(why) = over.missing() {
        skip(&why);
        return Ok(());
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    runtime.block_on(measure(over))
}

async fn measure(over: DataPath) -> Result<()> {
    let config = StreamConfig::default();
    // The first stream makes the allocations that happen only once.
    let first = async {
        let (a, b) = pair(over, &config).await?;
        finished(a, b).await?;
        Ok(settled().await)
    };
    let empty = within(generous(), "the first stream", first).await?;
    within(generous(), "none is added", none_is_added(over)).await?;
    for reversed in [false, true] {
        for (name, state) in STATES {
            let dropped = async {
                let (a, b) = pair(over, &config).await?;
                let left = state(a, b).await?;
                let_go(left, reversed, empty).await
            };
            within(generous(), name, dropped).await?;
        }
        let dropped = async { let_go(dead(over).await?, reversed, empty).await };
        within(generous(), "dead", dropped).await?;
    }
    Ok(())
}

/// A stream sends any number of bytes with the buffers that it has once a pool of them has arrived, and allocates no
/// more.
async fn none_is_added(over: DataPath) -> Result<()> {
    const BYTES: u64 = 64 * POOL;
    let pattern = Pattern::new(138);
    let (mut from, mut to) = pair(over, &StreamConfig::default()).await?;
    let (mut before, mut most) = (None, (0, 0));
    let writing = async {
        pattern.write(&mut from, 0..BYTES).await?;
        anyhow::Ok(from.finish().await?)
    };
    let reading = async {
        let mut at = 0;
        while at < BYTES {
            let count = {
                let bytes = to.fill_buf().await?;
                pattern.check(at, bytes)?;
                bytes.len()
            };
            ensure!(count > 0, "it ends at byte {at}");
            to.consume(count);
            at += count as u64;
            if at >= POOL {
                most = held().max(most);
                before.get_or_insert(most);
            }
        }
        ensure!(to.fill_buf().await?.is_empty(), "no end");
        Ok(to.confirm()?)
    };
    tokio::try_join!(writing, reading)?;
    // Over RDMA each posted receive pins a page of its own, and receives come and go.
    let receives = (to.depth() * rustix::param::page_size()) as u64;
    ensure!(
        before.is_some_and(|(buffers, pinned)| buffers == most.0 && most.1 <= pinned + receives),
        "at most {most:?}, and {before:?} at the start"
    );
    Ok(())
}

/// The number of large allocations, and the bytes that are registered with a device.
type Held = (usize, u64);

fn held() -> Held {
    (allocations::live(), process::pinned_bytes())
}

/// Waits until the held buffers are unchanged for a while, and returns them.
async fn settled() -> Held {
    let (mut last, mut since) = (held(), Instant::now());
    until(|| {
        if held() != last {
            (last, since) = (held(), Instant::now());
        }
        since.elapsed() > patience(Duration::from_millis(500))
    })
    .await;
    last
}

/// Drops what is left of a stream, in the given or the reversed order, and waits until the process holds exactly
/// `empty`, as without any stream.
async fn let_go(mut left: Left, reversed: bool, empty: Held) -> Result<()> {
    let (buffers, _) = held();
    ensure!(
        left.is_empty() || buffers > empty.0,
        "its buffers are not counted: {buffers}, and {empty:?} without any stream"
    );
    if reversed {
        left.reverse();
    }
    left.into_iter().for_each(drop);
    if timeout(limit(SETTLING), until(|| held() == empty))
        .await
        .is_err()
    {
        let now = held();
        bail!("reversed: {reversed}: {now:?} are held, and {empty:?} without any stream");
    }
    Ok(())
}
