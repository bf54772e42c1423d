//! RDMA streams, one after another, leave no thread, no descriptor, and no pinned, resident or kernel memory behind.
//! Neither do messages of one byte over one stream. `leaks.rs` tests the same over TCP.
//!
//! This test is alone in its binary, because it counts what the whole process holds. With `RDPIPE_FULL=1` it uses a
//! thousand streams and 20,000 messages: an emulated machine takes a quarter of a second for each stream, and half a
//! minute for the messages.
#![cfg(feature = "rdma")]

mod support;

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rdpipe::StreamConfig;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt};

use crate::support::{
    data_path::{self, DataPath},
    is_full,
    pattern::Pattern,
    process, skip,
    waiting::{generous, limit, patience, together, until, within},
};

/// The number of streams before the first count, during which allocators, thread pools and the like settle: three
/// for each state.
const WARM_UP: u32 = 24;

/// The numbers of streams and messages of a run.
struct Amount {
    streams: u32,
    messages: u64,
}

impl Amount {
    fn of_this_run() -> Self {
        if is_full() {
            Self {
                streams: 1000,
                messages: 20_000,
            }
        } else {
            Self {
                streams: 80,
                messages: 1000,
            }
        }
    }
}

/// The bytes that the allocator may keep for reuse: as many as `leaks.rs` allows for a thousand streams.
const SLACK_BYTES: u64 = 2 << 20;

/// The objects of 64 bytes by which the kernel's cache may grow. async-rdma leaves each completion event in the kernel,
/// an object of 64 bytes, until its queue is destroyed. A stream here has some 20 such events, so a leak would be 1,600
/// objects with the smaller number of streams, and 2,000 with the smaller number of messages. Other users of this cache
/// changed it by about a hundred objects.
const SLACK_OBJECTS: u64 = 800;

/// The bytes by which all caches of the kernel may grow, because other processes use them too. A leaked queue pair,
/// with its completion queue and regions, is some 10 KiB, so a leak is 800 KiB with the smaller number of streams.
const SLACK_SLAB_BYTES: u64 = 600 << 10;

/// The bytes that the kernel keeps for the control connection of a stream for a minute after its end (`TIME_WAIT`). The
/// largest value seen is 750 bytes.
const TIME_WAIT_BYTES: u64 = 1 << 10;

