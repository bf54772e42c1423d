//! Many peers with the key connect at once, or across a long way, with and without strangers.

use std::{collections::VecDeque, time::Duration};

use anyhow::{Context, Result, ensure};
use futures::{FutureExt, future::join_all};
use rdpipe::{Key, Listener, StreamConfig, connect};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    task::JoinSet,
    time::{Instant, interval},
};

use crate::{
    distance,
    house::{House, SLACK_BYTES, alone},
    support::{is_full, process, skip, waiting::limit},
};

/// The number of peers that connect at once.
const PEERS: usize = if cfg!(debug_assertions) { 200 } else { 1000 };

/// The number of strangers that are connected while the peers connect.
const STRANGERS: usize = 500;

/// The memory that the streams of all peers may cost at both ends together, in bytes, for each peer: two pools at each
/// end, of four chunks of 16 KiB, of which little is used; tasks and buffers.
const PEER_BYTES: u64 = 160 << 10;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn peers_that_connect_at_once_all_get_a_stream() -> Result<()> {
    crowd("peers_that_connect_at_once_all_get_a_stream", 0).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn peers_that_connect_at_once_among_silent_strangers_all_get_a_stream() -> Result<()> {
    crowd(
        "peers_that_connect_at_once_among_silent_strangers_all_get_a_stream",
        STRANGERS,
    )
    .await
}

async fn crowd(name: &str, strangers: usize) -> Result<()> {
    // Both ends of every connection are in this process.
    let needed = 4 * PEERS + 2 * strangers + 200;
    if process::raise_descriptor_limit() < needed as u64 {
        skip(&format!("{name}: needs {needed} descriptors"));
        return Ok(());
    }
    for round in 0..if is_full() { 20 } else { 1 } {
        let slack_bytes = SLACK_BYTES + PEERS as u64 * PEER_BYTES;
        alone(name, slack_bytes, async {
            let started = Instant::now();
            let house = House::with(patient()).await?;
            let strangers = join_all((0..strangers).map(|_| house.stranger())).await;
            let House {
                listener,
                address,
                key,
                config,
            } = house;
            meet(&listener, address.port(), &key, &config).await?;
            drop(strangers);
            let (took, mib) = (started.elapsed(), process::resident_bytes() >> 20);
            eprintln!("{name}, round {round}: {took:.2?}, {mib} MiB");
            Ok(())
        })
        .await?;
    }
    Ok(())
}

/// Returns a configuration with the usual time limits, longer on a busy machine.
pub(crate) fn patient() -> StreamConfig {
    let mut config = StreamConfig::default();
    config.connect_timeout = limit(config.connect_timeout);
    config.retry_for = limit(config.retry_for);
    config.handshake_timeout = limit(config.handshake_timeout);
    config
}

/// Connects all peers at once. Each sends its number and gets it back; no call may fail.
async fn meet(listener: &Listener, port: u16, key: &Key, config: &StreamConfig) -> Result<()> {
    let mut peers = JoinSet::new();
    for number in 0..PEERS {
        let (key, config) = (key.clone(), config.clone());
        let peer = async move {
            let mut stream = connect(("127.0.0.1", port), &key, &config).await?;
            stream.write_u64(number as u64).await.context("writing")?;
            ensure!(stream.read_u64().await.context("reading")? == number as u64);
            stream.shutdown().await?;
            ensure!(stream.read(&mut [0]).await? == 0);
            stream.close().await;
            anyhow::Ok(())
        };
        peers.spawn(async move { peer.await.with_context(|| format!("peer {number}")) });
    }
    let mut served = JoinSet::new();
    for count in 0..PEERS {
        tokio::select! {
            accepted = listener.accept() => {
                let mut stream = accepted.with_context(|| format!("accept, after {count}"))?;
                served.spawn(async move {
                    let number = stream.read_u64().await.context("reading at the acceptor")?;
                    stream.write_u64(number).await?;
                    stream.shutdown().await?;
                    ensure!(stream.read(&mut [0]).await? == 0);
                    stream.close().await;
                    anyhow::Ok(())
                });
            }
            failed = failure(&mut peers) => return Err(failed),
        }
    }
    for outcome in peers
        .join_all()
        .await
        .into_iter()
        .chain(served.join_all().await)
    {
        outcome?;
    }
    ensure!(
        listener.accept().now_or_never().is_none(),
        "accept returns more than there were peers"
    );
    Ok(())
}

/// Waits for the first peer that fails.
async fn failure(peers: &mut JoinSet<Result<()>>) -> anyhow::Error {
    while let Some(ended) = peers.join_next().await {
        match ended {
            Ok(Ok(())) => {}
            Ok(Err(error)) => return error,
            Err(panic) => return panic.into(),
        }
    }
    std::future::pending().await
}

/// The strangers of a flood, in each second.
const FLOOD: u32 = 1260;

/// A peer 100 ms away needs five times as long for its handshake as it takes a flood to fill the places of
/// strangers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_of_strangers_keeps_no_distant_peer_out() -> Result<()> {
    process::raise_descriptor_limit();
    let body = async {
        let house = House::with(patient()).await?;
        let port = distance::proxy(house.address, Duration::from_millis(100)).await?;
        let address = house.address;
        let flood = tokio::spawn(async move {
            let mut ticks = interval(Duration::from_secs(1) / FLOOD);
            // Those that the listener has closed stay here, because a stranger need not close its end.
            let mut strangers = VecDeque::new();
            loop {
                ticks.tick().await;
                strangers.push_back(TcpStream::connect(address).await);
                if strangers.len() > 1000 {
                    strangers.pop_front();
                }
            }
        });
        for number in 0..5 {
            let served = house.serves_through(port).await;
            served.with_context(|| format!("peer {number}"))?;
        }
        flood.abort();
        Ok(())
    };
    alone(
        "a_flood_of_strangers_keeps_no_distant_peer_out",
        SLACK_BYTES,
        Box::pin(body),
    )
    .await
}
