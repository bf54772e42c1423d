//! The first bytes of a connection: the preamble, which says what the connection is for, and the opening, which a dialer
//! sends before it waits for an answer.
//!
//! | bytes | is                                                              |
//! |-------|-----------------------------------------------------------------|
//! | 0..6  | `RDPIPE`                                                        |
//! | 6     | protocol version                                                |
//! | 7     | what the connection is for, or what became of it ([`PreambleKind`])     |
//!
//! All versions share the preamble, so that two ends can detect that their versions differ.
//!
//! ```text
//! dialer                                      acceptor
//!   preamble, label of the stream  ────────►
//!                                  ◄────────    challenge: random bytes, made for this connection
//!   proof of the challenge         ────────►    hands the connection to the stream
//! ```
//!
//! The token of the stream is the secret. It travels to the dialer under Noise, and never appears on a data connection:
//! label and proof are keyed digests under the token. Each connection gets a challenge of its own, so a proof that was
//! read on the path is worth nothing on another connection, neither before nor after the dialer has used it.

use std::io;

use rustix::{
    io::Errno,
    net::{RecvFlags, recv},
};
use tokio::{io::AsyncReadExt, net::TcpStream};

use crate::{
    key::{DIGEST_BYTES, KEY_ID_BYTES, KeyId, keyed_digest},
    transport::control::{message::Token, noise::HANDSHAKE_BYTES},
};

/// The version of everything that crosses the network: preamble, handshake, messages and frames.
pub(crate) const PROTOCOL_VERSION: u8 = 12;

/// The size of a preamble, in bytes.
pub(crate) const PREAMBLE_BYTES: usize = 8;

const MAGIC: &[u8; 6] = b"RDPIPE";

/// The purpose of a connection, which its dialer sends, or the acceptor's answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PreambleKind {
    /// From the dialer: a control connection. A handshake follows.
    Control,
    /// From the dialer: the data connection of a stream. The label of its token follows.
    Data,
    /// From the acceptor: the dialer's first message is valid. The acceptor's follows.
    Reply,
    /// From the acceptor: the dialer's first message was made with another key.
    WrongKey,
    /// From the acceptor: the versions differ. The preamble has the acceptor's.
    WrongVersion,
}

impl PreambleKind {
    const ALL: [(Self, u8); 5] = [
        (Self::Control, b'C'),
        (Self::Data, b'D'),
        (Self::Reply, b'R'),
        (Self::WrongKey, b'K'),
        (Self::WrongVersion, b'V'),
    ];
}

/// A preamble that was received.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Preamble {
    /// The protocol version of the sender.
    pub(crate) version: u8,
    /// The kind; `None` for one that this version does not know.
    pub(crate) kind: Option<PreambleKind>,
}

impl Preamble {
    pub(crate) fn encode(kind: PreambleKind) -> [u8; PREAMBLE_BYTES] {
        let mut bytes = [0; PREAMBLE_BYTES];
        bytes[..6].copy_from_slice(MAGIC);
        bytes[6] = PROTOCOL_VERSION;
        bytes[7] = PreambleKind::ALL
            .iter()
            .find(|(known, _)| *known == kind)
            .map_or(0, |(_, byte)| *byte);
        bytes
    }

    /// Decodes a preamble. Returns `None` if the bytes are another protocol's.
    pub(crate) fn decode(bytes: [u8; PREAMBLE_BYTES]) -> Option<Self> {
        let kind = PreambleKind::ALL
            .iter()
            .find(|(_, byte)| *byte == bytes[7])
            .map(|(kind, _)| *kind);
        bytes.starts_with(MAGIC).then_some(Self {
            version: bytes[6],
            kind,
        })
    }
}

/// The size of a [`label`]: 128 bits, which a stranger does not guess.
pub(super) const LABEL_BYTES: usize = 16;

pub(super) const CHALLENGE_BYTES: usize = 32;

/// Returns random bytes, for a token or a challenge.
pub(super) fn random() -> [u8; 32] {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes).expect("the system has random numbers once it has booted");
    bytes
}

pub(super) const PROOF_BYTES: usize = DIGEST_BYTES;

/// Returns the label that tells the acceptor which stream a data connection is for. It can be read on the path.
pub(super) fn label(token: &Token) -> [u8; LABEL_BYTES] {
    let digest = keyed_digest(&token.0, b"rdpipe data connection: label");
    *digest.first_chunk().expect("a digest is longer")
}

/// Returns the proof that the connection with this challenge belongs to the stream with this token.
pub(super) fn proof(token: &Token, challenge: &[u8; CHALLENGE_BYTES]) -> [u8; PROOF_BYTES] {
    let text = [&b"rdpipe data connection: proof"[..], challenge].concat();
    keyed_digest(&token.0, &text)
}

