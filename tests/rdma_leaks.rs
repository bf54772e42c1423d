//! As `leaks.rs`, over RDMA: streams one after another leave no thread, descriptor, pinned or resident memory
//! behind, nor kernel memory, and neither do messages of one byte through one.
//!
//! Alone in its process, one after the other: they count what the whole process holds. A thousand streams
//! and 20,000 messages with `RDPIPE_FULL=1`: an emulated machine takes a quarter of a second for each stream,
//! and half a minute for the messages.
#![cfg(feature = "rdma")]

mod support;

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rdpipe::StreamConfig;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt};

use crate::support::{
    ends::{Ends, Rdma},
    is_full,
    pattern::Pattern,
    process, skip, states,
    waiting::{generous, limit, patience, together, until, within},
};

/// Streams before the first count: allocators, pools of threads and the like settle. All states, thrice.
const WARM_UP: u32 = 24;

/// How many there are of what is counted.
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
                messages: 4000,
            }
        }
    }
}

/// As in `leaks.rs`, for a thousand.
const SLACK_BYTES: u64 = 2 << 20;

/// async-rdma leaves each completion event in the kernel, an object of 64 bytes, until its queue is
/// destroyed: a stream here has some 20, so that a leak would be 1,600 of the fewer streams already, and
/// 8,000 of the fewer messages. Others use that cache too: a hundred more or less were seen.
const SLACK_OBJECTS: u64 = 800;

/// What all the kernel's caches may grow by, in bytes, while other things happen in it: a leaked queue
/// pair, with its completion queue and regions, is some 10 KiB, so 800 KiB for the fewer streams.
const SLACK_SLAB_BYTES: u64 = 600 << 10;

/// What the kernel keeps of a stream's control connection for a minute after its end (`TIME_WAIT`): 750 bytes were
/// seen.
const TIME_WAIT_BYTES: u64 = 1 << 10;

#[test]
fn streams_and_messages_leave_nothing_behind() -> Result<()> {
    if let Some(why) = Rdma::missing() {
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

/// What the process holds, and the kernel for it.
#[derive(Debug, Clone, Copy)]
struct Held {
    threads: usize,
    descriptors: usize,
    pinned_bytes: u64,
    /// Of 64 bytes, and of all the kernel's unreclaimable caches; only root is told the first.
    objects: Option<u64>,
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

    /// Waits until no more is held than this: the kernel frees some of its memory a little later.
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
    (config.chunk_bytes, config.depth) = (8 << 10, states::DEPTH);
    config
}

async fn streams(count: u32) -> Result<()> {
    let mut spent = [Duration::ZERO; 2];
    // In `leaks.rs` there is nothing at all; here the crates keep a thread or two from their first use on.
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

/// One stream, let go of in one of several states; what its two parts took is added up.
async fn stream(number: u32, spent: &mut [Duration; 2]) -> Result<()> {
    let began = Instant::now();
    let (a, b) = Rdma::pair(config(), config()).await?;
    let connected = Instant::now();
    let end = states::let_go(a, b, number).await;
    spent[0] += connected - began;
    spent[1] += connected.elapsed();
    end.with_context(|| format!("number {number}"))
}

/// What is held once tasks that have been told to end have ended: the same for a while.
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

/// Messages that are answered, before those that are not.
const ANSWERED: u64 = 500;

async fn messages(many: u64) -> Result<()> {
    let before = settled().await;
    let began = Instant::now();
    let (mut a, mut b) = Rdma::pair(config(), config()).await?;
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
