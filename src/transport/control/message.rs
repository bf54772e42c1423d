//! The control messages: what two ends tell each other under Noise. Pure, no I/O.

use serde::{Deserialize, Serialize};

use crate::config::{Direction, TransportPolicy};

/// Most bytes of one encoded message: a Noise message (65,535) less its tag.
pub(crate) const MAX_MESSAGE_BYTES: usize = 65_535 - 16;

/// Longest text taken from a peer, in characters: an error message, never a novel.
const MAX_TEXT_CHARS: usize = 2000;

/// One message on the control connection. The order of the variants is the wire format.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Message {
    /// Dialer's first: what it wants. Its arrival under the session keys authenticates the dialer.
    Hello(Hello),
    /// Acceptor's answer: what both will do.
    Welcome(Welcome),
    /// Acceptor: the data connection is there, go ahead.
    Ready,
    /// Receiver of a direction: these slots may be written.
    Credit(Vec<u32>),
    /// Sender of a direction: that was all.
    Fin {
        /// Bytes of the direction in all.
        bytes: u64,
        /// The chain's last digest.
        digest: u64,
    },
    /// Receiver of a direction: every byte is here and verified.
    FinAck,
    /// Receiver of a direction: its sink has taken every byte.
    Confirm,
    /// Receiver of a direction: wants no more, and is content.
    Stop {
        /// Bytes its reader had taken.
        offset: u64,
    },
    /// Something broke. Nothing comes after it.
    Abort {
        /// Bytes of the data direction, as far as the sender of this message had come.
        offset: u64,
        /// What broke, in words.
        reason: String,
    },
    /// Still here.
    Ping,
    /// This end is finished and content. Nothing comes after it.
    Bye,
    /// One step towards a queue pair: this end's part of it, or why there is none.
    Step(Result<Vec<u8>, String>),
}

/// What the dialer wants.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Hello {
    /// What this end is and would like.
    pub(crate) terms: Terms,
    /// Which transports it may use.
    pub(crate) transport: Policy,
    /// Its ways over RDMA, or why there are none.
    pub(crate) rdma: Result<Vec<u8>, String>,
}

/// What both will do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Welcome {
    /// What this end is and would like.
    pub(crate) terms: Terms,
    /// Which transports it may use.
    pub(crate) transport: Policy,
    /// The way over RDMA that both should try, or why the data goes over TCP.
    pub(crate) rdma: Result<Vec<u8>, String>,
    /// Proves, once, that the data connection belongs to this control connection.
    pub(crate) token: Token,
}

/// What each end brings to the stream.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Terms {
    /// Version of the program.
    pub(crate) version: String,
    /// The host's own name.
    pub(crate) host: String,
    /// Which ways bytes will travel, as this end sees it.
    pub(crate) direction: WireDirection,
    /// Largest chunk it takes, in bytes.
    pub(crate) chunk_bytes: u32,
    /// Slots of its receive pool; 0 when it does not receive.
    pub(crate) depth: u32,
    /// After how long a silence it takes its peer for dead, in milliseconds.
    pub(crate) timeout_ms: u64,
}

/// [`Direction`] as it travels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum WireDirection {
    Both,
    Send,
    Receive,
}

/// [`TransportPolicy`] as it travels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Policy {
    Auto,
    Rdma,
    Tcp,
}

/// 256 random bits. Never printed.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Token(pub(crate) [u8; 32]);

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token(..)")
    }
}

impl From<Direction> for WireDirection {
    fn from(direction: Direction) -> Self {
        match direction {
            Direction::Both => Self::Both,
            Direction::Send => Self::Send,
            Direction::Receive => Self::Receive,
        }
    }
}

impl From<TransportPolicy> for Policy {
    fn from(policy: TransportPolicy) -> Self {
        match policy {
            TransportPolicy::Auto => Self::Auto,
            TransportPolicy::Rdma => Self::Rdma,
            TransportPolicy::Tcp => Self::Tcp,
        }
    }
}

/// Why bytes are no message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a control message that this version does not understand")]
pub(crate) struct Unintelligible;

impl Message {
    /// The message as it travels, always at most [`MAX_MESSAGE_BYTES`].
    pub(crate) fn encode(&self) -> Vec<u8> {
        postcard::to_stdvec(self).expect("messages are plain data, and memory does not fail")
    }

    /// Reads a message back, its texts cut to a sane length and freed of control characters:
    /// they end up on a terminal.
    ///
    /// # Errors
    ///
    /// When the bytes are not exactly one message.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, Unintelligible> {
        let (mut message, rest) = postcard::take_from_bytes(bytes).map_err(|_| Unintelligible)?;
        if !rest.is_empty() {
            return Err(Unintelligible);
        }
        match &mut message {
            Self::Hello(Hello { terms, rdma, .. }) | Self::Welcome(Welcome { terms, rdma, .. }) => {
                terms.clean();
                clean(rdma);
            }
            Self::Step(step) => clean(step),
            Self::Abort { reason, .. } => *reason = printable(reason),
            _ => {}
        }
        Ok(message)
    }
}

impl Terms {
    fn clean(&mut self) {
        self.version = printable(&self.version);
        self.host = printable(&self.host);
    }
}

fn clean(step: &mut Result<Vec<u8>, String>) {
    if let Err(reason) = step {
        *reason = printable(reason);
    }
}

/// `text` without control characters, and not endless.
pub(crate) fn printable(text: &str) -> String {
    let visible = |c: char| if c.is_control() { ' ' } else { c };
    text.chars().map(visible).take(MAX_TEXT_CHARS).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::config::MAX_DEPTH;

    proptest! {
        #[test]
        fn messages_survive_the_wire(slots: Vec<u32>, offset: u64, bytes: u64, digest: u64, reason in "[a-z /:]{0,80}") {
            for message in [
                Message::Credit(slots),
                Message::Fin { bytes, digest },
                Message::Stop { offset },
                Message::Abort { offset, reason },
                Message::Bye,
            ] {
                prop_assert_eq!(Message::decode(&message.encode()), Ok(message));
            }
        }

        #[test]
        fn any_bytes_are_a_message_or_an_error(bytes: Vec<u8>) {
            if let Ok(message) = Message::decode(&bytes) {
                prop_assert!(Message::decode(&message.encode()).is_ok());
            }
        }

        #[test]
        fn no_control_character_reaches_a_terminal(reason: String) {
            let message = Message::Abort { offset: 0, reason };
            let Ok(Message::Abort { reason, .. }) = Message::decode(&message.encode()) else {
                return Err(TestCaseError::fail("an abort stays one"));
            };
            prop_assert!(!reason.chars().any(char::is_control));
        }
    }

    #[test]
    fn the_largest_grant_fits_into_one_message() {
        let slots = vec![u32::MAX; MAX_DEPTH];
        assert!(Message::Credit(slots).encode().len() <= MAX_MESSAGE_BYTES);
    }

    #[test]
    fn a_token_is_never_printed() {
        assert_eq!(format!("{:?}", Token([7; 32])), "Token(..)");
    }
}