/// Returns true if `shown` is the proof. Takes the same time for every wrong proof.
pub(super) fn is_proof(
    token: &Token,
    challenge: &[u8; CHALLENGE_BYTES],
    shown: &[u8; PROOF_BYTES],
) -> bool {
    let right = proof(token, challenge);
    let pairs = right.iter().zip(shown);
    pairs.fold(0, |differing, (a, b)| differing | (a ^ b)) == 0
}

/// The size of what a dialer sends before its first Noise message: the preamble, and the id of its key.
pub(crate) const PROLOGUE_BYTES: usize = PREAMBLE_BYTES + KEY_ID_BYTES;

/// The size of the opening of a control connection, which is the longest.
const OPENING_BYTES: usize = PROLOGUE_BYTES + HANDSHAKE_BYTES;

/// The first bytes of a connection, as far as they have arrived.
pub(crate) struct Opening {
    bytes: [u8; OPENING_BYTES],
    have: usize,
}

/// What the first bytes of a connection are.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum OpeningKind {
    Control(ControlOpening),
    Data([u8; LABEL_BYTES]),
    /// A connection of rdpipe with another version.
    OtherVersion(u8),
    /// A connection of rdpipe for a purpose that this version does not know.
    Unknown,
    /// Another protocol.
    Foreign,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ControlOpening {
    /// The preamble, and the id of the key or random bytes.
    pub(crate) prologue: [u8; PROLOGUE_BYTES],
    /// Noise message 1.
    pub(crate) first: [u8; HANDSHAKE_BYTES],
}

impl ControlOpening {
    /// Returns the id of the key with which the dialer made its message, or the random bytes that a dialer with a
    /// stretched key sends in its place.
    pub(crate) fn key_id(&self) -> KeyId {
        let id = self.prologue.last_chunk().expect("it ends with the id");
        KeyId::from_bytes(*id)
    }
}

impl Opening {
    pub(crate) fn new() -> Self {
        Self {
            bytes: [0; OPENING_BYTES],
            have: 0,
        }
    }

