//! The control connection of a stream, and the [`state`] that its halves and tasks share.

pub(crate) mod connection;
pub(crate) mod data_watch;
pub(crate) mod message;
pub(crate) mod network_watch;
pub(crate) mod noise;
mod primitives;
mod reserve;
pub(crate) mod seal;
pub(crate) mod state;

use std::time::Duration;

/// How long the last message may take to arrive. The connection is read to its end before it is
/// closed, since closing it with unread bytes sends a reset that would overtake the message.
pub(crate) const LINGER: Duration = Duration::from_secs(2);
