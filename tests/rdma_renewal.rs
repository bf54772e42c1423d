//! A long stream whose link is renewed again and again: the bytes are right, the memory of the kernel and of the
//! process does not grow, and the reader never waits for long.
//!
//! This test is alone in its binary, because it counts what the whole process holds. It sends 96 MiB in small chunks
//! with a new link every 6 MiB; with `RDPIPE_FULL=1` it sends 8 GiB with a new link every 256 MiB.
#![cfg(feature = "rdma")]

mod support;

use std::{
    fmt,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use rdpipe::{Direction, Stream, StreamConfig, Transport, TransportPolicy};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt};
use tracing::{Event, Metadata, Subscriber, field, span};

use crate::support::{
    data_path::{listener, meet},
    is_full,
    pattern::Pattern,
    process, skip,
    waiting::{generous, limit, together, within},
};

/// The amounts of one run.
struct Size {
    bytes: u64,
    /// The bytes between two renewals.
    renew_bytes: u64,
    chunk_bytes: usize,
    depth: usize,
}

impl Size {
    fn of_this_run() -> Self {
        if is_full() {
            let default = rdpipe::RdmaConfig::default();
            return Self {
                bytes: 8 << 30,
                renew_bytes: 256 << 20,
                chunk_bytes: default.chunk_bytes,
                depth: default.depth,
            };
        }
        // Small chunks make many completions, which would leave as many objects in the kernel.
        Self {
            bytes: 96 << 20,
            renew_bytes: 6 << 20,
            chunk_bytes: 64 << 10,
            depth: 16,
        }
    }

    fn config(&self, direction: Direction) -> StreamConfig {
        let mut config = StreamConfig::default();
        config.transport = TransportPolicy::Rdma;
        config.timeout = generous();
        config.direction = direction;
        (config.rdma.chunk_bytes, config.rdma.depth) = (self.chunk_bytes, self.depth);
        config.rdma.renew_after = self.renew_bytes / self.chunk_bytes as u64;
        config
    }
}

/// The objects of 64 bytes by which the kernel's cache may grow. async-rdma leaves two such objects in the kernel for
/// each completion: 6,000 in the short run without renewals, and 16,000 in the full one.
const SLACK_OBJECTS: u64 = 2500;

/// The bytes by which all caches of the kernel may grow, because other processes use them too.
const SLACK_SLAB_BYTES: u64 = 2 << 20;

/// The bytes that the allocator may keep for reuse, in addition to the chunks that were moved out of one pool.
const SLACK_BYTES: u64 = 4 << 20;

#[test]
fn a_long_stream_over_many_links_keeps_memory_flat() -> Result<()> {
    if let Some(why) = missing() {
        skip(&why);
        return Ok(());
    }
    tracing::subscriber::set_global_default(Renewals)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    let most = generous() * if is_full() { 10 } else { 1 };
    runtime.block_on(within(most, "a long stream", copy(Size::of_this_run())))
}

fn missing() -> Option<String> {
    use crate::support::data_path::DataPath;
    DataPath::Rdma.missing()
}

async fn copy(size: Size) -> Result<()> {
    let (listener, key) = listener(size.config(Direction::Receive)).await?;
    let port = listener.local_addr().port();
    let (mut a, b) = meet(listener, port, &key, &size.config(Direction::Send)).await?;
    ensure!(a.transport() == Transport::Rdma, "it was to be RDMA");
    let bytes = size.bytes;
    let began = Instant::now();
    let sending = async move {
        Pattern::new(80).write(&mut a, 0..bytes).await?;
        a.finish().await?;
        a.close().await;
        Ok(())
    };
    let ((), seen) = together(sending, watch(b, bytes)).await?;
    println!("{} MiB in {:?}", bytes >> 20, began.elapsed());
    seen.judge(&size)
}

/// The observations of the reader.
struct Seen {
    /// The start and the length of each wait for more bytes.
    waits: Vec<(Instant, Duration)>,
    /// The memory of the kernel and of the process, at regular points of the stream.
    held: Vec<Held>,
}

#[derive(Debug, Clone, Copy)]
struct Held {
    objects: u64,
    slab_bytes: u64,
    resident_bytes: u64,
    pinned_bytes: u64,
}

impl Held {
    fn now() -> Self {
        Self {
            objects: process::slab_objects("kmalloc-64").unwrap_or(0),
            slab_bytes: process::slab_bytes(),
            resident_bytes: process::resident_bytes(),
            pinned_bytes: process::pinned_bytes(),
        }
    }

    /// Combines each number of all observations.
    fn fold(all: &[Self], combine: fn(u64, u64) -> u64) -> Self {
        let fold = |of: fn(&Self) -> u64| all.iter().map(of).reduce(combine).unwrap_or(0);
        Self {
            objects: fold(|held| held.objects),
            slab_bytes: fold(|held| held.slab_bytes),
            resident_bytes: fold(|held| held.resident_bytes),
            pinned_bytes: fold(|held| held.pinned_bytes),
        }
    }
}