#[test]
fn streams_and_messages_leave_nothing_behind() -> Result<()> {
    if let Some(why) = DataPath::Rdma.missing() {
        skip(&why);
        return Ok(());
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    let Amount {
        streams: count,
        messages: many,
    } = Amount::of_this_run();
    let most = generous() * if is_full() { 5 } else { 1 };
    runtime.block_on(async {
        within(most, "streams one after another", streams(count)).await?;
        within(generous(), "small messages", messages(many)).await
    })
}

/// The resources that the process holds, and the memory that the kernel holds for it.
#[derive(Debug, Clone, Copy)]
struct Held {
    threads: usize,
    descriptors: usize,
    pinned_bytes: u64,
    /// The kernel's objects of 64 bytes; `None` if this user is not root.
    objects: Option<u64>,
    /// The bytes of all unreclaimable caches of the kernel.
    slab_bytes: u64,
}

impl Held {
    fn now() -> Self {
        Self {
            threads: process::threads(),
            descriptors: process::descriptors(),
            pinned_bytes: process::pinned_bytes(),
            objects: process::slab_objects("kmalloc-64"),
            slab_bytes: process::slab_bytes(),
        }
    }

    /// Waits until the process and the kernel hold no more than `self`; the kernel frees some of its memory with a
    /// delay.
    async fn again(self) -> Result<()> {
        let closed = u64::from(Amount::of_this_run().streams);
        let slack = SLACK_SLAB_BYTES + closed * TIME_WAIT_BYTES;
        let settled = until(|| {
            let now = Self::now();
            let few = |before| now.objects.is_none_or(|now| now < before + SLACK_OBJECTS);
            now.threads <= self.threads
                && now.descriptors <= self.descriptors
                && now.pinned_bytes <= self.pinned_bytes
                && self.objects.is_none_or(few)
                && now.slab_bytes < self.slab_bytes + slack
        });
        match tokio::time::timeout(limit(Duration::from_secs(15)), settled).await {
            Ok(()) => Ok(()),
            Err(_) => bail!("{:?}, and {self:?} before", Self::now()),
        }
    }
}

fn config() -> StreamConfig {
    let mut config = StreamConfig::default();
    (config.chunk_bytes, config.depth) = (8 << 10, data_path::LEAK_DEPTH);
    config
}

async fn streams(count: u32) -> Result<()> {
    let mut spent = [Duration::ZERO; 2];
    // The RDMA crates keep a thread or two from their first use on, so the first count comes after some streams.
    for number in 0..WARM_UP {
        stream(number, &mut spent).await?;
    }
    let before = settled().await;
    let resident_bytes = process::resident_bytes();
    println!("before: {before:?}, {resident_bytes} bytes resident");
    spent = [Duration::ZERO; 2];
    for number in 0..count {
        stream(number, &mut spent).await?;
    }
    before.again().await?;
    let grown = process::resident_bytes().saturating_sub(resident_bytes);
    println!(
        "after {count} streams, {:?} each to connect and {:?} to be used and let go of: {:?}, {grown} more bytes resident",
        spent[0] / count,
        spent[1] / count,
        Held::now()
    );
    ensure!(grown < SLACK_BYTES, "{grown} more bytes resident");
    Ok(())
}

/// Connects one stream and drops it in one of several states. Adds the time to connect, and the time after that, to
/// `spent`.
async fn stream(number: u32, spent: &mut [Duration; 2]) -> Result<()> {
    let began = Instant::now();
    let (a, b) = DataPath::Rdma.pair(config(), config()).await?;
    let connected = Instant::now();
    let end = data_path::let_go(a, b, number).await;
    spent[0] += connected - began;
    spent[1] += connected.elapsed();
    end.with_context(|| format!("number {number}"))
}

/// Waits until descriptors and pinned memory are unchanged for a while, so that ending tasks have ended. Returns what
/// is held then.
async fn settled() -> Held {
    let mut last = Held::now();
    let mut since = Instant::now();
    let quiet = until(|| {
        let now = Held::now();
        let same = now.descriptors == last.descriptors && now.pinned_bytes == last.pinned_bytes;
        if !same {
            (last, since) = (now, Instant::now());
        }
        since.elapsed() > patience(Duration::from_millis(300))
    });
    quiet.await;
    Held::now()
}

/// The number of messages with an answer, sent before the messages without one.
const ANSWERED: u64 = 250;

async fn messages(many: u64) -> Result<()> {
    let before = settled().await;
    let began = Instant::now();
    let (mut a, mut b) = DataPath::Rdma.pair(config(), config()).await?;
    let one = async move {
        let (there, back) = (Pattern::new(60), Pattern::new(61));
        for at in 0..ANSWERED {
            a.write_all(there.piece(at, 1)).await?;
            a.flush().await?;
            back.check(at, &[a.read_u8().await?])?;
        }
        let ping_pong = began.elapsed();
        for at in ANSWERED..ANSWERED + many {
            a.write_all(there.piece(at, 1)).await?;
            a.flush().await?;
        }
        a.finish().await?;
        println!(
            "{ANSWERED} answered messages in {ping_pong:?}, {many} more by {:?}, in {} chunks: {:?}",
            began.elapsed(),
            a.stats().chunks_sent,
            Held::now()
        );
        ensure!(a.fill_buf().await?.is_empty(), "more than was sent");
        a.close().await;
        Ok(())
    };
    let other = async move {
        let (there, back) = (Pattern::new(60), Pattern::new(61));
        for at in 0..ANSWERED {
            there.check(at, &[b.read_u8().await?])?;
            b.write_all(back.piece(at, 1)).await?;
            b.flush().await?;
        }
        let range = ANSWERED..ANSWERED + many;
        there.read_all(&mut b, range).await?;
        b.confirm()?;
        b.shutdown().await?;
        b.close().await;
        anyhow::Ok(())
    };
    together(one, other).await?;
    before.again().await
}
