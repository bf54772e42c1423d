//! The envelope between the controller and an agent, over ssh's stdin and stdout. Pure, no I/O.
//!
//! Each side begins with one line of text, [`greeting`], that every version can read: whatever comes
//! before it was printed by a shell profile. After it come frames: a length (u32, big-endian) and a
//! message in postcard's encoding. ssh protects them, so they carry the keys of the edges.
//!
//! The envelope brings edges up and ends the work. What the work itself has to say travels inside it as
//! an application's message ([`Payload`]), which the application's own module encodes and decodes.

pub(crate) mod frames;
pub(crate) mod greeting_scan;
mod order;
mod payload;
#[cfg(test)]
mod tests;

use std::net::IpAddr;

use serde::{Deserialize, Serialize, de::DeserializeOwned};

pub(crate) use self::{
    order::{EdgeDirection, EdgeId, EdgeOrder, Order, StreamOrder, TransportOrder, Work},
    payload::{MAX_PAYLOAD_BYTES, Payload, PayloadError},
};

/// The version of the envelope and of every application's messages. It changes with any of them.
pub(crate) const VERSION: u32 = 3;

/// The most bytes of one encoded message: a [`Payload`] of the largest size, and as much again as some
/// hundred edges of an order need.
pub(crate) const MAX_MESSAGE_BYTES: usize = MAX_PAYLOAD_BYTES + (64 << 10);

/// A message from the controller to an agent. The order of the variants is the wire format.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum ToAgent {
    /// The first message, sent once: the agent's work and its edges. The agent opens its listeners, and
    /// starts no work yet.
    Order(Box<Order>),
    /// Tells the agent to connect this edge: the other end listens at these addresses, the best first.
    Dial {
        /// Which edge.
        edge: EdgeId,
        /// Where the other end may be reached.
        addresses: Vec<String>,
        /// The port of the other end.
        port: u16,
    },
    /// Tells the agent to listen for this edge: the other end could not reach a listener itself.
    Listen {
        /// Which edge.
        edge: EdgeId,
    },
    /// Starts the work: every edge of every agent is connected.
    Go,
    /// Carries a message of the application.
    Application(Payload),
    /// Ends the work in failure: the agent kills what runs and keeps no output.
    Kill {
        /// What failed, for the peers on the edges and for the report.
        reason: String,
    },
    /// Shows that the controller is alive. The agent answers with [`FromAgent::Pong`].
    Ping,
}

/// A message from an agent to the controller. The order of the variants is the wire format.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum FromAgent {
    /// The first message, sent once.
    Hello(AgentHello),
    /// Tells that this end of an edge listens.
    Listening {
        /// Which edge.
        edge: EdgeId,
        /// The port that the agent listens on.
        port: u16,
    },
    /// Tells that none of the addresses to dial could be reached.
    Unreachable {
        /// Which edge.
        edge: EdgeId,
        /// Each address, and what happened there.
        tried: Vec<(String, String)>,
    },
    /// Tells that this end of an edge is connected.
    Connected {
        /// Which edge.
        edge: EdgeId,
        /// What carries the edge.
        link: EdgeLink,
    },
    /// Carries a message of the application.
    Application(Payload),
    /// Tells the user something that is no failure.
    Warning(String),
    /// The last message: nothing of the work runs any more.
    Report(AgentReport),
    /// Answers [`ToAgent::Ping`].
    Pong,
}

/// What an agent is, and where.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct AgentHello {
    /// The host's own name.
    pub(crate) host: String,
    /// The identity of the network stack: two agents have the same if and only if they can reach each
    /// other at 127.0.0.1.
    pub(crate) machine: String,
    /// Where the host may be reached, the likeliest first; no loopback and no link-local addresses.
    pub(crate) addresses: Vec<IpAddr>,
}

/// What carries an edge.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct EdgeLink {
    /// "rdma" or "tcp".
    pub(crate) transport: String,
    /// Device, port, GID type, MTU, or why it is TCP.
    pub(crate) reason: String,
    /// Whether there is RDMA hardware that does not work.
    pub(crate) is_fallback: bool,
    /// The address of the peer.
    pub(crate) address: String,
}

