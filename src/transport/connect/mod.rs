//! From a TCP socket to a stream, on either end.
//!
//! | file | what it does, in the order of a connection |
//! |---|---|
//! | [`dial`] | resolves the host, connects, and tries again while the acceptor is not there yet |
//! | [`peer_address`] | the host and port that a program gives |
//! | [`listener`] | accepts connections, and drops those that do not prove that they have the key |
//! | [`admission`] | which connections a listener keeps before they are streams |
//! | [`preamble`] | the first eight bytes of every connection |
//! | [`handshake`] | makes a fresh connection the authenticated control connection |
//! | [`negotiate`] | agrees on what carries the data: a queue pair, or a second TCP connection |
//! | [`start`] | makes the halves and starts the tasks of the stream |
//! | `rdma_stream` | the same entry points for [`RdmaStream`](crate::RdmaStream) |

mod admission;
pub(crate) mod dial;
pub(crate) mod handshake;
pub(crate) mod listener;
mod negotiate;
pub(crate) mod peer_address;
pub(crate) mod preamble;
#[cfg(feature = "rdma")]
mod rdma_stream;
mod start;

pub use dial::{connect, connect_with};
#[cfg(feature = "cli")]
pub(crate) use listener::KeyAcceptor;
pub use listener::{Incoming, Listener, ListenerStats, LiveStreams};
pub use peer_address::{PeerAddress, ToPeerAddress};
#[cfg(all(fuzzing, feature = "rdma"))]
pub(crate) use start::share_without_lanes;
#[cfg(fuzzing)]
pub(crate) use start::share_without_tasks;
