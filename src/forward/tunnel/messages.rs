//! What the two ends of a tunnel say about the tunnel itself and about connections. Pure, no I/O.

use std::{fmt, io, net::IpAddr};

use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::{
    forward::{mux::frame::MAX_CONTROL_BYTES, policy::ForwardTarget, specs::ListenAt},
    printable::with_spaces,
};

/// The version of the frames and of these messages.
pub(crate) const TUNNEL_VERSION: u32 = 3;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum TunnelMessage {
    /// The first message of each end.
    Hello { version: u32, program: String },
    /// Asks the far end to listen.
    Listen {
        /// The number of the listener, chosen by the end that asks.
        id: u32,
        /// Where.
        at: ListenAt,
    },
    /// Answers that the far end listens.
    Listening {
        /// The number of the listener.
        id: u32,
        /// The port of TCP.
        port: Option<u16>,
    },
    /// Answers that the far end cannot listen.
    CannotListen {
        /// The number of the listener.
        id: u32,
        /// One sentence.
        text: String,
    },
    /// Asks the far end for further streams, once, over the first stream.
    AskStreams {
        streams: u16,
        /// True if the user has chosen the number. Otherwise it is how many suit the host.
        is_chosen: bool,
    },
    /// Answers that the far end waits for further streams, or that it allows none.
    AwaitsStreams {
        /// The number of streams that the tunnel may have, the first one included.
        streams: u16,
        /// The port at which they are awaited; none is that of the first stream.
        port: Option<u16>,
        /// What the keys of the streams follow from, beside the key of the first one.
        salt: [u8; 16],
    },
}

/// What a connection is connected to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum OpenTarget {
    /// The other end connects to this target.
    Connect(ForwardTarget),
    /// The other end connects to a port of its own host.
    OwnPort {
        /// The address of the host by which the program has named it.
        address: IpAddr,
        port: u16,
    },
    /// The connection was accepted by a listener of [`TunnelMessage::Listen`].
    Accepted {
        listener: u32,
        /// The address of the program that has connected.
        from: String,
    },
}

/// The reason why a connection cannot be made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ForwardRefusal {
    pub(crate) kind: RefusalKind,
    /// One sentence without a period.
    pub(crate) text: String,
}

/// What kind of obstacle prevents a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum RefusalKind {
    /// The target refuses connections.
    Refused,
    /// No way leads to the network of the target.
    Unreachable,
    /// The name has no address.
    Unknown,
    /// The far end does not allow the target.
    Forbidden,
    /// The far end has no memory or descriptors left for another connection.
    Full,
    /// The target did not answer.
    TimedOut,
    /// Another error.
    Other,
    /// The network of the target does not find its host.
    HostUnreachable,
}

impl ForwardRefusal {
    /// Returns the refusal for an error of connecting to a target.
    pub(crate) fn of(error: &io::Error) -> Self {
        let kind = match error.kind() {
            io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound => RefusalKind::Refused,
            io::ErrorKind::NetworkUnreachable => RefusalKind::Unreachable,
            io::ErrorKind::HostUnreachable => RefusalKind::HostUnreachable,
            io::ErrorKind::TimedOut => RefusalKind::TimedOut,
            io::ErrorKind::PermissionDenied => RefusalKind::Forbidden,
            _ if is_full(error) => RefusalKind::Full,
            _ => RefusalKind::Other,
        };
        let text = error.to_string();
        Self { kind, text }
    }

    /// Returns the refusal of an end without memory for another connection.
    pub(crate) fn full() -> Self {
        Self {
            kind: RefusalKind::Full,
            text: "too many connections".to_owned(),
        }
    }

    pub(super) fn decode(bytes: &[u8]) -> Self {
        if bytes.is_empty() {
            return Self::full();
        }
        decode(bytes).unwrap_or_else(|| Self {
            kind: RefusalKind::Other,
            text: "an unknown reason".to_owned(),
        })
    }
}

/// Returns true if no descriptors are left.
pub(super) fn is_full(error: &io::Error) -> bool {
    let errno = rustix::io::Errno::from_io_error(error);
    matches!(
        errno,
        Some(rustix::io::Errno::MFILE | rustix::io::Errno::NFILE)
    )
}

impl fmt::Display for ForwardRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The text may come from the peer.
        f.write_str(&with_spaces(&self.text))
    }
}

/// Encodes a message, a target or a refusal; none if it is too long for a frame.
pub(super) fn encode(message: &impl Serialize) -> Option<Vec<u8>> {
    let bytes = postcard::to_stdvec(message).ok()?;
    (bytes.len() <= MAX_CONTROL_BYTES - 4).then_some(bytes)
}

/// Decodes a message, a target or a refusal; none if the bytes are not exactly one.
pub(super) fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Option<T> {
    match postcard::take_from_bytes(bytes) {
        Ok((message, [])) => Some(message),
        _ => None,
    }
}
