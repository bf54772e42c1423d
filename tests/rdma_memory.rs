//! The memory that a stream over RDMA pins, and its behaviour under a smaller memlock limit.
#![cfg(all(feature = "cli", feature = "rdma"))]

mod support;

use std::{
    io::Write,
    process::{Command, Stdio},
    time::Duration,
};

use anyhow::{Result, bail, ensure};
use rdpipe::{ReadHalf, StreamConfig, Transport, TransportPolicy, WriteHalf, connect};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt},
    sync::{Mutex, MutexGuard},
};

use crate::support::programs::{
    Setup, key, lacks_rdma, pinned_kib, program, random_bytes, receiver, sender,
};
use crate::support::{
    data_path::{self, DataPath},
    pattern::Pattern,
    process,
    proxy::{Act, Connection, Plan, Proxy, Towards},
    waiting::{generous, patience, together, until, within},
};

/// A lock for the tests that measure the memory of their own process.
static ALONE: Mutex<()> = Mutex::const_new(());

/// Waits until no other test measures, and the streams of the others are gone.
async fn alone() -> MutexGuard<'static, ()> {
    let guard = ALONE.lock().await;
    until(|| process::pinned_bytes() == 0).await;
    guard
}

/// The most memory that one end may pin, in KiB.
const MOST_KIB: u64 = 16 << 10;

#[test]
fn an_end_pins_sixteen_mebibytes_at_most() {
    if lacks_rdma() {
        return;
    }
    let receiver = receiver("--transport rdma -v").start();
    let sender = sender(receiver.port(), "--transport rdma -v");
    let mut sender = sender.stdin(Stdio::piped()).start();
    let mut input = sender.stdin();
    let mut peaks = [0; 2];
    for _ in 0..20 {
        input.write_all(&random_bytes(1 << 20)).unwrap();
        for (peak, end) in peaks.iter_mut().zip([&sender, &receiver]) {
            *peak = pinned_kib(end).max(*peak);
        }
    }
    drop(input);
    for end in [sender.end(), receiver.end()] {
        assert!(end.exits(0).contains(" over RDMA ("), "{}", end.stderr);
    }
    println!("pinned: {peaks:?} KiB");
    // Each end must also pin a third of the limit: less would mean that the test measured something else.
    let right = |peak: &u64| (MOST_KIB / 3..=MOST_KIB).contains(peak);
    assert!(peaks.iter().all(right), "{peaks:?} KiB");
}

#[test]
fn both_directions_fit_into_the_same_memory() -> Result<()> {
    if lacks_rdma() {
        return Ok(());
    }
    let runtime = tokio::runtime::Runtime::new()?;
    runtime.block_on(within(generous(), "two ways", async {
        let _alone = alone().await;
        let before = process::pinned_bytes();
        let mut config = StreamConfig::default();
        config.transport = TransportPolicy::Rdma;
        let (listener, key) = data_path::listener(config.clone()).await?;
        let port = listener.local_addr().port();
        let (a, b) = data_path::meet(listener, port, &key, &config).await?;
        ensure!(a.transport() == Transport::Rdma, "it was to be RDMA");
        println!("{} x {}", a.chunk_bytes(), a.depth());
        let [mut a, mut b] = [a, b];
        for end in [&mut a, &mut b] {
            end.write_all(b"a small message").await?;
            end.flush().await?;
        }
        let small = process::pinned_bytes() - before;
        ensure!(small < 1 << 20, "{small} bytes for small messages");
        for end in [&mut a, &mut b] {
            end.read_exact(&mut [0; 15]).await?;
        }
        let _halves = together(busy(a, 70, 71), busy(b, 71, 70)).await?;
        let all = process::pinned_bytes() - before;
        println!("both ends: {small} bytes, and {all} with their pools");
        ensure!((16 << 20..=32 << 20).contains(&all), "{all} bytes");
        Ok(())
    }))
}

