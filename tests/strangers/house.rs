//! A listener under test, and what its visitors check.

use std::{net::SocketAddr, time::Duration};

use anyhow::{Context, Result, ensure};
use futures::FutureExt;
use rdpipe::{Key, Listener, StreamConfig, connect};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    sync::Mutex,
    time::timeout,
};

use crate::support::{
    data_path, process,
    waiting::{generous, limit, within},
};

/// A lock that makes the tests run one at a time, because each measures the memory of the process.
static ALONE: Mutex<()> = Mutex::const_new(());

/// The memory that connections without the key may cost, in bytes: sockets and tasks, and what the allocator keeps for
/// reuse.
pub(crate) const SLACK_BYTES: u64 = 8 << 20;

/// A listener with its address, key and configuration.
pub(crate) struct House {
    pub(crate) listener: Listener,
    pub(crate) address: SocketAddr,
    pub(crate) key: Key,
    pub(crate) config: StreamConfig,
}

impl House {
    pub(crate) async fn open() -> Result<Self> {
        Self::with_patience(StreamConfig::default().handshake_timeout).await
    }

    pub(crate) async fn with_patience(handshake_timeout: Duration) -> Result<Self> {
        let mut config = StreamConfig::default();
        config.handshake_timeout = handshake_timeout;
        Self::with(config).await
    }

    /// Opens a listener for streams with small pools, otherwise with this configuration.
    pub(crate) async fn with(mut config: StreamConfig) -> Result<Self> {
        (config.chunk_bytes, config.depth) = (16 << 10, 4);
        let (listener, key) = data_path::listener(config.clone()).await?;
        Ok(Self {
            address: listener.local_addr(),
            listener,
            key,
            config,
        })
    }

    pub(crate) async fn stranger(&self) -> Result<TcpStream> {
        Ok(TcpStream::connect(self.address).await?)
    }

    /// Connects with the right key, and checks that this peer is the first one that `accept` returns.
    pub(crate) async fn serves_the_right_peer(&self) -> Result<()> {
        self.serves_through(self.address.port()).await
    }

    pub(crate) async fn serves_through(&self, port: u16) -> Result<()> {
        let dialing = connect(("127.0.0.1", port), &self.key, &self.config);
        let (dialed, accepted) = tokio::join!(dialing, self.listener.accept());
        let accepted = accepted.context("accept() reports a peer that gets no stream")?;
        let (mut here, mut there) = (dialed.context("the right peer")?, accepted);
        here.write_all(b"it is me").await?;
        here.shutdown().await?;
        let mut said = String::new();
        there.read_to_string(&mut said).await?;
        ensure!(said == "it is me", "{said:?}");
        there.shutdown().await?;
        ensure!(here.read(&mut [0]).await? == 0, "no end");
        tokio::join!(here.close(), there.close());
        ensure!(
            self.listener.accept().now_or_never().is_none(),
            "another peer was accepted"
        );
        Ok(())
    }
}

/// Runs `body` while no other test runs, and checks that the memory of the process grows by less than `slack_bytes`.
pub(crate) async fn alone(
    name: &str,
    slack_bytes: u64,
    body: impl Future<Output = Result<()>>,
) -> Result<()> {
    let _alone = ALONE.lock().await;
    let before = process::resident_bytes();
    within(generous(), name, body).await?;
    let grown = process::resident_bytes().saturating_sub(before);
    ensure!(grown < slack_bytes, "{name}: {grown} more bytes resident");
    Ok(())
}

/// Checks that the listener closes the connection in time, after at most 200 bytes.
pub(crate) async fn hung_up(stranger: &mut TcpStream) -> Result<()> {
    let mut last_words = Vec::new();
    let reading = stranger.read_to_end(&mut last_words);
    // A reset counts as closed.
    let _ = timeout(limit(Duration::from_secs(5)), reading)
        .await
        .context("still connected")?;
    ensure!(
        last_words.len() < 200,
        "it says {} bytes to a stranger",
        last_words.len()
    );
    Ok(())
}
