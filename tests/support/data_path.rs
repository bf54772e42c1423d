//! Streams to test over: the data paths, two connected ends, pools that are soon full, and the states in which the
//! tests of leaks drop a stream.

use anyhow::{Context, Result, bail, ensure};
use rdpipe::{
    Encryption, Key, Listener, Rails, Stream, StreamConfig, Transport, TransportPolicy, connect,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::{
    pattern::Pattern,
    proxy::{Act, Connection, Plan, Proxy, Towards},
    waiting::until,
};

/// A data path under test. It is a value, not a type, so that each promise is compiled once. A new data path needs a
/// line `over!(...)` in `stream/promises` and `stream/tokio_traits`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum DataPath {
    /// TCP over loopback.
    Tcp,
    /// TCP over loopback without encryption, with one flipped bit in the payload of the second chunk that the dialer
    /// sends.
    FlippedTcp,
    /// TCP over loopback, without encryption.
    PlainTcp,
    /// Two rails of TCP over loopback.
    TwoRails,
    /// Five rails of TCP over loopback, without encryption.
    FiveRails,
    /// RDMA with an express path, as by default, and the control connection over loopback.
    Rdma,
    /// RDMA without an express path, and with a renewal of the link after every few chunks.
    RenewedRdma,
    /// Three rails of RDMA, the first with an express path, with a renewal of each link after every few chunks.
    RdmaRails,
    ManyRdmaRails,
    ExpressRdma,
    /// RDMA with an express path for two small frames at a time, and renewals.
    NarrowExpressRdma,
    /// RDMA whose express paths fail one after the other.
    FailingExpress,
    /// RDMA with an express path, whose links fail one after the other.
    FailingLinks,
    /// Two rails of RDMA whose links and express paths fail one after the other.
    FailingRails,
}

impl DataPath {
    /// Returns the reason why this data path cannot be tested in this run, or `None` if it can.
    pub(crate) fn missing(self) -> Option<String> {
        match self {
            Self::Tcp | Self::FlippedTcp | Self::PlainTcp | Self::TwoRails | Self::FiveRails => {
                None
            }
            // The rails renew their links too.
            Self::Rdma | Self::RdmaRails => super::missing_rdma(),
            // Each of them takes minutes.
            _ if !super::is_full() => Some("only with scripts/test --full".to_owned()),
            _ => super::missing_rdma(),
        }
    }

    /// Returns `config`, changed to allow this data path and no other.
    pub(crate) fn config(self, mut config: StreamConfig) -> StreamConfig {
        config.transport = self.policy();
        config.encryption = match self {
            Self::FlippedTcp | Self::PlainTcp | Self::FiveRails => Encryption::Never,
            // By default the data that stays on one machine is not encrypted.
            _ => Encryption::Always,
        };
        if self.rails() > 1 {
            config.rails = Rails::Exactly(u8::try_from(self.rails()).expect("few"));
        }
        #[cfg(feature = "rdma")]
        if config.transport == TransportPolicy::Rdma {
            // A test that sets the size and number of chunks means those of the data path under test.
            (config.rdma.chunk_bytes, config.rdma.depth) = (config.chunk_bytes, config.depth);
            config.rdma.renew_after = match self {
                Self::RenewedRdma
                | Self::RdmaRails
                | Self::ExpressRdma
                | Self::NarrowExpressRdma => 7,
                _ => config.rdma.renew_after,
            };
            config.rdma.small_frames = match self {
                Self::ExpressRdma
                | Self::FailingExpress
                | Self::FailingLinks
                | Self::FailingRails => 32,
                Self::NarrowExpressRdma => 2,
                Self::RenewedRdma => 0,
                _ => config.rdma.small_frames,
            };
        }
        #[cfg(all(feature = "rdma", feature = "fault-injection"))]
        match self {
            Self::FailingExpress => config.faults.lose_express_at = 5,
            Self::FailingLinks => {
                (config.faults.lose_link_at, config.faults.lose_pools) = (6, true);
            }
            Self::FailingRails => {
                (config.faults.lose_link_at, config.faults.lose_express_at) = (6, 9);
            }
            _ => {}
        }
        config
    }

