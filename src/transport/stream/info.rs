//! What a stream can be asked about.

use std::{net::SocketAddr, sync::Arc};

use super::transport::Transport;
use crate::{Direction, transport::control::state::State};

/// What was agreed on, and does not change.
pub(crate) struct StreamInfo {
    pub(crate) state: Arc<State>,
    pub(crate) peer_addr: SocketAddr,
    pub(crate) transport: Transport,
    pub(crate) reason: String,
    pub(crate) is_fallback: bool,
    pub(crate) direction: Direction,
    pub(crate) chunk_bytes: usize,
    pub(crate) depth: usize,
    pub(crate) smaller: Option<String>,
}

/// The stream_accessors that a stream and each of its halves answer, given `info(&self) -> &StreamInfo`.
macro_rules! stream_accessors {
    ($holder:ty) => {
        impl $holder {
            /// The name of the peer: its own for an acceptor, the one dialled for a dialer.
            #[must_use]
            pub fn peer(&self) -> &str {
                self.info().state.peer()
            }

            /// The peer's address, as the control connection sees it.
            #[must_use]
            pub fn peer_addr(&self) -> std::net::SocketAddr {
                self.info().peer_addr
            }

            /// What carries the data.
            #[must_use]
            pub fn transport(&self) -> $crate::Transport {
                self.info().transport
            }

            /// More about the [`transport`](Self::transport): with RDMA this end's device, port, GID
            /// and MTU, with TCP why it is not RDMA.
            #[must_use]
            pub fn transport_reason(&self) -> &str {
                &self.info().reason
            }

            /// Whether this host has RDMA and was free to use it, and the data goes over TCP all the
            /// same: worth a line to the user, with [`transport_reason`](Self::transport_reason).
            #[must_use]
            pub fn is_fallback(&self) -> bool {
                self.info().is_fallback
            }

            /// Which ways bytes travel, as this end sees it.
            #[must_use]
            pub fn direction(&self) -> $crate::Direction {
                self.info().direction
            }

            /// Payload of a chunk in bytes, as agreed.
            #[must_use]
            pub fn chunk_bytes(&self) -> usize {
                self.info().chunk_bytes
            }

            /// Slots of this end's pool: over TCP that which receives, over RDMA each.
            #[must_use]
            pub fn depth(&self) -> usize {
                self.info().depth
            }

            /// Why this end's pool is smaller than
            /// [`StreamConfig::rdma`](crate::StreamConfig::rdma) wanted, where it is: the memlock limit,
            /// or the most that one end pins. In words that follow [`chunk_bytes`](Self::chunk_bytes)
            /// and [`depth`](Self::depth).
            #[must_use]
            pub fn smaller_pool_reason(&self) -> Option<&str> {
                self.info().smaller.as_deref()
            }

            /// Counts so far, of both directions.
            #[must_use]
            pub fn stats(&self) -> $crate::Stats {
                self.info().state.stats()
            }

            /// Watches the stream from elsewhere.
            #[must_use]
            pub fn watch(&self) -> $crate::Watch {
                $crate::transport::stream::watch::Watch(std::sync::Arc::clone(&self.info().state))
            }

            /// Ends the stream in both directions because something broke. The peer's reads and
            /// writes fail with [`Error::PeerAborted`](crate::Error::PeerAborted), which carries
            /// `reason`; those of this end with [`Error::Aborted`](crate::Error::Aborted).
            pub fn abort(&mut self, reason: &str) {
                self.info()
                    .state
                    .fail($crate::transport::control::state::Failure::Aborted {
                        reason: reason.to_owned(),
                    });
            }
        }

        impl std::fmt::Debug for $holder {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.debug_struct(stringify!($holder))
                    .field("peer", &self.peer())
                    .field("transport", &self.transport())
                    .field("stats", &self.stats())
                    .finish_non_exhaustive()
            }
        }
    };
}

pub(crate) use stream_accessors;
