//! What web frameworks ask of a listener and its streams, so that no program needs a newtype: `axum::serve(listener,
//! app)`, and of tonic `Server::serve_with_incoming(listener.incoming())`.

use std::net::SocketAddr;

#[cfg(feature = "axum")]
use crate::Listener;
use crate::{KeyId, Stream, Transport};

/// Whose request it is, for the handlers of axum (`ConnectInfo<PeerInfo>`) and tonic (`request.extensions()`).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct PeerInfo {
    /// The name of the peer's host, as the peer gives it.
    pub peer: String,
    /// The address of the peer on the control connection.
    pub peer_addr: SocketAddr,
    /// The id of the peer's key.
    pub key_id: KeyId,
    /// What carries the data.
    pub transport: Transport,
}

impl From<&Stream> for PeerInfo {
    fn from(stream: &Stream) -> Self {
        Self {
            peer: stream.peer().to_owned(),
            peer_addr: stream.peer_addr(),
            key_id: stream.key_id(),
            transport: stream.transport(),
        }
    }
}

#[cfg(feature = "axum")]
impl axum::serve::Listener for Listener {
    type Io = Stream;
    type Addr = SocketAddr;

    /// Accepts the next stream. Waits forever after the listener has ended, since axum expects no error: then
    /// [`live_streams`](Listener::live_streams) still go on.
    async fn accept(&mut self) -> (Stream, SocketAddr) {
        match Listener::accept(self).await {
            Ok(stream) => {
                let peer = stream.peer_addr();
                (stream, peer)
            }
            Err(error) => {
                tracing::error!(%error, "no more streams arrive");
                std::future::pending().await
            }
        }
    }

    fn local_addr(&self) -> std::io::Result<SocketAddr> {
        Ok(Listener::local_addr(self))
    }
}

#[cfg(feature = "axum")]
impl axum::extract::connect_info::Connected<axum::serve::IncomingStream<'_, Listener>>
    for PeerInfo
{
    fn connect_info(stream: axum::serve::IncomingStream<'_, Listener>) -> Self {
        stream.io().into()
    }
}

#[cfg(feature = "tonic")]
impl tonic::transport::server::Connected for Stream {
    type ConnectInfo = PeerInfo;

    fn connect_info(&self) -> PeerInfo {
        self.into()
    }
}
