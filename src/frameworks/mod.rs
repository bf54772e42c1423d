//! What web frameworks ask of a listener and its streams, so that no program needs a newtype.
//!
//! | file | what it has |
//! |---|---|
//! | `axum` | `axum::serve(listener, app)` |
//! | `tonic` | `Server::serve_with_incoming(listener.incoming())` |

#[cfg(feature = "axum")]
mod axum;
#[cfg(feature = "tonic")]
mod tonic;

use std::net::SocketAddr;

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
