//! The data paths under test.

use anyhow::{Result, ensure};
use rdpipe::{Stream, StreamConfig, Transport, TransportPolicy};

use super::{
    ends::{listener, meet},
    proxy::{Act, Connection, Plan, Proxy, Towards},
};

/// A data path under test. It is a value, not a type, so that each promise is compiled once. A new data path needs a
/// line `over!(...)` in `stream/promises` and `stream/tokio_traits`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum DataPath {
    /// TCP over loopback.
    Tcp,
    /// TCP over loopback, with one flipped bit in the payload of the second chunk that the dialer sends.
    FlippedTcp,
    /// RDMA with an express path, as by default, and the control connection over loopback.
    Rdma,
    /// RDMA without an express path, and with a renewal of the link after every few chunks.
    RenewedRdma,
    /// RDMA with an express path, and renewals.
    ExpressRdma,
    /// RDMA with an express path for two small frames at a time, and renewals.
    NarrowExpressRdma,
    /// RDMA whose express paths fail one after the other.
    FailingExpress,
    /// RDMA with an express path, whose links fail one after the other.
    FailingLinks,
}

impl DataPath {
    /// Returns the reason why this data path cannot be tested in this run, or `None` if it can.
    pub(crate) fn missing(self) -> Option<String> {
        match self {
            Self::Tcp | Self::FlippedTcp => None,
            Self::Rdma | Self::RenewedRdma => super::missing_rdma(),
            // Each of them takes minutes.
            _ if !super::is_full() => Some("only with scripts/test --full".to_owned()),
            _ => super::missing_rdma(),
        }
    }

    /// Returns `config`, changed to allow this data path and no other.
    pub(crate) fn config(self, mut config: StreamConfig) -> StreamConfig {
        config.transport = self.policy();
        #[cfg(feature = "rdma")]
        if config.transport == TransportPolicy::Rdma {
            // A test that sets the size and number of chunks means those of the data path under test.
            (config.rdma.chunk_bytes, config.rdma.depth) = (config.chunk_bytes, config.depth);
            config.rdma.renew_after = match self {
                Self::RenewedRdma | Self::ExpressRdma | Self::NarrowExpressRdma => 7,
                _ => config.rdma.renew_after,
            };
            config.rdma.small_frames = match self {
                Self::ExpressRdma | Self::FailingExpress | Self::FailingLinks => 32,
                Self::NarrowExpressRdma => 2,
                Self::RenewedRdma => 0,
                _ => config.rdma.small_frames,
            };
        }
        #[cfg(all(feature = "rdma", feature = "fault-injection"))]
        match self {
            Self::FailingExpress => config.faults.lose_express_at = 5,
            Self::FailingLinks => config.faults.lose_link_at = 6,
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
        Ok(ends)
    }

    fn policy(self) -> TransportPolicy {
        match self {
            Self::Tcp | Self::FlippedTcp => TransportPolicy::Tcp,
            _ => TransportPolicy::Rdma,
        }
    }
}