    /// Returns a connected dialer and acceptor, each with its own configuration.
    pub(crate) async fn pair(
        self,
        dialer: StreamConfig,
        acceptor: StreamConfig,
    ) -> Result<(Stream, Stream)> {
        let flip = (self == Self::FlippedTcp).then(|| Plan {
            connection: Connection::Data,
            towards: Towards::Acceptor,
            at: dialer.chunk_bytes as u64 * 3 / 2,
            act: Act::Flip(3),
        });
        let dialer = self.config(dialer);
        #[cfg_attr(not(feature = "rdma"), expect(unused_mut, reason = "changed for RDMA"))]
        let mut acceptor = self.config(acceptor);
        #[cfg(feature = "rdma")]
        if self == Self::NarrowExpressRdma {
            // The ends need not agree on the number of frames.
            acceptor.rdma.small_frames = 8;
        }
        let (listener, key) = listener(acceptor).await?;
        let mut port = listener.local_addr().port();
        if let Some(flip) = flip {
            let proxy = Proxy::start(listener.local_addr(), Some(flip));
            port = proxy.port();
            proxy.outlive_its_owner();
        }
        let ends = meet(listener, port, &key, &dialer).await?;
        let transport = match self.policy() {
            TransportPolicy::Tcp => Transport::Tcp,
            _ => Transport::Rdma,
        };
        ensure!(ends.0.transport() == transport, "it was to be {transport}");
        let is_encrypted = dialer.encryption == Encryption::Always;
        ensure!(ends.0.cipher().is_some() == is_encrypted, "the cipher");
        let rails = ends.0.rails();
        ensure!(rails as u64 == self.rails(), "it has {rails} rails");
        Ok(ends)
    }

    /// Returns the number of rails.
    fn rails(self) -> u64 {
        match self {
            Self::TwoRails | Self::FailingRails => 2,
            Self::RdmaRails => 3,
            Self::FiveRails => 5,
            Self::ManyRdmaRails => 8,
            _ => 1,
        }
    }

    /// Returns the number of bytes that the receive pools of all rails hold, with small pools.
    pub(crate) fn pool(self) -> u64 {
        self.rails() * POOL
    }

    /// Returns the number of bytes that fit between two ends while the second does not read, with small pools: those
    /// of the receive pools, the chunk that waits for credit at the first rail, and those for which each other has slots.
    pub(crate) fn full(self) -> u64 {
        let sending = match self.policy() {
            TransportPolicy::Tcp => 2 * CHUNK,
            _ => POOL - CHUNK,
        };
        self.pool() + CHUNK + sending * (self.rails() - 1)
    }

    /// Returns true if the bytes cross RDMA.
    pub(crate) fn is_rdma(self) -> bool {
        self.policy() == TransportPolicy::Rdma
    }

    /// Returns true if a test is to send little and to connect seldom: over RDMA, because the processor may be emulated,
    /// except in a full run.
    pub(crate) fn is_slow(self) -> bool {
        self.is_rdma() && !super::is_full()
    }

    fn policy(self) -> TransportPolicy {
        match self {
            Self::Tcp | Self::FlippedTcp | Self::PlainTcp | Self::TwoRails | Self::FiveRails => {
                TransportPolicy::Tcp
            }
            _ => TransportPolicy::Rdma,
        }
    }
}

/// Returns a listener on a free port of loopback, and a new key for it.
pub(crate) async fn listener(config: StreamConfig) -> Result<(Listener, Key)> {
    let key = Key::generate()?.key().clone();
    let listener = Listener::bind("127.0.0.1:0", key.clone(), config).await?;
    Ok((listener, key))
}

/// Dials `port`, which leads to `listener`. Returns the dialed and the accepted stream.
pub(crate) async fn meet(
    listener: Listener,
    port: u16,
    key: &Key,
    config: &StreamConfig,
) -> Result<(Stream, Stream)> {
    let dialing = async {
        let dialed = connect(("127.0.0.1", port), key, config).await;
        dialed.context("the dialer")
    };
    let accepting = async { listener.accept().await.context("the acceptor") };
    // A listener whose only dialer has failed would wait forever.
    tokio::try_join!(dialing, accepting)
}

/// The payload of a chunk in most promises, in bytes: small, so that the pools are soon full.
pub(crate) const CHUNK: u64 = 64 << 10;

