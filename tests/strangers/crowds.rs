//! Many peers and strangers at once, a backlog of the listener that strangers fill, and peers that are distant.

use std::{collections::VecDeque, net::SocketAddr, sync::Arc, time::Duration};

use anyhow::{Context, Result, ensure};
use futures::{
    FutureExt,
    future::{join_all, try_join_all},
};
use rdpipe::{Key, Listener, StreamConfig, connect};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::{Semaphore, mpsc},
    task::JoinSet,
    time::{Instant, interval, sleep, sleep_until},
};

use crate::{
    house::{House, SLACK_BYTES, alone},
    support::{
        is_full, process,
        proxy::{Act, Connection, Plan, Proxy, Towards},
        skip,
        waiting::{limit, patience},
    },
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
        let port = proxy(house.address, Duration::from_millis(100)).await?;
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

/// A stream that waits for `accept` for several times the timeout of both ends is alive when it is accepted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_that_waits_for_accept_is_kept_alive() -> Result<()> {
    let body = Box::pin(async {
        let mut config = StreamConfig::default();
        config.timeout = patience(Duration::from_millis(400));
        let house = House::with(config).await?;
        let port = house.address.port();
        let mut here = connect(("127.0.0.1", port), &house.key, &house.config).await?;
        here.write_all(b"early").await?;
        sleep(3 * house.config.timeout).await;
        let mut there = house.listener.accept().await?;
        here.shutdown().await.context("the dialer")?;
        let mut said = String::new();
        let reading = there.read_to_string(&mut said).await;
        reading.context("the acceptor")?;
        ensure!(said == "early", "{said:?}");
        Ok(())
    });
    alone(
        "a_stream_that_waits_for_accept_is_kept_alive",
        SLACK_BYTES,
        body,
    )
    .await
}

/// More peers than streams may wait connect while the program accepts none, and all of them get their stream later.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn peers_wait_until_the_program_accepts() -> Result<()> {
    const PEERS: usize = 100;
    let body = Box::pin(async {
        let house = House::with(patient()).await?;
        let port = house.address.port();
        let connected = Arc::new(Semaphore::new(0));
        let dialing = (0..PEERS).map(|number| {
            let (key, config) = (house.key.clone(), house.config.clone());
            let connected = Arc::clone(&connected);
            tokio::spawn(async move {
                let mut stream = connect(("127.0.0.1", port), &key, &config).await?;
                connected.add_permits(1);
                stream.write_all(b"!").await?;
                stream.shutdown().await?;
                ensure!(stream.read(&mut [0]).await? == 0, "peer {number}");
                anyhow::Ok(())
            })
        });
        let dialing: Vec<_> = dialing.collect();
        // So many have connected before the first of them is accepted.
        let _ = connected.acquire_many(40).await?;
        for number in 0..PEERS {
            let accepted = house.listener.accept().await;
            let mut stream = accepted.with_context(|| format!("accept {number}"))?;
            ensure!(stream.read_u8().await.context("the first byte")? == b'!');
            ensure!(stream.read(&mut [0]).await? == 0);
            stream.shutdown().await?;
        }
        for outcome in try_join_all(dialing).await? {
            outcome?;
        }
        Ok(())
    });
    alone(
        "peers_wait_until_the_program_accepts",
        2 * SLACK_BYTES,
        body,
    )
    .await
}

