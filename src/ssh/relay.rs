//! The messages for edges that go through ssh. Pure, no I/O.
//!
//! Where no TCP connection works between two hosts, in either direction, the controller opens one more session with
//! each of them. The agent at the end of such a session is a *relay*: at the host that dials it listens on a port of
//! 127.0.0.1, and at the host that listens it connects to the port of the edge. The controller joins the two sessions,
//! so the two agents of the edge make their stream over connections to 127.0.0.1, as encrypted and authenticated as any
//! other.
//!
//! A relay begins as every agent: greeting, [`AgentHello`](super::protocol::AgentHello), order. It answers its order,
//! [`RelayOrder`], with [`FromAgent::Listening`](super::protocol::FromAgent::Listening). What follows in both directions
//! are the frames of the two relays, which the controller passes on unread.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Whether edges go through ssh.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum ViaSsh {
    /// Every edge between two hosts does.
    Always,
    /// An edge does whose hosts cannot connect to each other.
    #[default]
    Auto,
    /// No edge does.
    Never,
}

/// What a relay does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RelayOrder {
    /// The port of 127.0.0.1 to which the relay connects. Without one the relay listens there.
    pub(crate) connect: Option<u16>,
    /// The silence after which the other relay counts as lost.
    pub(crate) timeout: Duration,
}
