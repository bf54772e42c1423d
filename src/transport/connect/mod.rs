//! From a TCP socket to a stream, on either end: [`dial`] or [`listener`] opens a connection, [`handshake`]
//! authenticates both ends and agrees on what carries the data, and [`start`] makes the halves and starts the tasks.

mod acceptor;
mod admission;
pub(crate) mod connections;
pub(crate) mod dial;
pub(crate) mod handshake;
pub(crate) mod listener;
mod networks;
pub(crate) mod preamble;
mod start;

#[cfg(feature = "cli")]
pub(crate) use acceptor::{KeyAcceptor, KnownKeys};
pub use dial::{PeerAddress, ToPeerAddress, connect, connect_with};
pub use listener::{Incoming, Listener, ListenerStats, LiveStreams};
#[cfg(all(any(test, fuzzing), feature = "rdma"))]
pub(crate) use start::share_without_halves;
#[cfg(any(test, fuzzing))]
pub(crate) use start::share_without_tasks;