/// How the work of an agent ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct AgentReport {
    /// What broke, if anything did.
    pub(crate) fault: Option<WorkFault>,
    /// The application's own report; none if the order could not be carried out at all.
    pub(crate) result: Option<Payload>,
}

/// What broke, and how near to the first cause that is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct WorkFault {
    /// How near to the first cause.
    pub(crate) kind: FaultKind,
    /// One sentence, without the name of the agent's work.
    pub(crate) text: String,
}

/// How near a fault is to the first cause: the first variant is the nearest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) enum FaultKind {
    /// Something of this process's own failed: a file, the shell, a signal to the agent.
    Local,
    /// An edge broke by itself: network, corruption, a peer that died.
    Edge,
    /// The peer on an edge gave up and said why.
    PeerAborted,
    /// The controller ended the work, or is gone.
    Ordered,
}

/// Returns the line that each side begins with: `role` is "agent" or "controller".
pub(crate) fn greeting(role: &str) -> String {
    format!("\nrdpipe-{role} {VERSION} {}\n", env!("CARGO_PKG_VERSION"))
}

/// Returns what a line says about its writer, if it is a greeting: the protocol's version and the
/// program's.
pub(crate) fn parse_greeting<'a>(line: &'a str, role: &str) -> Option<(u32, &'a str)> {
    let rest = line.trim_end().strip_prefix("rdpipe-")?;
    let mut words = rest.strip_prefix(role)?.strip_prefix(' ')?.split(' ');
    let version = words.next()?.parse().ok()?;
    let program = words.next()?;
    words.next().is_none().then_some((version, program))
}

/// Encodes a message, without its length.
///
/// # Errors
///
/// When the message holds what the encoding cannot express. No message of ours does.
pub(crate) fn encode(message: &impl Envelope) -> Result<Vec<u8>, MessageError> {
    Ok(postcard::to_stdvec(message)?)
}

/// Decodes a message.
///
/// # Errors
///
/// When `bytes` are no message, when something follows it, or when it carries a [`Payload`] that is too
/// long.
pub(crate) fn decode<T: Envelope>(bytes: &[u8]) -> Result<T, MessageError> {
    let (message, rest) = postcard::take_from_bytes::<T>(bytes)?;
    if !rest.is_empty() {
        return Err(postcard::Error::DeserializeBadEncoding.into());
    }
    if let Some(payload) = message.payload() {
        payload.check()?;
    }
    Ok(message)
}

/// A message of the envelope: [`ToAgent`] or [`FromAgent`].
pub(crate) trait Envelope: Serialize + DeserializeOwned {
    /// Returns the application's message inside.
    fn payload(&self) -> Option<&Payload>;
}

impl Envelope for ToAgent {
    fn payload(&self) -> Option<&Payload> {
        match self {
            Self::Order(order) => {
                let Work::Stage(payload) = &order.work;
                Some(payload)
            }
            Self::Application(payload) => Some(payload),
            Self::Dial { .. } | Self::Listen { .. } | Self::Go | Self::Kill { .. } | Self::Ping => {
                None
            }
        }
    }
}

impl Envelope for FromAgent {
    fn payload(&self) -> Option<&Payload> {
        match self {
            Self::Application(payload) => Some(payload),
            Self::Report(report) => report.result.as_ref(),
            Self::Hello(_)
            | Self::Listening { .. }
            | Self::Unreachable { .. }
            | Self::Connected { .. }
            | Self::Warning(_)
            | Self::Pong => None,
        }
    }
}

/// Why bytes are no message of the envelope.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum MessageError {
    /// The bytes are not the encoding of a message.
    #[error("no message of this version")]
    Malformed(#[from] postcard::Error),
    /// The application's message inside is too long.
    #[error(transparent)]
    Payload(#[from] PayloadError),
}