/// Writes and reads, and returns the halves, whose link is still there.
async fn busy(end: rdpipe::Stream, ours: u64, theirs: u64) -> Result<(ReadHalf, WriteHalf)> {
    let (mut reads, mut writes) = end.into_split();
    let writing = async move {
        Pattern::new(ours).write(&mut writes, 0..9 << 20).await?;
        writes.shutdown().await?;
        Ok(writes)
    };
    let reading = async move {
        Pattern::new(theirs)
            .read_all(&mut reads, 0..9 << 20)
            .await?;
        Ok(reads)
    };
    let (writes, reads) = together(writing, reading).await?;
    Ok((reads, writes))
}

/// Returns a program that runs as a user without the right to exceed its memlock limit of `limit_kib`.
fn limited(program_path: &'static str, name: &'static str, limit_kib: u64) -> Setup {
    let script = format!(
        "ulimit -l {limit_kib} && exec setpriv --reuid=65534 --clear-groups --bounding-set=-all \
         --inh-caps=-all {program_path} \"$@\""
    );
    program("/bin/sh", name).arg("-c").arg(script).arg(name)
}

/// Runs both programs, each with its memlock limit. Returns the ends of the receiver and the sender.
fn limited_pair(limits: [u64; 2], options: &str) -> [crate::support::programs::End; 2] {
    let receiver = limited(env!("CARGO_BIN_EXE_rdrecv"), "rdrecv", limits[0]);
    let receiver = with(receiver, &format!("0 {} -v {options}", key())).start();
    let sender = limited(env!("CARGO_BIN_EXE_rdsend"), "rdsend", limits[1]);
    let line = format!("127.0.0.1 {} {} -v {options}", receiver.port(), key());
    let mut sender = with(sender, &line).stdin(Stdio::piped()).start();
    let mut input = sender.stdin();
    let data = random_bytes(3 << 20);
    // A sender that fails early does not read its stdin, so this write may fail.
    let written = input.write_all(&data);
    drop(input);
    let ends = [receiver.end(), sender.end()];
    if ends[0].code() == 0 {
        written.unwrap();
        assert!(ends[0].stdout == data, "other bytes");
    }
    ends
}

fn with(mut setup: Setup, line: &str) -> Setup {
    for argument in line.split_whitespace() {
        setup = setup.arg(argument);
    }
    setup
}

/// Returns true, and prints the reason, if this user cannot run the programs as another user.
fn lacks_others() -> bool {
    let test = Command::new("setpriv")
        .args(["--reuid=65534", "--clear-groups", "--bounding-set=-all"])
        .args(["test", "-x", env!("CARGO_BIN_EXE_rdrecv")])
        .status();
    let can = rustix::process::geteuid().is_root() && test.is_ok_and(|status| status.success());
    if !can {
        crate::support::programs::skip("this user cannot run the programs as another user");
    }
    !can
}

#[test]
fn a_smaller_memlock_limit_makes_smaller_pools() {
    if lacks_rdma() || lacks_others() {
        return;
    }
    for limit_kib in [16 << 10, 4 << 10, 1 << 10] {
        for end in limited_pair([limit_kib; 2], "--transport rdma") {
            let text = end.exits(0);
            assert!(text.contains(" over RDMA ("), "{text}");
            let pool = text.split("Chunks of ").nth(1).expect(text);
            let (chunk, rest) = pool.split_once(" bytes, ").expect(text);
            let digits = chunk.trim_end_matches(|c: char| !c.is_ascii_digit());
            let shift = match &chunk[digits.len()..] {
                "M" => 20,
                "K" => 10,
                _ => 0,
            };
            let chunk_bytes = digits.parse::<u64>().expect(text) << shift;
            let depth: u64 = rest.split(' ').next().unwrap().parse().expect(text);
            let pool_kib = (chunk_bytes * depth) >> 10;
            println!("{limit_kib} KiB: {chunk_bytes} x {depth}");
            let right = limit_kib / 2..=limit_kib;
            assert!(right.contains(&pool_kib), "{pool_kib} KiB:\n{text}");
        }
    }
}

