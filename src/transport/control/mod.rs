//! The control connection of a stream, and the state of the stream.
//!
//! | file | what it has |
//! |---|---|
//! | [`state`] | the state of a stream, shared by its halves and tasks: what to send, what was received |
//! | [`task`] | the task that sends and receives the messages, and detects a dead peer |
//! | [`connection`] | the connection of a running stream, also used by a keepalive task on another runtime |
//! | [`data_watch`] | the watch that detects that the data path gets no further |
//! | [`message`] | the messages |
//! | [`noise`] | the Noise handshake, and the keys of a connection |
//! | [`terms`] | what each end brings to the handshake, and what follows from both |

pub(crate) mod connection;
pub(crate) mod data_watch;
pub(crate) mod message;
pub(crate) mod noise;
pub(crate) mod state;
pub(crate) mod task;
pub(crate) mod terms;

use std::time::Duration;

/// How long the last message may take to arrive. The connection is read to its end before it is
/// closed, since closing it with unread bytes sends a reset that would overtake the message.
pub(crate) const LINGER: Duration = Duration::from_secs(2);
