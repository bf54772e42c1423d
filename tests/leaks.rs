//! A thousand connections one after another leave no thread, descriptor or memory behind.
//!
//! This test is alone in its binary, because it counts what the whole process holds.

mod support;

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use rdpipe::{Key, Listener, StreamConfig, connect};

use crate::support::{
    data_path, process,
    waiting::{generous, limit, until, within},
};

/// The number of connections before the first count, during which allocators, thread pools and the like settle.
const WARM_UP: u32 = 200;

/// The number of connections between the counts.
const MANY: u32 = 1000;

/// The bytes that the allocator may keep for reuse: 2 KiB for each connection, a quarter of the smallest
/// chunk that a connection holds.
const SLACK_BYTES: u64 = 2 << 20;

#[test]
fn a_thousand_connections_leave_nothing_behind() -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    runtime.block_on(within(generous(), "a thousand connections", measure()))
}

async fn measure() -> Result<()> {
    let mut config = StreamConfig::default();
    (config.chunk_bytes, config.depth) = (8 << 10, data_path::LEAK_DEPTH);
    let key = Key::generate()?.key().clone();
    let listener = Listener::bind("127.0.0.1:0", key.clone(), config.clone()).await?;
    let empty = (process::threads(), process::descriptors());
    for number in 0..WARM_UP {
        connection(&listener, &key, &config, number).await?;
    }
    settle(empty).await?;
    let resident_bytes = process::resident_bytes();
    for number in 0..MANY {
        connection(&listener, &key, &config, number)
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

/// Waits until the process holds no more threads and descriptors than `empty`.
async fn settle(empty: (usize, usize)) -> Result<()> {
    let now = || (process::threads(), process::descriptors());
    let settled = until(|| now() <= empty && now().1 <= empty.1);
    match tokio::time::timeout(limit(Duration::from_secs(10)), settled).await {
        Ok(()) => Ok(()),
        Err(_) => bail!(
            "(threads, descriptors): {:?}, and {empty:?} without any stream",
            now()
        ),
    }
}

/// Connects one stream and drops it in one of several states, chosen by `number`.
async fn connection(
    listener: &Listener,
    key: &Key,
    config: &StreamConfig,
    number: u32,
) -> Result<()> {
    let port = listener.local_addr().port();
    let (dialed, accepted) =
        tokio::join!(connect(("127.0.0.1", port), key, config), listener.accept());
    data_path::let_go(dialed?, accepted?, number).await
}
