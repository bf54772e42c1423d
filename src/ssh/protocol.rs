//! The envelope between the controller and an agent, over ssh's stdin and stdout, and the order in it. Pure, no I/O.
//!
//! Each side begins with one line of text, [`greeting`], that every version can read. Bytes before it come from a shell
//! profile. After the greeting each side sends [`frames`](super::frames): a length (u32, big-endian), a message in
//! postcard's encoding, and a newline, so that a program between the two ends may pass on whole lines only. ssh
//! protects the frames, so they carry the keys of the edges.
//!
//! The envelope connects the edges, starts the work and ends it. The messages of the work itself travel inside the
//! envelope as a [`Payload`], which the application's own module encodes and decodes.

use std::{net::IpAddr, time::Duration};

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use zeroize::{Zeroize, Zeroizing};

use crate::{Cipher, Direction, Transport, options::StreamOptions};

/// The version of the protocol. It changes with every change to the envelope or to an application's messages.
pub(crate) const VERSION: u32 = 16;

/// The version in words: `rdpipe --agent=16` exits with 0 if it speaks this version, and with another status if not.
pub(crate) const VERSION_TEXT: &str = "16";

const _: () = assert!(matches!(u32::from_str_radix(VERSION_TEXT, 10), Ok(VERSION)));

/// The most bytes of one encoded message: a [`Payload`] of the largest size, and 64 KiB for the rest, which is
/// enough for an order with some hundred edges.
pub(crate) const MAX_MESSAGE_BYTES: usize = MAX_PAYLOAD_BYTES + (64 << 10);

/// A message from the controller to an agent. The order of the variants is the wire format.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum ToAgent {
    /// The first message, sent once: the agent's work and its edges. The agent opens its listeners, and
    /// starts the work only at [`Go`](Self::Go).
    Order(Box<Order>),
    /// Tells the agent to connect this edge: the other end listens at these addresses, the best first.
    Dial {
        edge: EdgeId,
        /// Where the other end may be reached.
        addresses: Vec<String>,
        /// The port of the other end.
        port: u16,
        /// True if the connections go through ssh: they have one rail, and do not try RDMA by themselves.
        is_relayed: bool,
    },
    /// Tells the agent to listen for this edge: its attempt to dial the other end has failed.
    Listen { edge: EdgeId },
    /// Starts the work: every edge of every agent is connected.
    Go,
    /// Carries a message of the application.
    Application(Payload),
    /// Ends the work as failed: the agent kills its processes and keeps no output file.
    Kill {
        /// What failed, for the peers on the edges and for the report.
        reason: String,
    },
    /// Shows that the controller is alive. The agent answers with [`FromAgent::Pong`].
    Ping,
    /// Tells the agent that this edge is not connected: the host at its other end uses fewer.
    LeaveOut { edge: EdgeId },
}

/// A message from an agent to the controller. The order of the variants is the wire format.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum FromAgent {
    /// The first message, sent once: the host and its addresses.
    Hello(AgentHello),
    /// Reports that this end of an edge listens.
    Listening {
        edge: EdgeId,
        /// The port that the agent listens on.
        port: u16,
    },
    /// Reports that the peer was found at none of the addresses to dial.
    Unreachable {
        edge: EdgeId,
        /// Each address, and how the attempt to connect to it failed.
        tried: Vec<(String, String)>,
    },
    /// Reports that this end of an edge is connected.
    Connected { edge: EdgeId, link: EdgeLink },
    /// Carries a message of the application.
    Application(Payload),
    /// Carries a text for the user that is not a failure.
    Warning(String),
    /// The last message: all of the work has ended.
    Report(AgentReport),
    /// Answers [`ToAgent::Ping`].
    Pong,
}

/// The host of an agent: its name and its addresses.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct AgentHello {
    /// The name that the host has for itself.
    pub(crate) host: String,
    /// The identity of the network stack: two agents have the same one if and only if they can reach each
    /// other at 127.0.0.1.
    pub(crate) machine: String,
    /// The addresses at which the host may be reached, the likeliest first; no loopback and no link-local addresses.
    pub(crate) addresses: Vec<IpAddr>,
    /// The number of streams that one run may use where the user gives none: see [`host::streams`](crate::host::streams).
    pub(crate) streams: u16,
    /// The most streams for data that a server allows for one run; `None` is any number.
    pub(crate) most_streams: Option<u16>,
}

/// What carries an edge.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct EdgeLink {
    /// What carries the data.
    pub(crate) transport: Transport,
    /// For RDMA the device, the port, the GID type and the MTU; for TCP the reason why it is not RDMA.
    pub(crate) reason: String,
    /// True if this host has RDMA and its policy allows it, and the edge uses TCP all the same.
    pub(crate) is_fallback: bool,
    /// The cipher of the data; none if the data is not encrypted.
    pub(crate) cipher: Option<Cipher>,
    pub(crate) rails: u16,
    pub(crate) address: String,
}

