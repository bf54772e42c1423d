//! Two connected ends of a stream, over one kind of data path.

use anyhow::{Context, Result, ensure};
#[cfg(feature = "rdma")]
use rdpipe::RdmaConfig;
use rdpipe::{Key, Listener, Stream, StreamConfig, Transport, TransportPolicy, connect};

use super::proxy::{Act, Connection, Plan, Proxy, Towards};

/// A data path under test. A new data path needs an implementation of this trait, and a line `over!(...)` in
/// `stream/promises` and `stream/tokio_traits`.
pub(crate) trait Ends: 'static {
    /// Returns the reason why this data path cannot be tested on this machine, or `None` if it can.
    fn missing() -> Option<String> {
        None
    }

    /// Returns `config`, changed to allow this data path and no other.
    fn over(mut config: StreamConfig) -> StreamConfig {
        config.transport = TransportPolicy::Tcp;
        config
    }

    /// Returns a connected dialer and acceptor, each with its own configuration.
    fn pair(
        dialer: StreamConfig,
        acceptor: StreamConfig,
    ) -> impl Future<Output = Result<(Stream, Stream)>> + Send;
}

/// TCP over loopback.
pub(crate) struct Tcp;

impl Ends for Tcp {
    async fn pair(dialer: StreamConfig, acceptor: StreamConfig) -> Result<(Stream, Stream)> {
        let (listener, key) = listener(acceptor).await?;
        let port = listener.local_addr().port();
        let ends = meet(listener, port, &key, &Self::over(dialer)).await?;
        ensure!(ends.0.transport() == Transport::Tcp, "it was to be TCP");
        Ok(ends)
    }
}

/// TCP over loopback, with one flipped bit in the payload of the second chunk that the dialer sends.
pub(crate) struct Flipped;

impl Ends for Flipped {
    async fn pair(dialer: StreamConfig, acceptor: StreamConfig) -> Result<(Stream, Stream)> {
        let at = dialer.chunk_bytes as u64 * 3 / 2;
        let flip = Plan {
            connection: Connection::Data,
            towards: Towards::Acceptor,
            at,
            act: Act::Flip(3),
        };
        let (listener, key) = listener(acceptor).await?;
        let proxy = Proxy::start(listener.local_addr(), Some(flip));
        let ends = meet(listener, proxy.port(), &key, &Self::over(dialer)).await?;
        proxy.outlive_its_owner();
        Ok(ends)
    }
}

/// RDMA, with the control connection over loopback.
#[cfg(feature = "rdma")]
pub(crate) struct Rdma;

#[cfg(feature = "rdma")]
impl Ends for Rdma {
    fn missing() -> Option<String> {
        super::missing_rdma()
    }

    fn over(config: StreamConfig) -> StreamConfig {
        over_rdma(config, RdmaConfig::default().renew_after)
    }

    async fn pair(dialer: StreamConfig, acceptor: StreamConfig) -> Result<(Stream, Stream)> {
        pair_over_rdma(Self::over(dialer), Self::over(acceptor)).await
    }
}

/// RDMA with a renewal of the link after every few chunks.
#[cfg(feature = "rdma")]
pub(crate) struct Renewed;

#[cfg(feature = "rdma")]
impl Ends for Renewed {
    fn missing() -> Option<String> {
        Rdma::missing()
    }

    fn over(config: StreamConfig) -> StreamConfig {
        over_rdma(config, 7)
    }

    async fn pair(dialer: StreamConfig, acceptor: StreamConfig) -> Result<(Stream, Stream)> {
        pair_over_rdma(Self::over(dialer), Self::over(acceptor)).await
    }
}

#[cfg(feature = "rdma")]
fn over_rdma(mut config: StreamConfig, renew_after: u64) -> StreamConfig {
    // A test that sets the size and number of chunks means those of the data path under test.
    (config.rdma.chunk_bytes, config.rdma.depth) = (config.chunk_bytes, config.depth);
    config.rdma.renew_after = renew_after;
    config.transport = TransportPolicy::Rdma;
    config
}

#[cfg(feature = "rdma")]
async fn pair_over_rdma(dialer: StreamConfig, acceptor: StreamConfig) -> Result<(Stream, Stream)> {
    let (listener, key) = listener(acceptor).await?;
    let port = listener.local_addr().port();
    let ends = meet(listener, port, &key, &dialer).await?;
    ensure!(ends.0.transport() == Transport::Rdma, "it was to be RDMA");
    Ok(ends)
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
    let (dialed, accepted) =
        tokio::join!(connect(("127.0.0.1", port), key, config), listener.accept());
    Ok((
        dialed.context("the dialer")?,
        accepted.context("the acceptor")?,
    ))
}