/// The number of slots of each pool in most promises.
pub(crate) const DEPTH: u64 = 4;

/// The bytes that a receive pool holds.
pub(crate) const POOL: u64 = CHUNK * DEPTH;

/// Returns `base` with small pools.
pub(crate) fn small(base: &StreamConfig) -> StreamConfig {
    let mut config = base.clone();
    config.chunk_bytes = usize::try_from(CHUNK).expect("64 KiB");
    config.depth = usize::try_from(DEPTH).expect("4");
    config
}

/// Returns two connected ends with small pools.
pub(crate) async fn pair(over: DataPath, base: &StreamConfig) -> Result<(Stream, Stream)> {
    over.pair(small(base), small(base)).await
}

/// Writes [`full`](DataPath::full) bytes of `pattern` from `at` on; all earlier bytes must have been read. Any further
/// write waits until `to` is read.
pub(crate) async fn fill(
    over: DataPath,
    (from, to): (&mut Stream, &Stream),
    pattern: &Pattern,
    at: u64,
) -> Result<()> {
    // In whole chunks: a piece of one would take the whole slot of a rail.
    let mut bytes = Vec::new();
    pattern.write(&mut bytes, at..at + over.full()).await?;
    from.write_all(&bytes).await?;
    until(|| to.stats().bytes_received == at + over.pool()).await;
    Ok(())
}

/// The number of slots that a stream must have for [`let_go`]: in one of the states all of them are full.
pub(crate) const LEAK_DEPTH: usize = 4;

/// Brings a stream of [`LEAK_DEPTH`] slots of 8 KiB into the state of this number, and drops both ends.
pub(crate) async fn let_go(a: Stream, b: Stream, number: u32) -> Result<()> {
    match number % 8 {
        0..=2 => to_the_end(a, b).await,
        3 => {
            drop((a, b));
            Ok(())
        }
        4 => full_then_dropped(a, b).await,
        5 => half_read_then_dropped(a, b).await,
        6 => stopped_then_dropped(a, b).await,
        _ => finished_on_one_side(a, b).await,
    }
}

async fn to_the_end(mut a: Stream, mut b: Stream) -> Result<()> {
    let pattern = Pattern::new(40);
    let one = async {
        pattern.write(&mut a, 0..100_000).await?;
        a.finish().await?;
        pattern.read_all(&mut a, 0..10).await
    };
    let other = async {
        pattern.read_all(&mut b, 0..100_000).await?;
        b.confirm()?;
        pattern.write(&mut b, 0..10).await?;
        anyhow::Ok(b.shutdown().await?)
    };
    tokio::try_join!(one, other)?;
    tokio::join!(a.close(), b.close());
    Ok(())
}

/// Drops both ends while the pools are full and a write waits.
async fn full_then_dropped(mut a: Stream, b: Stream) -> Result<()> {
    let pattern = Pattern::new(41);
    let full = async { until(|| b.stats().chunks_received >= LEAK_DEPTH as u64).await };
    tokio::select! {
        written = pattern.write(&mut a, 0..1 << 30) => bail!("written: {written:?}"),
        () = full => Ok(()),
    }
}

async fn half_read_then_dropped(mut a: Stream, mut b: Stream) -> Result<()> {
    let pattern = Pattern::new(42);
    pattern.write(&mut a, 0..20_000).await?;
    a.shutdown().await?;
    pattern.read(&mut b, 0..10_000).await?;
    drop(b);
    ensure!(a.finish().await.is_err(), "finished without a confirmation");
    Ok(())
}

async fn stopped_then_dropped(mut a: Stream, mut b: Stream) -> Result<()> {
    b.stop();
    Pattern::new(43).write_on(&mut a).await?;
    a.abort("part of the test");
    ensure!(b.read_u8().await.is_err(), "aborted");
    Ok(())
}

async fn finished_on_one_side(mut a: Stream, mut b: Stream) -> Result<()> {
    a.write_all(b"all").await?;
    a.shutdown().await?;
    let mut all = Vec::new();
    b.read_to_end(&mut all).await?;
    drop(b);
    ensure!(a.read_u8().await.is_err(), "dropped");
    Ok(())
}
