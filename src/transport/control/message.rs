//! The messages that the two ends send on the control connection, under Noise, and what both ends agree on by the first
//! two. Pure, no I/O.

use std::{net::IpAddr, num::NonZero, thread, time::Duration};

use blake2::{Blake2s256, Digest};
use serde::{Deserialize, Serialize};
use zeroize::ZeroizeOnDrop;

use crate::{
    Direction, Encryption, HandshakeFault, MAX_CHUNK_BYTES, MAX_DEPTH, MIN_CHUNK_BYTES,
    StreamConfig, TransportPolicy,
    config::{LONGEST_LIMIT, MOST_AUTOMATIC_RAILS, MOST_RAILS, Rails},
    host::{host_name, machine},
    key::keyed_digest,
    printable::with_spaces,
    transport::control::seal::{Cipher, has_aes},
};

/// Most bytes of one encoded message: a Noise message (65,535) less its tag.
pub(crate) const MAX_MESSAGE_BYTES: usize = 65_535 - 16;

/// The longest text accepted from a peer, in characters. Enough for any error message.
const MAX_TEXT_CHARS: usize = 2000;

/// One message on the control connection. The order of the variants is the wire format.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Message {
    /// The dialer's first message: its offer. Its arrival under the session keys authenticates the dialer.
    Hello(Hello),
    /// The acceptor's answer: what both ends will do.
    Welcome(Welcome),
    /// From the acceptor: the data connection has arrived, the stream may start.
    Ready,
    /// From the receiver of a direction: these slots may be written.
    Credit(Vec<u32>),
    /// From the sender of a direction: all bytes were sent.
    Fin {
        bytes: u64,
        /// The end of the chain of digests.
        digest: u64,
    },
    /// From the receiver of a direction: every byte has arrived and is verified.
    FinAck,
    /// From the receiver of a direction: its sink has taken every byte.
    Confirm,
    /// From the receiver of a direction: the reader needs no more bytes, and this is no failure.
    Stop {
        /// The number of bytes that the reader had taken.
        offset: u64,
    },
    /// The stream has failed. No message follows.
    Abort {
        /// The number of bytes that had been sent or received, whichever is more.
        offset: u64,
        /// What failed, for the user.
        reason: String,
    },
    /// A keepalive, and how far the data path has got: see [`data_progress`](super::data_watch).
    Ping {
        /// The number of bytes that the end which sends this message has sent on the data path.
        sent: u64,
        /// The number of bytes that it has received on the data path.
        received: u64,
        /// The number of messages that it has received, which the codec sets.
        messages: u64,
    },
    /// This end has finished without failure. No message follows.
    Bye,
    /// One step towards a queue pair: this end's part of it, or the reason why this end cannot make it.
    Step {
        /// The rail whose link is replaced; 0 while the stream is made, when a step is for all rails.
        rail: u8,
        /// The part, or the reason.
        step: Result<Vec<u8>, String>,
    },
    /// The dialer's answer to the addresses in Welcome: the networks that it uses beside that of the control connection,
    /// as the numbers of their connections that watch.
    Networks(Vec<u8>),
    /// A rail goes on over another of its connections.
    Moved {
        /// The number of the rail.
        rail: u8,
        /// The number of the connection among those of the rail.
        connection: u8,
        /// The end of what this end has verified on the rail: what follows is sent again.
        verified: u64,
    },
}

/// The dialer's offer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Hello {
    /// The terms of the end that sends the message.
    pub(crate) terms: Terms,
    /// The transports that this end may use.
    pub(crate) transport: TransportPolicy,
    /// The RDMA ports of the dialer, or the reason why it has none.
    pub(crate) rdma: Result<Vec<u8>, String>,
    /// The dialer's part of the secret of the stream.
    pub(crate) random: Token,
}

/// The acceptor's decision on the dialer's offer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Welcome {
    /// The terms of the end that sends the message.
    pub(crate) terms: Terms,
    /// The transports that this end may use.
    pub(crate) transport: TransportPolicy,
    /// The pairs of RDMA ports that both ends try, or the reason why the data goes over TCP.
    pub(crate) rdma: Result<Vec<u8>, String>,
    /// Proves that a data connection belongs to this control connection. Good for one connection. It is the acceptor's
    /// part of the secret of the stream too.
    pub(crate) token: Token,
    /// The addresses at which the acceptor takes data connections too, beginning with that of the control connection.
    /// None if the rails stay on one network.
    pub(crate) addresses: Vec<IpAddr>,
}