/// How the work of an agent ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct AgentReport {
    /// What broke, if anything did.
    pub(crate) fault: Option<WorkFault>,
    /// The application's own report; none if the order was invalid.
    pub(crate) result: Option<Payload>,
}

/// A fault that ended the work of an agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct WorkFault {
    /// How near the fault is to the first cause.
    pub(crate) kind: FaultKind,
    /// One sentence, without the name of the agent's work.
    pub(crate) text: String,
}

/// How near a fault is to the first cause. The variants are in order, the nearest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) enum FaultKind {
    /// The process itself failed: at a file, at the shell, or by a signal to the agent.
    Local,
    /// An edge broke: by the network, by corruption, or because the peer died.
    Edge,
    /// The peer on an edge gave up and sent the reason.
    PeerAborted,
    /// The controller ended the work, or the session with the controller was lost.
    Ordered,
}

/// Returns the line that each side begins with: `role` is "agent" or "controller".
pub(crate) fn greeting(role: &str) -> String {
    format!("\nrdpipe-{role} {VERSION} {}\n", env!("CARGO_PKG_VERSION"))
}

/// Parses a greeting. Returns the version of the protocol and of the program that wrote it, or none if the line is
/// not a greeting of `role`.
pub(crate) fn parse_greeting<'a>(line: &'a str, role: &str) -> Option<(u32, &'a str)> {
    let rest = line.trim_end().strip_prefix("rdpipe-")?;
    let mut words = rest.strip_prefix(role)?.strip_prefix(' ')?.split(' ');
    let version = words.next()?.parse().ok()?;
    let program = words.next()?;
    words.next().is_none().then_some((version, program))
}

/// Encodes a message, without the length of its frame. The encoding is wiped from memory when dropped, because an order
/// holds keys.
/// Fails with [`MessageError::Malformed`] if the encoding cannot express the message. No message of ours has such
/// content.
pub(crate) fn encode(message: &impl Envelope) -> Result<Zeroizing<Vec<u8>>, MessageError> {
    // The buffer has its full length from the start: growing it would leave copies of the keys in memory.
    let length = postcard::experimental::serialized_size(message)?;
    let mut bytes = Zeroizing::new(vec![0; length]);
    postcard::to_slice(message, &mut bytes)?;
    Ok(bytes)
}

/// Decodes a message.
/// Fails with [`MessageError::Malformed`] if `bytes` are not exactly one message; [`MessageError::Payload`] if its
/// [`Payload`] is too long.
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
    /// Returns the application's message inside this message, if it carries one.
    fn payload(&self) -> Option<&Payload>;
}

impl Envelope for ToAgent {
    fn payload(&self) -> Option<&Payload> {
        match self {
            Self::Order(order) => Some(order.work.payload()),
            Self::Application(payload) => Some(payload),
            Self::Dial { .. }
            | Self::Listen { .. }
            | Self::Go
            | Self::Kill { .. }
            | Self::Ping
            | Self::LeaveOut { .. } => None,
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

/// The reason why bytes are not a message of the envelope.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum MessageError {
    /// The bytes are not the encoding of a message.
    #[error("not a message of this version")]
    Malformed(#[from] postcard::Error),
    /// The application's message inside the envelope is too long.
    #[error(transparent)]
    Payload(#[from] PayloadError),
}

/// The most bytes of an application's message: the longest command that Linux accepts as an argument (128 KiB),
/// and as much again for the rest.
pub(crate) const MAX_PAYLOAD_BYTES: usize = 256 << 10;

/// An application's message in its encoded form: opaque to the envelope, at most [`MAX_PAYLOAD_BYTES`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Payload(#[serde(with = "serde_bytes")] Vec<u8>);

/// The reason why an application's message could not be encoded or decoded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum PayloadError {
    /// The message is longer than [`MAX_PAYLOAD_BYTES`].
    #[error(
        "an application's message has {bytes} bytes, more than the limit of {MAX_PAYLOAD_BYTES}"
    )]
    TooLong {
        /// The length of the message.
        bytes: usize,
    },
    /// The bytes are not the encoding of the application's message.
    #[error("not a message of this application")]
    Malformed(#[from] postcard::Error),
}

impl Payload {
    /// Encodes an application's message.
    /// Fails with [`PayloadError::TooLong`] when the encoding is longer than [`MAX_PAYLOAD_BYTES`].
    pub(crate) fn encode(message: &impl Serialize) -> Result<Self, PayloadError> {
        let payload = Self(postcard::to_stdvec(message)?);
        payload.check()?;
        Ok(payload)
    }

    /// Decodes the application's message.
    /// Fails with [`PayloadError::Malformed`] if the bytes are not exactly one `T`.
    pub(crate) fn decode<T: DeserializeOwned>(&self) -> Result<T, PayloadError> {
        match postcard::take_from_bytes(&self.0)? {
            (message, []) => Ok(message),
            _ => Err(postcard::Error::DeserializeBadEncoding.into()),
        }
    }

    /// Returns the number of encoded bytes.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Checks the length of a payload that came from a peer.
    fn check(&self) -> Result<(), PayloadError> {
        let bytes = self.0.len();
        if bytes > MAX_PAYLOAD_BYTES {
            return Err(PayloadError::TooLong { bytes });
        }
        Ok(())
    }
}

/// One piece of work for one agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Order {
    /// How messages name this work to the peers on its edges: "stage 2 (fs2)".
    pub(crate) name: String,
    /// What the agent does.
    pub(crate) work: Work,
    /// The edges that the work uses: any number, all with different ids.
    pub(crate) edges: Vec<EdgeOrder>,
    /// How the stream of every edge is set up.
    pub(crate) stream: StreamOptions,
    /// The first and the last port to listen on; none is any port.
    pub(crate) ports: Option<(u16, u16)>,
}

/// Which application an order is for, and the application's own part of the order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Work {
    /// A stage of a pipeline, or the files that rdcat reads: a [`StageOrder`](crate::ssh::stage::StageOrder).
    Stage(Payload),
    /// One side of a copy of files: a `CopyOrder` of rdcp.
    Copy(Payload),
    /// The measurements of one host: a `PerfOrder` of rdperf. It has no edges: each measurement makes its own streams.
    Measure(Payload),
    /// The far end of a tunnel: a `ForwardOrder` of rdforward. It has one edge, to the controller.
    Forward(Payload),
    /// One end of an edge of other agents, which goes through ssh: a [`RelayOrder`]. The
    /// agent answers with [`FromAgent::Listening`], and then the session carries the frames of a relay.
    Relay(Payload),
}