/// Handshakes of peers with the key that break at various points are no errors of `accept`: the next stream is that of
/// the next peer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handshake_that_breaks_is_no_error_of_accept() -> Result<()> {
    let body = Box::pin(async {
        let house = House::with(StreamConfig::default()).await?;
        let mut impatient = house.config.clone();
        impatient.retry_for = Duration::ZERO;
        for (connection, towards, at) in [
            (Connection::Control, Towards::Acceptor, 20),
            (Connection::Control, Towards::Acceptor, 80),
            (Connection::Control, Towards::Dialer, 60),
            (Connection::Control, Towards::Dialer, 100),
            (Connection::Data, Towards::Acceptor, 4),
            (Connection::Data, Towards::Acceptor, 23),
            (Connection::Data, Towards::Acceptor, 40),
            (Connection::Data, Towards::Dialer, 10),
        ] {
            let plan = Plan {
                connection,
                towards,
                at,
                act: Act::Cut,
            };
            loop {
                let proxy = Proxy::start(house.address, Some(plan));
                let dialed = connect(("127.0.0.1", proxy.port()), &house.key, &impatient).await;
                ensure!(dialed.is_err(), "{plan:?}: connected");
                if proxy.has_acted() {
                    break;
                }
            }
            let served = house.serves_the_right_peer().await;
            served.with_context(|| format!("{plan:?}"))?;
        }
        Ok(())
    });
    alone(
        "a_handshake_that_breaks_is_no_error_of_accept",
        SLACK_BYTES,
        body,
    )
    .await
}

/// A data connection that is closed before the acceptor has read whose it is, as strangers are pushed out, is dialed
/// again, on the same control connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_data_connection_that_is_pushed_out_is_dialed_again() -> Result<()> {
    let body = Box::pin(async {
        let house = House::with(StreamConfig::default()).await?;
        let plan = Plan {
            connection: Connection::Data,
            towards: Towards::Acceptor,
            at: 12,
            act: Act::Cut,
        };
        let proxy = Proxy::start(house.address, Some(plan));
        house.serves_through(proxy.port()).await?;
        ensure!(proxy.has_acted(), "nothing was cut");
        let count = proxy.connections();
        ensure!(
            count == 3,
            "{count} connections: one for control, two for data"
        );
        Ok(())
    });
    alone(
        "a_data_connection_that_is_pushed_out_is_dialed_again",
        SLACK_BYTES,
        body,
    )
    .await
}

/// What arrives at a time, or the end of a direction.
type Packet = (Instant, Option<Vec<u8>>);

/// Starts a proxy for `target` which every packet takes this long to cross, one way. Returns its port.
pub(crate) async fn proxy(target: SocketAddr, one_way: Duration) -> Result<u16> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let port = listener.local_addr()?.port();
    tokio::spawn(async move {
        while let Ok((near, _)) = listener.accept().await {
            tokio::spawn(carry(near, target, one_way));
        }
    });
    Ok(port)
}

async fn carry(near: TcpStream, target: SocketAddr, one_way: Duration) -> Result<()> {
    near.set_nodelay(true)?;
    let (near_reads, near_writes) = near.into_split();
    let (sent, arriving) = mpsc::unbounded_channel();
    tokio::spawn(take(near_reads, sent, one_way));
    // The opening of a connection is a packet too: what follows it at once arrives together with it.
    sleep(one_way).await;
    let far = TcpStream::connect(target).await?;
    far.set_nodelay(true)?;
    let (far_reads, far_writes) = far.into_split();
    tokio::spawn(deliver(arriving, far_writes));
    let (sent, arriving) = mpsc::unbounded_channel();
    tokio::spawn(take(far_reads, sent, one_way));
    deliver(arriving, near_writes).await;
    Ok(())
}

async fn take(mut from: OwnedReadHalf, sent: mpsc::UnboundedSender<Packet>, one_way: Duration) {
    let mut buffer = vec![0; 16 << 10];
    loop {
        let bytes = match from.read(&mut buffer).await {
            Ok(0) | Err(_) => None,
            Ok(count) => Some(buffer[..count].to_vec()),
        };
        let is_end = bytes.is_none();
        if sent.send((Instant::now() + one_way, bytes)).is_err() || is_end {
            return;
        }
    }
}

async fn deliver(mut arriving: mpsc::UnboundedReceiver<Packet>, mut to: OwnedWriteHalf) {
    while let Some((at, bytes)) = arriving.recv().await {
        sleep_until(at).await;
        let written = match bytes {
            Some(bytes) => to.write_all(&bytes).await,
            None => to.shutdown().await,
        };
        if written.is_err() {
            return;
        }
    }
}