/// What one end brings to the stream.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Terms {
    pub(crate) version: String,
    pub(crate) host: String,
    /// The direction of the stream, as this end sees it.
    pub(crate) direction: Direction,
    /// The largest chunk that this end accepts, in bytes.
    pub(crate) chunk_bytes: u32,
    /// The number of slots of this end's receive pool over TCP, also if it does not receive.
    pub(crate) depth: u32,
    /// The silence after which this end treats its peer as dead, in milliseconds.
    pub(crate) timeout_ms: u64,
    /// What this end wants of a cipher.
    pub(crate) encryption: EncryptionTerms,
    /// The number of rails that this end wants.
    pub(crate) rails: RailTerms,
}

/// What one end wants of a cipher for the data.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct EncryptionTerms {
    /// What its user has chosen.
    pub(crate) choice: Encryption,
    /// True if its processor has instructions for AES.
    pub(crate) has_aes: bool,
    /// Stands for the machine and its network; none if the connection comes from another address than it leads to.
    pub(crate) machine: Option<[u8; 32]>,
}

/// The number of rails that one end wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RailTerms {
    pub(crate) set: Option<u8>,
    /// The number that suits its processors.
    pub(crate) suitable: u8,
    /// The largest number that it can have.
    pub(crate) most: u8,
}

impl RailTerms {
    /// Returns what an end with this setting wants. Its pools of `depth` slots must fit into one message of credits.
    fn new(rails: Rails, depth: usize) -> Self {
        let fitting = u8::try_from(MAX_DEPTH / depth.max(1)).unwrap_or(u8::MAX);
        let most = fitting.clamp(1, MOST_RAILS);
        let suitable = |processors: usize| (processors / 2).clamp(1, MOST_AUTOMATIC_RAILS.into());
        let processors = || thread::available_parallelism().map_or(1, NonZero::get);
        match rails {
            Rails::One => Self {
                set: None,
                suitable: 1,
                most: 1,
            },
            Rails::Auto => Self {
                set: None,
                suitable: u8::try_from(suitable(processors())).unwrap_or(1),
                // The memory that a peer can ask for is that of the largest machine.
                most: most.min(MOST_AUTOMATIC_RAILS),
            },
            Rails::Exactly(set) => Self {
                set: Some(set),
                suitable: set,
                most,
            },
        }
    }

    /// Returns the number of rails of a stream between two ends. Both ends derive the same.
    fn common(self, other: Self) -> usize {
        let set = match (self.set, other.set) {
            (Some(here), Some(there)) => here.min(there),
            (Some(set), None) | (None, Some(set)) => set,
            (None, None) => self.suitable.min(other.suitable),
        };
        set.min(self.most).min(other.most).max(1).into()
    }
}

/// 256 random bits, which are never printed, and wiped when dropped.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, ZeroizeOnDrop)]
pub(crate) struct Token(pub(crate) [u8; 32]);

impl Token {
    /// Returns the token for the data connection with this number: those of the rails come first.
    pub(crate) fn of_rail(&self, connection: usize) -> Self {
        match connection {
            0 => self.clone(),
            _ => self.derived(b"rdpipe data connection: rail ", connection),
        }
    }

    /// Returns the token for the connection that watches the network with this number.
    pub(crate) fn of_network(&self, network: usize) -> Self {
        self.derived(b"rdpipe data connection: network ", network)
    }

    /// Returns the token for the connection over this network to which the control connection moves.
    pub(crate) fn of_reserve(&self, network: usize) -> Self {
        self.derived(b"rdpipe data connection: control ", network)
    }

    fn derived(&self, label: &[u8], number: usize) -> Self {
        let number = u32::try_from(number).unwrap_or(u32::MAX);
        let text = [label, &number.to_le_bytes()].concat();
        Self(keyed_digest(&self.0, &text))
    }
}

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token(..)")
    }
}

/// The bytes are not a message of this version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a control message that this version does not understand")]
pub(crate) struct Unintelligible;

impl Message {
    /// Encodes the message, in at most [`MAX_MESSAGE_BYTES`].
    pub(crate) fn encode(&self) -> Vec<u8> {
        postcard::to_stdvec(self).expect("messages are plain data, and memory does not fail")
    }