impl Work {
    /// Returns the application's part of the order.
    pub(crate) fn payload(&self) -> &Payload {
        match self {
            Self::Stage(payload)
            | Self::Copy(payload)
            | Self::Measure(payload)
            | Self::Forward(payload)
            | Self::Relay(payload) => payload,
        }
    }
}

/// The name of an edge. All agents of one run use the same id for the same edge.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct EdgeId(pub(crate) u32);

impl EdgeId {
    /// Returns the id of the edge at this index in a list of all edges.
    pub(crate) fn of_index(index: usize) -> Self {
        Self(u32::try_from(index).unwrap_or(u32::MAX))
    }

    /// Returns the index of the edge in a list of all edges.
    pub(crate) fn index(self) -> usize {
        usize::try_from(self.0).unwrap_or(usize::MAX)
    }
}

impl std::fmt::Display for EdgeId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// One end of an edge.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct EdgeOrder {
    /// The id that all messages about the edge use.
    pub(crate) id: EdgeId,
    /// The directions in which bytes travel, seen from this end.
    pub(crate) direction: Direction,
    /// The name of the other end in messages: "stage 1 (fs1)", "rdpipe", "rdcat".
    pub(crate) peer: String,
    /// The text of the key that only the two ends of this edge have.
    pub(crate) key: String,
    /// True if this end listens from the start. Otherwise it waits for [`ToAgent::Dial`].
    pub(crate) listens: bool,
}

impl Drop for EdgeOrder {
    fn drop(&mut self) {
        self.key.zeroize();
    }
}

impl std::fmt::Debug for EdgeOrder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EdgeOrder")
            .field("id", &self.id)
            .field("direction", &self.direction)
            .field("peer", &self.peer)
            .field("listens", &self.listens)
            .finish_non_exhaustive()
    }
}

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