    /// Reads what has arrived, without waiting. Returns true if the opening is complete.
    ///
    /// It asks the socket itself: the runtime learns that a fresh socket is readable only when it next waits.
    pub(crate) fn read_arrived(&mut self, socket: &TcpStream) -> io::Result<bool> {
        while self.missing() > 0 {
            let end = needed(&self.bytes, self.have);
            match recv(socket, &mut self.bytes[self.have..end], RecvFlags::DONTWAIT) {
                Ok((0, _)) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok((count, _)) => self.have += count,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(false),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(true)
    }

    /// Reads the rest of the opening.
    pub(crate) async fn read(&mut self, socket: &mut TcpStream) -> io::Result<()> {
        while self.missing() > 0 {
            let end = needed(&self.bytes, self.have);
            let count = socket.read(&mut self.bytes[self.have..end]).await?;
            if count == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            self.have += count;
        }
        Ok(())
    }

    /// Returns what the connection is, once the opening is complete.
    pub(crate) fn kind(&self) -> OpeningKind {
        let (preamble, rest) = self.bytes.split_first_chunk().expect("it begins with one");
        let Some(Preamble { version, kind }) = Preamble::decode(*preamble) else {
            return OpeningKind::Foreign;
        };
        match kind {
            _ if version != PROTOCOL_VERSION => OpeningKind::OtherVersion(version),
            Some(PreambleKind::Control) => {
                let (prologue, first) = self.bytes.split_at(PROLOGUE_BYTES);
                OpeningKind::Control(ControlOpening {
                    prologue: prologue.try_into().expect("its first part"),
                    first: first.try_into().expect("its other part"),
                })
            }
            Some(PreambleKind::Data) => {
                OpeningKind::Data(*rest.first_chunk().expect("a label is shorter"))
            }
            _ => OpeningKind::Unknown,
        }
    }

    /// Returns the number of bytes that are still missing, as far as the bytes that have arrived tell.
    fn missing(&self) -> usize {
        needed(&self.bytes, self.have) - self.have
    }
}

/// Returns the size of the opening that begins with the first `have` of `bytes`. No byte beyond it is read: what
/// follows belongs to others.
fn needed(bytes: &[u8], have: usize) -> usize {
    let preamble = bytes.first_chunk().expect("there is room for one");
    match Preamble::decode(*preamble) {
        _ if have < PREAMBLE_BYTES => PREAMBLE_BYTES,
        Some(Preamble {
            version: PROTOCOL_VERSION,
            kind: Some(PreambleKind::Control),
        }) => OPENING_BYTES,
        Some(Preamble {
            version: PROTOCOL_VERSION,
            kind: Some(PreambleKind::Data),
        }) => PREAMBLE_BYTES + LABEL_BYTES,
        _ => PREAMBLE_BYTES,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Key;

    #[test]
    fn every_kind_survives_the_wire() {
        for (kind, _) in PreambleKind::ALL {
            let preamble = Preamble {
                version: PROTOCOL_VERSION,
                kind: Some(kind),
            };
            assert_eq!(Preamble::decode(Preamble::encode(kind)), Some(preamble));
        }
    }

    #[test]
    fn others_are_told_apart() {
        assert_eq!(Preamble::decode(*b"SSH-2.0-"), None);
        assert_eq!(Preamble::decode(*b"GET / HT"), None);
        let newer = Preamble {
            version: 10,
            kind: None,
        };
        assert_eq!(Preamble::decode(*b"RDPIPE\x0a?"), Some(newer));
    }

    #[test]
    fn the_page_of_the_wire_format_draws_this_version() {
        let page = include_str!("../../../docs/wire-format.md");
        let drawn: Vec<&str> = page.split("\"RDPIPE\" ").skip(1).collect();
        assert!(!drawn.is_empty());
        for drawn in drawn {
            let version = drawn.split(' ').next().unwrap();
            assert_eq!(version, PROTOCOL_VERSION.to_string());
        }
    }

    /// Inputs of another version are refused at their first bytes, and the fuzzer learns nothing from them.
    #[test]
    fn the_seeds_of_the_handshake_have_this_version() {
        let seeds = concat!(env!("CARGO_MANIFEST_DIR"), "/fuzz/seeds/handshake");
        for name in ["control", "data"] {
            let seed = std::fs::read(format!("{seeds}/{name}")).unwrap();
            assert_eq!(seed[6], PROTOCOL_VERSION, "{name}");
        }
    }

    #[test]
    fn a_proof_is_good_for_one_token_and_one_challenge() {
        let (token, challenge) = (Token([1; 32]), [2; CHALLENGE_BYTES]);
        let shown = proof(&token, &challenge);
        assert!(is_proof(&token, &challenge, &shown));
        assert!(!is_proof(&token, &[3; CHALLENGE_BYTES], &shown));
        assert!(!is_proof(&Token([3; 32]), &challenge, &shown));
        for at in 0..PROOF_BYTES {
            let mut damaged = shown;
            damaged[at] ^= 1;
            assert!(!is_proof(&token, &challenge, &damaged));
        }
    }

    #[test]
    fn a_label_shows_neither_token_nor_proof() {
        let token = Token([1; 32]);
        let label = label(&token);
        assert_ne!(label, token.0[..LABEL_BYTES]);
        assert_ne!(label, proof(&token, &[0; CHALLENGE_BYTES])[..LABEL_BYTES]);
    }

    fn opening(bytes: &[u8]) -> Opening {
        let mut opening = Opening::new();
        opening.bytes[..bytes.len()].copy_from_slice(bytes);
        opening.have = bytes.len();
        opening
    }

    #[test]
    fn every_purpose_has_its_size() {
        let control = Preamble::encode(PreambleKind::Control);
        let data = Preamble::encode(PreambleKind::Data);
        assert_eq!(opening(b"").missing(), PREAMBLE_BYTES);
        assert_eq!(opening(&control[..7]).missing(), 1);
        let rest = KEY_ID_BYTES + HANDSHAKE_BYTES;
        assert_eq!(opening(&control).missing(), rest);
        assert_eq!(opening(&data).missing(), LABEL_BYTES);
        assert_eq!(opening(b"GET / HT").missing(), 0);
        assert_eq!(opening(b"RDPIPE\xffC").missing(), 0);
    }

    #[test]
    fn every_purpose_is_told_apart() {
        let id = Key::generate().unwrap().id();
        let preamble = Preamble::encode(PreambleKind::Control);
        let prologue = [&preamble[..], &id.to_bytes()].concat();
        let control = ControlOpening {
            prologue: prologue[..].try_into().unwrap(),
            first: [7; HANDSHAKE_BYTES],
        };
        assert_eq!(control.key_id(), id);
        let data = [&Preamble::encode(PreambleKind::Data)[..], &[7; LABEL_BYTES]];
        let kinds = [
            (
                [&prologue[..], &control.first].concat(),
                OpeningKind::Control(control),
            ),
            (data.concat(), OpeningKind::Data([7; LABEL_BYTES])),
            (b"RDPIPE\xffC".to_vec(), OpeningKind::OtherVersion(255)),
            (b"GET / HT".to_vec(), OpeningKind::Foreign),
            (
                Preamble::encode(PreambleKind::Reply).to_vec(),
                OpeningKind::Unknown,
            ),
        ];
        for (bytes, kind) in kinds {
            let opening = opening(&bytes);
            assert_eq!((opening.missing(), opening.kind()), (0, kind));
        }
    }
}
