//! The holder of one key of a listener for many keys opens connections that stall, in every phase before a stream is
//! accepted and far beyond the number of places. Peers with another key get their streams.

use std::{
    collections::HashMap,
    future::pending,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use futures::future::{join_all, try_join_all};
use rdpipe::{Key, KeyId, Listener, Stream, StreamConfig, connect, connect_with};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

use crate::{
    crowds::patient,
    house::alone,
    support::{
        process, skip,
        waiting::{generous, until},
    },
};

/// The streams that a listener keeps before they are accepted, and a quarter of it.
const WAITING: usize = 64;
const SHARE_OF_WAITING: usize = 16;

/// The connections that prove their key, and a quarter of it.
const PROVING: usize = 1024;
const SHARE_OF_PROVING: usize = 256;

/// The size of what a dialer sends first: preamble, id of the key, first message.
const OPENING_BYTES: usize = 72;

/// The memory that the connections of these tests may cost, at both ends.
const SLACK: u64 = 64 << 20;

/// A listener for two keys, which gives every negotiation much time.
struct Shared {
    listener: Listener,
    address: SocketAddr,
    alice: Key,
    bob: Key,
}

impl Shared {
    async fn open() -> Result<Self> {
        let [alice, bob] = [Key::generate()?, Key::generate()?].map(|made| made.key().clone());
        let keys = [&alice, &bob].map(|key| (key.id(), key.clone()));
        let keys = HashMap::from(keys);
        let lookup = move |id: KeyId| keys.get(&id).cloned();
        let mut config = small();
        config.handshake_timeout = 2 * generous();
        let listener = Listener::bind_with("127.0.0.1:0", lookup, config).await?;
        Ok(Self {
            address: listener.local_addr(),
            listener,
            alice,
            bob,
        })
    }

    /// Connects some peers with a key, and accepts their streams among those of others.
    async fn serves(&self, key: &Key) -> Result<()> {
        const PEERS: usize = 6;
        let config = small();
        let dialing = (0..PEERS).map(|_| connect(self.address, key, &config));
        let accepting = async {
            let mut accepted = Vec::new();
            while accepted.len() < PEERS {
                let stream = self.listener.accept().await?;
                if stream.key_id() == key.id() {
                    accepted.push(stream);
                }
            }
            Ok(accepted)
        };
        let dialing = async { try_join_all(dialing).await.context("a quiet peer") };
        tokio::try_join!(dialing, accepting)?;
        Ok(())
    }
}

/// A configuration with small pools.
fn small() -> StreamConfig {
    let mut config = patient();
    (config.chunk_bytes, config.depth) = (16 << 10, 4);
    config
}

/// Returns a configuration of a peer that stalls for as long as it is let.
fn stalling() -> StreamConfig {
    let mut config = small();
    config.connect_timeout = 4 * generous();
    config.handshake_timeout = 4 * generous();
    config
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn negotiations_that_stall_keep_no_other_key_out() -> Result<()> {
    let body = Box::pin(async {
        let shared = Shared::open().await?;
        let negotiating = Arc::new(AtomicUsize::new(0));
        let stalled = (0..3 * WAITING).map(|_| {
            let (address, key) = (shared.address, shared.alice.clone());
            let negotiating = Arc::clone(&negotiating);
            let opened = AtomicUsize::new(0);
            tokio::spawn(async move {
                let open = || async {
                    if opened.fetch_add(1, Relaxed) == 0 {
                        return TcpStream::connect(address).await;
                    }
                    // The acceptor waits for the data connection.
                    negotiating.fetch_add(1, Relaxed);
                    pending().await
                };
                connect_with("the listener", open, &key, &stalling()).await
            })
        });
        let stalled: Vec<_> = stalled.collect();
        until(|| negotiating.load(Relaxed) >= SHARE_OF_WAITING).await;
        shared.serves(&shared.bob).await?;
        ensure!(
            negotiating.load(Relaxed) == SHARE_OF_WAITING,
            "more than a share"
        );
        for one in &stalled {
            one.abort();
        }
        Ok(())
    });
    alone("negotiations_that_stall_keep_no_other_key_out", SLACK, body).await
}

/// Streams that the program does not accept: those of the other key are made nevertheless, and are accepted in turn.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_that_wait_for_accept_keep_no_other_key_out() -> Result<()> {
    let body = Box::pin(async {
        let shared = Shared::open().await?;
        let connected = Arc::new(AtomicUsize::new(0));
        let crowd = (0..2 * WAITING).map(|_| {
            let (address, key) = (shared.address, shared.alice.clone());
            let connected = Arc::clone(&connected);
            tokio::spawn(async move {
                let stream = connect(address, &key, &stalling()).await;
                connected.fetch_add(1, Relaxed);
                stream
            })
        });
        let crowd: Vec<_> = crowd.collect();
        until(|| connected.load(Relaxed) >= SHARE_OF_WAITING).await;
        let config = small();
        let quiet = (0..3).map(|_| connect(shared.address, &shared.bob, &config));
        let quiet: Vec<Stream> = try_join_all(quiet).await.context("a quiet peer")?;
        let made = (SHARE_OF_WAITING + quiet.len()) as u64;
        until(|| shared.listener.stats().streams == made).await;
        let (mut others, mut own) = (0, 0);
        while own < quiet.len() {
            let accepted = shared.listener.accept().await?;
            *(if accepted.key_id() == shared.bob.id() {
                &mut own
            } else {
                &mut others
            }) += 1;
        }
        // In the order in which they came, all of the share would be before the quiet ones.
        ensure!(
            others < SHARE_OF_WAITING,
            "not in turn: {others} others first"
        );
        for one in &crowd {
            one.abort();
        }
        Ok(())
    });
    alone(
        "streams_that_wait_for_accept_keep_no_other_key_out",
        SLACK,
        body,
    )
    .await
}

/// Connections that show a valid first message and nothing else, as recordings do. They keep no other key out, and not
/// even peers with the same key.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn first_messages_without_a_second_keep_no_peer_out() -> Result<()> {
    let name = "first_messages_without_a_second_keep_no_peer_out";
    let count = PROVING + 100;
    let needed = 4 * PROVING;
    if process::raise_descriptor_limit() < needed as u64 {
        skip(&format!("{name}: needs {needed} descriptors"));
        return Ok(());
    }
    let body = Box::pin(async {
        let shared = Shared::open().await?;
        let recordings = openings(&shared.alice, count).await?;
        let answered = Arc::new(AtomicUsize::new(0));
        let silent = recordings.into_iter().map(|opening| {
            let (address, answered) = (shared.address, Arc::clone(&answered));
            tokio::spawn(async move {
                let mut socket = TcpStream::connect(address).await?;
                socket.write_all(&opening).await?;
                socket.read_u8().await?;
                answered.fetch_add(1, Relaxed);
                // Until the listener closes it.
                socket.read_to_end(&mut Vec::new()).await
            })
        });
        let silent: Vec<_> = silent.collect();
        until(|| answered.load(Relaxed) >= SHARE_OF_PROVING).await;
        shared.serves(&shared.bob).await?;
        shared
            .serves(&shared.alice)
            .await
            .context("of the same key")?;
        for one in &silent {
            one.abort();
        }
        Ok(())
    });
    alone(name, SLACK, body).await
}

/// Records the first bytes of so many dialers.
async fn openings(key: &Key, count: usize) -> Result<Vec<[u8; OPENING_BYTES]>> {
    let thief = TcpListener::bind("127.0.0.1:0").await?;
    let address = thief.local_addr()?;
    let mut config = small();
    config.retry_for = Duration::ZERO;
    let mut recorded = Vec::new();
    while recorded.len() < count {
        let dialing = (0..32).map(|_| connect(address, key, &config));
        let recording = async {
            for _ in 0..32 {
                let (mut socket, _) = thief.accept().await?;
                let mut opening = [0; OPENING_BYTES];
                socket.read_exact(&mut opening).await?;
                recorded.push(opening);
            }
            anyhow::Ok(())
        };
        let (_, recording) = tokio::join!(join_all(dialing), recording);
        recording?;
    }
    recorded.truncate(count);
    Ok(recorded)
}