/// What a *relay* does: the agent at one end of an edge that goes through ssh, because no TCP connection works between
/// its two hosts, in either direction.
///
/// The controller opens one more session with each of them. At the host that dials the edge, the relay listens on a
/// port of 127.0.0.1, and at the host that listens it connects to the port of the edge. The controller joins the two
/// sessions, so the two agents of the edge make their stream over connections to 127.0.0.1, as encrypted and
/// authenticated as any other. A relay answers its order with [`FromAgent::Listening`]. What follows in both directions
/// are the frames of the two relays, which the controller passes on unread.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RelayOrder {
    /// The port of 127.0.0.1 to which the relay connects. Without one the relay listens there.
    pub(crate) connect: Option<u16>,
    /// The silence after which the other relay counts as lost.
    pub(crate) timeout: Duration,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{Direction, options::StreamOptions};

    fn edge(id: u32, direction: Direction) -> EdgeOrder {
        EdgeOrder {
            id: EdgeId(id),
            direction,
            peer: format!("peer {id}"),
            key: format!("key {id}"),
            listens: id % 2 == 0,
        }
    }

    fn order(edges: Vec<EdgeOrder>, work: Payload) -> ToAgent {
        ToAgent::Order(Box::new(Order {
            name: "stage 2 (fs2)".to_owned(),
            work: Work::Stage(work),
            edges,
            stream: StreamOptions {
                chunk: Some(1 << 20),
                ..StreamOptions::default()
            },
            ports: Some((7000, 7010)),
        }))
    }

    /// Returns a payload of exactly so many bytes: a list, whose encoding begins with its length in three bytes.
    fn payload_of(bytes: usize) -> Result<Payload, PayloadError> {
        Payload::encode(&vec![7_u8; bytes - 3])
    }

    fn direction() -> impl Strategy<Value = Direction> {
        prop_oneof![
            Just(Direction::Send),
            Just(Direction::Receive),
            Just(Direction::Both),
        ]
    }

    #[test]
    fn an_order_can_have_any_number_of_edges() {
        for count in [0, 1, 2, 5, 100] {
            let directions = [Direction::Both, Direction::Send, Direction::Receive];
            let edges = (0..count).zip(directions.into_iter().cycle());
            let edges = edges.map(|(id, direction)| edge(id, direction)).collect();
            let order = order(edges, payload_of(MAX_PAYLOAD_BYTES).unwrap());
            let bytes = encode(&order).unwrap();
            assert!(bytes.len() <= MAX_MESSAGE_BYTES, "{count} edges");
            assert_eq!(decode(&bytes), Ok(order));
        }
    }

    #[test]
    fn an_applications_message_that_is_too_long_cannot_be_encoded() {
        assert!(payload_of(MAX_PAYLOAD_BYTES).is_ok());
        let bytes = MAX_PAYLOAD_BYTES + 1;
        let error = payload_of(bytes).unwrap_err();
        assert_eq!(error, PayloadError::TooLong { bytes });
        assert_eq!(
            error.to_string(),
            "an application's message has 262145 bytes, more than the limit of 262144"
        );
    }

    #[test]
    fn an_applications_message_that_is_too_long_cannot_be_decoded() {
        // The frames of a peer that exceeds the limit: one for each variant with a payload.
        let bytes = MAX_PAYLOAD_BYTES + 1;
        let long = vec![7_u8; bytes];
        let frames = [
            postcard::to_stdvec(&(4_u8, &long)).unwrap(),
            postcard::to_stdvec(&(6_u8, None::<u8>, Some(&long))).unwrap(),
        ];
        for frame in frames {
            let error = decode::<FromAgent>(&frame).unwrap_err();
            assert_eq!(error, PayloadError::TooLong { bytes }.into());
        }
        let frame = postcard::to_stdvec(&(4_u8, &long)).unwrap();
        let error = decode::<ToAgent>(&frame).unwrap_err();
        assert_eq!(error, PayloadError::TooLong { bytes }.into());
    }

    #[test]
    fn a_message_with_bytes_after_it_is_refused() {
        let mut bytes = encode(&ToAgent::Go).unwrap();
        bytes.push(0);
        assert!(matches!(
            decode::<ToAgent>(&bytes),
            Err(MessageError::Malformed(_))
        ));
        let payload = Payload::encode(&(1_u8, 2_u8)).unwrap();
        assert!(matches!(
            payload.decode::<u8>(),
            Err(PayloadError::Malformed(_))
        ));
    }

    #[test]
    fn keys_are_not_printed() {
        let text = format!("{:?}", edge(3, Direction::Both));
        assert!(
            text.contains("EdgeId(3)") && !text.contains("key 3"),
            "{text}"
        );
    }

    proptest! {
        #[test]
        fn every_order_arrives_as_it_was_sent(
            edges in prop::collection::vec((any::<u32>(), direction()), 0..6),
            work: Vec<u8>,
        ) {
            let edges = edges.into_iter().map(|(id, direction)| edge(id, direction)).collect();
            let order = order(edges, Payload::encode(&work).unwrap());
            prop_assert_eq!(decode(&encode(&order).unwrap()), Ok(order));
        }

        #[test]
        fn every_applications_message_arrives_as_it_was_sent(text: String, edge: u32, port: u16) {
            let payload = Payload::encode(&text).unwrap();
            let message = FromAgent::Application(payload.clone());
            prop_assert_eq!(decode(&encode(&message).unwrap()), Ok(message));
            prop_assert_eq!(payload.decode::<String>(), Ok(text));
            let message = FromAgent::Listening { edge: EdgeId(edge), port };
            prop_assert_eq!(decode(&encode(&message).unwrap()), Ok(message));
        }

        #[test]
        fn no_bytes_make_decoding_panic(bytes: Vec<u8>) {
            let _ = decode::<ToAgent>(&bytes);
            let _ = decode::<FromAgent>(&bytes);
        }
    }
}
