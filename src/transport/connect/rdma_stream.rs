//! Dialing and accepting [`RdmaStream`], a stream that is RDMA or an error.

use super::{dial::connect, listener::Listener};
use crate::{Error, Key, RdmaStream, StreamConfig, TransportPolicy};

impl RdmaStream {
    /// Connects to the acceptor at `host` and `port`, as [`connect`] does, whatever
    /// [`StreamConfig::transport`] says: RDMA or an error.
    ///
    /// # Errors
    ///
    /// [`Error::Device`] when this host has no RDMA that can be used;
    /// [`Refused`](crate::HandshakeFault::Refused) or [`Transport`](crate::HandshakeFault::Transport) in an [`Error::Handshake`] when the
    /// peer has none, no network joins the two, or nothing crossed it, depending on which end found
    /// out first; otherwise those of [`connect`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future closes what it had opened; the acceptor goes on listening.
    pub async fn connect(
        host: &str,
        port: u16,
        key: &Key,
        config: &StreamConfig,
    ) -> Result<Self, Error> {
        let mut config = config.clone();
        config.transport = TransportPolicy::Rdma;
        Ok(connect(host, port, key, &config).await?.try_into()?)
    }

    /// Accepts the next stream of `listener`, if its data goes over RDMA.
    ///
    /// Bind the listener with [`TransportPolicy::Rdma`]: then a peer without RDMA is refused in the
    /// handshake. With another policy it gets its stream first, and then an abort with the reason.
    ///
    /// # Errors
    ///
    /// Those of [`Listener::accept`], [`Transport`](crate::HandshakeFault::Transport) in an [`Error::Handshake`] among
    /// them, where the stream could not be RDMA. The listener goes on.
    ///
    /// # Cancel safety
    ///
    /// Safe: a stream that was not returned is returned by the next call.
    pub async fn accept(listener: &mut Listener) -> Result<Self, Error> {
        Ok(listener.accept().await?.try_into()?)
    }
}