    /// Decodes a message. Its texts are cut to a limited length and stripped of control characters, since they
    /// are printed on terminals.
    /// Fails with [`Unintelligible`] unless the bytes are exactly one message.
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
            Self::Step { step, .. } => clean(step),
            Self::Abort { reason, .. } => *reason = printable(reason),
            // Each message is named, so that the compiler asks whether a new one holds text.
            Self::Ready
            | Self::Credit(_)
            | Self::Fin { .. }
            | Self::FinAck
            | Self::Confirm
            | Self::Stop { .. }
            | Self::Ping { .. }
            | Self::Bye
            | Self::Networks(_)
            | Self::Moved { .. } => {}
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

/// Returns `text` without characters that control a terminal, cut to a limited length.
pub(crate) fn printable(text: &str) -> String {
    with_spaces(text).chars().take(MAX_TEXT_CHARS).collect()
}

/// What this end does in the stream, after both ends have sent their terms.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Agreement {
    /// The direction of the stream, as this end sees it.
    pub(crate) direction: Direction,
    /// The chunk size, in bytes.
    pub(crate) chunk_bytes: usize,
    /// The number of slots of this end's receive pool.
    pub(crate) depth: u32,
    /// The number of slots of the peer's receive pool over TCP.
    pub(crate) peer_depth: u32,
    /// The silence after which the peer treats this end as dead.
    pub(crate) peer_timeout: Duration,
    /// The cipher of the data; none if it is not encrypted.
    pub(crate) cipher: Option<Cipher>,
    /// The number of rails over TCP.
    pub(crate) rails: usize,
    /// True if the rails over TCP may use several networks: there are several, and the user of either end has set their
    /// number.
    pub(crate) may_spread: bool,
}

/// Returns this end's terms. `is_local` is true if the connection comes from the address that it leads to.
pub(crate) fn local_terms(config: &StreamConfig, is_local: bool) -> Terms {
    let chunk_bytes = config.chunk_bytes.clamp(MIN_CHUNK_BYTES, MAX_CHUNK_BYTES);
    let depth = config.depth.clamp(crate::MIN_DEPTH, crate::MAX_DEPTH);
    Terms {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        host: host_name(),
        direction: config.direction,
        chunk_bytes: u32::try_from(chunk_bytes).expect("at most 64 MiB"),
        depth: u32::try_from(depth).expect("at most a few thousand"),
        timeout_ms: u64::try_from(config.timeout.min(LONGEST_LIMIT).as_millis())
            .unwrap_or(u64::MAX),
        encryption: EncryptionTerms {
            choice: config.encryption,
            has_aes: has_aes(),
            machine: is_local.then(|| {
                let hash = Blake2s256::new_with_prefix(b"rdpipe machine 1");
                hash.chain_update(machine()).finalize().into()
            }),
        },
        rails: RailTerms::new(config.rails, depth),
    }
}

/// Returns the largest number of rails that an end with these settings can have.
#[cfg(feature = "rdma")]
pub(crate) fn most_rails(config: &StreamConfig) -> u8 {
    RailTerms::new(config.rails, config.depth).most
}

/// Derives the agreement from this end's and the peer's terms. Both ends derive the same.
/// Fails when the terms of the two ends contradict each other.
pub(crate) fn agree(ours: &Terms, theirs: &Terms) -> Result<Agreement, HandshakeFault> {
    let chunk_bytes = ours.chunk_bytes.min(theirs.chunk_bytes) as usize;
    if chunk_bytes < MIN_CHUNK_BYTES {
        return Err(HandshakeFault::Protocol("a chunk size below the least"));
    }
    if theirs.timeout_ms == 0 {
        return Err(HandshakeFault::Protocol("a time limit of nothing"));
    }
    if !(1..=MAX_DEPTH).contains(&(theirs.depth as usize)) {
        return Err(HandshakeFault::Protocol(
            "a pool of a depth that is not allowed",
        ));
    }
    let rails = ours.rails.common(theirs.rails);
    Ok(Agreement {
        direction: common_direction(ours.direction, theirs.direction)?,
        chunk_bytes,
        depth: ours.depth,
        peer_depth: theirs.depth,
        peer_timeout: Duration::from_millis(theirs.timeout_ms).min(LONGEST_LIMIT),
        cipher: common_cipher(ours, theirs)?,
        rails,
        may_spread: rails > 1 && ours.rails.set.or(theirs.rails.set).is_some(),
    })
}

/// Returns the cipher of the data; none if it is not encrypted. Bytes that stay on one machine need no cipher. That two
/// ends are on one machine is shown by what they know of it, under Noise: an address does not show it, because tunnels
/// and proxies end at 127.0.0.1 too.
fn common_cipher(ours: &Terms, theirs: &Terms) -> Result<Option<Cipher>, HandshakeFault> {
    let (here, there) = (&ours.encryption, &theirs.encryption);
    let is_one_machine = here.machine.is_some() && here.machine == there.machine;
    let choices = [here.choice, there.choice];
    let is_encrypted = choices.contains(&Encryption::Always)
        || (choices.contains(&Encryption::Auto) && !is_one_machine);
    if is_encrypted && choices.contains(&Encryption::Never) {
        let told = |terms: &Terms| format!("{} has {}", terms.host, terms.encryption.choice);
        let what = format!("{}, {}", told(ours), told(theirs));
        return Err(HandshakeFault::Encryption(what));
    }
    let fastest = Cipher::fastest(here.has_aes && there.has_aes);
    Ok(is_encrypted.then_some(fastest))
}

