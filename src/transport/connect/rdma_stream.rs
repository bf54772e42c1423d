//! Dials and accepts [`RdmaStream`]s: streams that use RDMA, or fail to connect.

use super::{dial::connect, listener::Listener, peer_address::ToPeerAddress};
use crate::{Error, Key, RdmaStream, StreamConfig, TransportPolicy};

impl RdmaStream {
    /// Connects to the acceptor at `peer` over RDMA, as [`connect`] does. Ignores
    /// [`StreamConfig::transport`].
    ///
    /// # Errors
    ///
    /// - [`Error::Device`] if this host has no usable RDMA.
    /// - [`Refused`](crate::HandshakeFault::Refused) or [`Transport`](crate::HandshakeFault::Transport) in an
    ///   [`Error::Handshake`], if the peer has no usable RDMA, if no RDMA network joins the two hosts, or if no message
    ///   crossed it. Which of the two it is depends on the end that detects the failure first.
    /// - Otherwise the errors of [`connect`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future closes what it had opened. The acceptor continues to listen.
    pub async fn connect(
        peer: impl ToPeerAddress,
        key: &Key,
        config: &StreamConfig,
    ) -> Result<Self, Error> {
        let mut config = config.clone();
        config.transport = TransportPolicy::Rdma;
        Ok(connect(peer, key, &config).await?.try_into()?)
    }

    /// Accepts the next stream of `listener`, if its data goes over RDMA.
    ///
    /// Bind the listener with [`TransportPolicy::Rdma`]: then a peer without RDMA is refused in the
    /// handshake. With another policy such a peer first gets its stream, and then an abort with the reason.
    ///
    /// # Errors
    ///
    /// Those of [`Listener::accept`], and [`Transport`](crate::HandshakeFault::Transport) in an [`Error::Handshake`] if
    /// the stream cannot use RDMA. The listener continues.
    ///
    /// # Cancel safety
    ///
    /// Safe: a stream that was not returned is returned by the next call.
    pub async fn accept(listener: &Listener) -> Result<Self, Error> {
        Ok(listener.accept().await?.try_into()?)
    }
}