/// The number of times that the reader records the memory during the stream.
const LOOKS: u64 = 64;

async fn watch(mut stream: Stream, bytes: u64) -> Result<Seen> {
    let pattern = Pattern::new(80);
    let mut seen = Seen {
        waits: Vec::new(),
        held: Vec::new(),
    };
    let mut at = 0;
    loop {
        let asked = Instant::now();
        let chunk = stream.fill_buf().await?;
        seen.waits.push((asked, asked.elapsed()));
        if chunk.is_empty() {
            break;
        }
        pattern.check(at, chunk)?;
        let count = chunk.len();
        stream.consume(count);
        at += count as u64;
        if at * LOOKS / bytes > seen.held.len() as u64 {
            seen.held.push(Held::now());
        }
    }
    ensure!(at == bytes, "it ends at byte {at}");
    stream.confirm()?;
    stream.shutdown().await?;
    stream.close().await;
    Ok(seen)
}

impl Seen {
    fn judge(&self, size: &Size) -> Result<()> {
        let renewals = Renewals::taken();
        let wanted = size.bytes / size.renew_bytes - 1;
        // Both ends report each renewal.
        let count = renewals.len() as u64 / 2;
        ensure!(count >= wanted, "{count} renewals of {wanted}");

        let mut waits: Vec<_> = self.waits.iter().map(|(_, wait)| *wait).collect();
        let mut stalls: Vec<_> = renewals
            .iter()
            .map(|during| self.longest(*during))
            .collect();
        let mut took: Vec<_> = renewals.iter().map(|(_, took)| *took).collect();
        for times in [&mut waits, &mut stalls, &mut took] {
            times.sort_unstable();
        }
        println!("{count} renewals of {}", Times(&took));
        println!(
            "the reader waited {}; at renewals {}",
            Times(&waits),
            Times(&stalls)
        );
        // A wait of this length means a lost wakeup: the next keepalive would end it much later.
        let most = limit(Duration::from_secs(3));
        ensure!(
            *waits.last().unwrap_or(&most) < most,
            "longer than {most:?}"
        );

        // What is lost stays lost. The kernel frees some memory later, on a slow machine much later, so the least
        // counts.
        let quarter = self.held.len() / 4;
        let early = Held::fold(&self.held[..quarter], u64::max);
        let late = Held::fold(&self.held[3 * quarter..], u64::min);
        println!("held at most {early:?} in the first quarter, at least {late:?} in the last");
        let pool = (size.chunk_bytes * size.depth) as u64;
        ensure!(
            late.objects < early.objects + SLACK_OBJECTS,
            "kmalloc-64 grows"
        );
        ensure!(
            late.slab_bytes < early.slab_bytes + SLACK_SLAB_BYTES,
            "slab grows"
        );
        ensure!(
            late.resident_bytes < early.resident_bytes + pool + SLACK_BYTES,
            "the process grows"
        );
        // The number of posted receives varies, and each receive pins a page.
        let receives = (size.depth * 4096) as u64;
        ensure!(
            late.pinned_bytes <= early.pinned_bytes + receives,
            "pinned memory grows"
        );
        Ok(())
    }

    /// Returns the longest wait that overlaps a renewal, given its end and its duration.
    fn longest(&self, (end, took): (Instant, Duration)) -> Duration {
        let during =
            |(asked, wait): &&(Instant, Duration)| *asked <= end && *asked + *wait + took >= end;
        let waits = self.waits.iter().filter(during);
        waits.map(|(_, wait)| *wait).max().unwrap_or_default()
    }
}

/// Sorted durations, displayed as median and longest.
struct Times<'a>(&'a [Duration]);

impl fmt::Display for Times<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of = |part: usize| self.0.get((self.0.len() - 1) * part / 2).copied();
        let (median, most) = (of(1).unwrap_or_default(), of(2).unwrap_or_default());
        write!(f, "{median:.2?} (median), {most:.2?} (longest)")
    }
}

/// A subscriber that records the end and the duration of each renewal from the events of the library.
struct Renewals;

static RENEWALS: Mutex<Vec<(Instant, Duration)>> = Mutex::new(Vec::new());

impl Renewals {
    fn taken() -> Vec<(Instant, Duration)> {
        let mut renewals = RENEWALS.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut *renewals)
    }
}

impl Subscriber for Renewals {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("rdpipe") && metadata.is_event()
    }

    fn event(&self, event: &Event<'_>) {
        event.record(&mut Took);
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
}

struct Took;

impl field::Visit for Took {
    fn record_u64(&mut self, field: &field::Field, value: u64) {
        if field.name() == "renewed_in_us" {
            let mut renewals = RENEWALS.lock().unwrap_or_else(PoisonError::into_inner);
            renewals.push((Instant::now(), Duration::from_micros(value)));
        }
    }

    fn record_debug(&mut self, _: &field::Field, _: &dyn fmt::Debug) {}
}