/// Returns this end's direction: one way if either end asks for one way.
fn common_direction(ours: Direction, theirs: Direction) -> Result<Direction, HandshakeFault> {
    match (ours, theirs) {
        (Direction::Send, Direction::Send) => Err(HandshakeFault::Direction("send")),
        (Direction::Receive, Direction::Receive) => Err(HandshakeFault::Direction("receive")),
        (Direction::Both, Direction::Both) => Ok(Direction::Both),
        (Direction::Send, _) | (Direction::Both, Direction::Receive) => Ok(Direction::Send),
        (Direction::Receive, _) | (Direction::Both, Direction::Send) => Ok(Direction::Receive),
    }
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
                Message::Ping { sent: offset, received: bytes, messages: digest },
                Message::Abort { offset, reason },
                Message::Bye,
                Message::Networks(vec![1, 3]),
                Message::Moved { rail: 1, connection: 2, verified: bytes },
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

    fn terms(direction: Direction, chunk_bytes: usize) -> Terms {
        let config = StreamConfig {
            chunk_bytes,
            direction,
            ..StreamConfig::default()
        };
        local_terms(&config, true)
    }

    #[test]
    fn both_ends_see_the_same_stream() {
        use Direction::{Both, Receive, Send};
        for (here, there, mine, yours) in [
            (Both, Both, Both, Both),
            (Send, Both, Send, Receive),
            (Both, Send, Receive, Send),
            (Send, Receive, Send, Receive),
        ] {
            let (here, there) = (terms(here, 1 << 20), terms(there, 1 << 16));
            let (a, b) = (agree(&here, &there).unwrap(), agree(&there, &here).unwrap());
            assert_eq!((a.direction, b.direction), (mine, yours));
            assert_eq!((a.chunk_bytes, b.chunk_bytes), (1 << 16, 1 << 16));
        }
    }

    /// The ends, with what each of them has chosen and knows of its machine, and the cipher; none for a refusal.
    #[test]
    fn data_is_encrypted_unless_both_ends_agree_that_it_need_not_be() {
        use Encryption::{Always, Auto, Never};
        let end = |choice, machine, has_aes| Terms {
            encryption: EncryptionTerms {
                choice,
                has_aes,
                machine,
            },
            ..terms(Direction::Both, 1 << 16)
        };
        let (here, there) = (Some([1; 32]), Some([2; 32]));
        let aes = Ok(Some(Cipher::Aes256Gcm));
        for (choices, machines, expected) in [
            ([Auto, Auto], [here, here], Ok(None)),
            ([Auto, Auto], [here, there], aes),
            // Without a proof by either end, the data may leave the machine.
            ([Auto, Auto], [None, None], aes),
            ([Auto, Auto], [here, None], aes),
            ([Auto, Always], [here, here], aes),
            ([Auto, Never], [here, here], Ok(None)),
            ([Auto, Never], [here, there], Err(())),
            ([Always, Never], [here, here], Err(())),
            ([Never, Never], [here, there], Ok(None)),
        ] {
            for (one, other) in [(0, 1), (1, 0)] {
                let ours = end(choices[one], machines[one], true);
                let theirs = end(choices[other], machines[other], true);
                let cipher = agree(&ours, &theirs).map(|agreed| agreed.cipher);
                assert_eq!(cipher.map_err(drop), expected, "{choices:?} {machines:?}");
            }
        }
        let without_aes = agree(&end(Always, None, true), &end(Always, None, false)).unwrap();
        assert_eq!(without_aes.cipher, Some(Cipher::ChaCha20Poly1305));
    }

    #[test]
    fn two_senders_cannot_meet() {
        let send = terms(Direction::Send, 1 << 16);
        assert!(matches!(
            agree(&send, &send),
            Err(HandshakeFault::Direction("send"))
        ));
    }

    #[test]
    fn a_damaged_chunk_size_is_refused() {
        let (here, mut there) = (
            terms(Direction::Both, 1 << 16),
            terms(Direction::Both, 1 << 16),
        );
        there.chunk_bytes = 0;
        assert!(agree(&here, &there).is_err());
    }

    #[test]
    fn a_pool_without_end_is_refused() {
        let (here, mut there) = (
            terms(Direction::Both, 1 << 16),
            terms(Direction::Both, 1 << 16),
        );
        for depth in [0, 4097, u32::MAX] {
            there.depth = depth;
            assert!(agree(&here, &there).is_err(), "{depth}");
        }
    }
}
