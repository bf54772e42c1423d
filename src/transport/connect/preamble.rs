//! The first bytes of every connection: eight that name the protocol, and on a data connection the proof that it
//! belongs to a stream. Pure, no I/O.
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

use crate::{
    key::{DIGEST_BYTES, keyed_digest},
    transport::control::message::Token,
};

/// The version of everything that crosses the network: preamble, handshake, messages and frames.
pub(crate) const PROTOCOL_VERSION: u8 = 5;

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
    /// Encodes a preamble of this version.
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

/// The size of a challenge.
pub(super) const CHALLENGE_BYTES: usize = 32;

/// Returns random bytes, for a token or a challenge.
pub(super) fn random() -> [u8; 32] {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes).expect("the system has random numbers once it has booted");
    bytes
}

/// The size of a proof.
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

#[cfg(test)]
mod tests {
    use super::*;

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
            version: 9,
            kind: None,
        };
        assert_eq!(Preamble::decode(*b"RDPIPE\x09?"), Some(newer));
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
}
