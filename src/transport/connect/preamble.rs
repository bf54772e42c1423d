//! The first eight bytes of every connection. Pure, no I/O.
//!
//! | bytes | is                                                              |
//! |-------|-----------------------------------------------------------------|
//! | 0..6  | `RDPIPE`                                                        |
//! | 6     | protocol version                                                |
//! | 7     | what the connection is for, or what became of it ([`PreambleKind`])     |
//!
//! All versions share the preamble, so that two ends can detect that their versions differ.

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
}