#[test]
fn auto_uses_tcp_if_the_memlock_limit_is_too_small() {
    if lacks_rdma() || lacks_others() {
        return;
    }
    for limits in [[64, 64], [64, 16 << 10], [16 << 10, 64]] {
        for end in limited_pair(limits, "--transport auto") {
            let text = end.exits(0);
            assert!(text.contains(" over TCP ("), "{text}");
            let told = text
                .lines()
                .filter(|line| line.contains("the data goes over TCP: "));
            let told: Vec<_> = told.collect();
            assert_eq!(told.len(), 1, "{text}");
            assert!(told[0].contains("the memlock limit is 64 KiB"), "{text}");
        }
    }
}

/// The dialer loses its power after it has sent Hello: the proxy passes nothing on any more from the Welcome on, which
/// comes after the acceptor's preamble and its message of the Noise handshake.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dialer_that_falls_silent_leaves_no_memory_pinned() -> Result<()> {
    if lacks_rdma() {
        return Ok(());
    }
    let body = async {
        let _alone = alone().await;
        let mut config = DataPath::Rdma.config(StreamConfig::default());
        config.handshake_timeout = patience(Duration::from_secs(3));
        // Without an express path the pools are pinned in the negotiation.
        config.rdma.small_frames = 0;
        let (listener, key) = data_path::listener(config.clone()).await?;
        let proxy = Proxy::start(
            listener.local_addr(),
            Some(Plan {
                connection: Connection::Control,
                towards: Towards::Dialer,
                at: 60,
                act: Act::SilenceAll,
            }),
        );
        // The dialer waits for longer, so that only the acceptor's limit can end the negotiation.
        let mut patient = config.clone();
        patient.handshake_timeout = 10 * generous();
        let freed = async {
            until(|| process::pinned_bytes() > 1 << 20).await;
            until(|| process::pinned_bytes() == 0).await;
        };
        tokio::select! {
            dialed = connect(("127.0.0.1", proxy.port()), &key, &patient) => {
                bail!("the dialer ended first: {:?}", dialed.err());
            }
            () = freed => {}
        }
        // The listener continues, and `accept` does not report the handshake that took too long.
        let port = listener.local_addr().port();
        let (dialed, accepted) = tokio::join!(
            connect(("127.0.0.1", port), &key, &config),
            listener.accept()
        );
        drop((dialed?, accepted?));
        Ok(())
    };
    within(generous(), "a dialer that falls silent", body).await
}

/// A reader is dropped with a chunk in hand while the other half of its stream lives, and with it the queue pair
/// through which the peer can write the slot of that chunk.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dropped_reader_frees_no_memory_that_the_peer_can_write() -> Result<()> {
    const CHUNK: u64 = 256 << 10;
    if lacks_rdma() {
        return Ok(());
    }
    let body = async {
        let _alone = alone().await;
        let mut config = StreamConfig::default();
        (config.chunk_bytes, config.depth) = (256 << 10, 4);
        let (mut a, b) = DataPath::Rdma.pair(config.clone(), config).await?;
        Pattern::new(72).write(&mut a, 0..CHUNK).await?;
        let (mut reads, writes) = b.into_split();
        ensure!(!reads.fill_buf().await?.is_empty(), "no chunk");
        reads.stop();
        let held = process::pinned_bytes();
        drop(reads);
        let now = process::pinned_bytes();
        // Each receive pins a page of its own, and receives come and go.
        ensure!(
            now + CHUNK / 2 > held,
            "{now} bytes are pinned, and {held} before"
        );
        drop((a, writes));
        until(|| process::pinned_bytes() == 0).await;
        Ok(())
    };
    within(generous(), "a dropped reader", body).await
}
