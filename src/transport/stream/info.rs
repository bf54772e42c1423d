//! What was agreed on for a stream, what it has counted, and the methods of the public types that report both.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use serde::{Deserialize, Serialize};

use crate::{
    Direction, Error,
    key::KeyId,
    transport::control::{seal::Cipher, state::State},
};

/// What was agreed on for a stream. It does not change.
pub(crate) struct StreamInfo {
    pub(crate) state: Arc<State>,
    /// The addresses of this end and of the peer on the control connection.
    pub(crate) local_addr: SocketAddr,
    pub(crate) peer_addr: SocketAddr,
    /// The id of the key that both ends have.
    pub(crate) key_id: KeyId,
    /// What carries the data.
    pub(crate) transport: Transport,
    /// The name of the RDMA link, or the reason for TCP.
    pub(crate) reason: String,
    /// True if TCP is a fallback.
    pub(crate) is_fallback: bool,
    pub(crate) cipher: Option<Cipher>,
    /// The direction, as this end sees it.
    pub(crate) direction: Direction,
    /// The payload of a chunk, in bytes.
    pub(crate) chunk_bytes: usize,
    /// The number of slots of this end's pool.
    pub(crate) depth: usize,
    pub(crate) rails: usize,
    pub(crate) smaller_pool_reason: Option<String>,
}

/// The methods that a stream and its halves have in common, for a type with `info(&self) -> &StreamInfo`.
macro_rules! stream_accessors {
    ($holder:ty) => {
        impl $holder {
            /// Returns the name of the peer: for a dialer the name that it dialed, for an acceptor the name of the
            /// peer's host.
            #[must_use]
            pub fn peer(&self) -> &str {
                self.info().state.peer()
            }

            /// Returns the address of this end on the control connection.
            #[must_use]
            pub fn local_addr(&self) -> std::net::SocketAddr {
                self.info().local_addr
            }

            /// Returns the id of the key that both ends have: at a listener with many keys, whose stream it is.
            #[must_use]
            pub fn key_id(&self) -> $crate::KeyId {
                self.info().key_id
            }

            /// Returns the address of the peer on the control connection.
            #[must_use]
            pub fn peer_addr(&self) -> std::net::SocketAddr {
                self.info().peer_addr
            }

            /// Returns what carries the data.
            #[must_use]
            pub fn transport(&self) -> $crate::Transport {
                self.info().transport
            }

            /// Returns details of the [`transport`](Self::transport): for RDMA this end's device, port, GID and MTU,
            /// for TCP the reason why it is not RDMA.
            #[must_use]
            pub fn transport_reason(&self) -> &str {
                &self.info().reason
            }

            /// Returns true if this host has RDMA and its policy allows it, and the data goes over TCP all the same. A
            /// program should report this, with [`transport_reason`](Self::transport_reason).
            #[must_use]
            pub fn is_fallback(&self) -> bool {
                self.info().is_fallback
            }

            /// Returns the cipher of the data; none if the data is not encrypted: see
            /// [`Encryption`](crate::Encryption).
            #[must_use]
            pub fn cipher(&self) -> Option<$crate::Cipher> {
                self.info().cipher
            }

            /// Returns the direction of the stream, as this end sees it.
            #[must_use]
            pub fn direction(&self) -> $crate::Direction {
                self.info().direction
            }

            /// Returns the agreed payload of a chunk, in bytes.
            #[must_use]
            pub fn chunk_bytes(&self) -> usize {
                self.info().chunk_bytes
            }

            /// Returns the number of slots of this end's pool: over TCP of the receive pool, over RDMA of each pool.
            #[must_use]
            pub fn depth(&self) -> usize {
                self.info().depth
            }

            /// Returns the number of rails: see [`Builder::rails`](crate::Builder::rails).
            #[must_use]
            pub fn rails(&self) -> usize {
                self.info().rails
            }

            /// Returns the reason why this end's pool is smaller than [`StreamConfig::rdma`](crate::StreamConfig::rdma)
            /// requested, if it is: the memlock limit, or the most that one end pins. The text follows
            /// [`chunk_bytes`](Self::chunk_bytes) and [`depth`](Self::depth) in a message.
            #[must_use]
            pub fn smaller_pool_reason(&self) -> Option<&str> {
                self.info().smaller_pool_reason.as_deref()
            }

            /// Returns the counts of both directions so far.
            #[must_use]
            pub fn stats(&self) -> $crate::Stats {
                self.info().state.stats()
            }

            /// Returns a view of the stream that can be used while its halves are in use.
            #[must_use]
            pub fn watch(&self) -> $crate::Watch {
                $crate::transport::stream::info::Watch(std::sync::Arc::clone(&self.info().state))
            }

            /// Ends the stream in both directions as a failure. The peer's reads and writes fail with
            /// [`Error::PeerAborted`](crate::Error::PeerAborted), which carries `reason`; those of this end with
            /// [`Error::Aborted`](crate::Error::Aborted).
            pub fn abort(&mut self, reason: &str) {
                self.info()
                    .state
                    .fail($crate::transport::control::state::StreamFault::Aborted {
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

/// The transport that carries the data of a stream. Reports of the programs name it in lower case.
///
/// The messages of agents carry the number of the variant: a change of their order is a change of their wire format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Transport {
    /// A TCP connection beside the control connection.
    Tcp,
    /// A queue pair: the RDMA device of each end writes into the memory of the other.
    Rdma,
}

impl std::fmt::Display for Transport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Tcp => f.write_str("TCP"),
            Self::Rdma => f.write_str("RDMA"),
        }
    }
}

/// The counts of one end of a stream at one moment. All counts start at 0 when the stream is connected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Stats {
    /// The number of payload bytes given to the data path.
    pub bytes_sent: u64,
    /// The number of payload bytes that arrived and were verified.
    pub bytes_received: u64,
    /// The number of chunks given to the data path.
    pub chunks_sent: u64,
    /// The number of chunks that arrived and were verified.
    pub chunks_received: u64,
    /// The number of chunks that this end's RDMA device completed without an event, at most: they were found by a
    /// timer, some milliseconds later. A chunk that arrives just then is counted too.
    pub late_completions: u64,
    /// The time since the stream was connected.
    pub elapsed: Duration,
}

/// A view of a stream, for use while its halves are in use elsewhere.
#[derive(Clone)]
pub struct Watch(pub(super) Arc<State>);

impl Watch {
    /// Waits until the stream has failed or the peer has stopped reading, and returns the error.
    ///
    /// # Cancel safety
    ///
    /// Safe: a repeated call continues to wait.
    pub async fn interrupted(&self) -> Error {
        self.0.interrupted().await;
        let cause = if self.0.sends() {
            self.0.send_error()
        } else {
            self.0.receive_error()
        };
        cause.unwrap_or(Error::Misuse("interrupted without a cause"))
    }

    /// Returns the error that ended the stream, if it ended with one.
    ///
    /// While the writer is in use, this includes [`Error::Stopped`], with which its writes fail. It is no error any
    /// more when the writer is dropped and the peer had taken every byte.
    #[must_use]
    pub fn error(&self) -> Option<Error> {
        self.0.end_error()
    }

    /// Returns the counts of both directions so far.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.0.stats()
    }

    /// Waits until the connection is closed: some time after the stream was dropped, if the peer does not close it.
    ///
    /// # Cancel safety
    ///
    /// Safe: a repeated call continues to wait.
    #[cfg(feature = "cli")]
    pub(crate) async fn closed(&self) {
        self.0.ended.cancelled().await;
    }
}
