//! The first eight bytes of every connection: pure, no I/O.
//!
//! | bytes | is                                                              |
//! |-------|-----------------------------------------------------------------|
//! | 0..6  | `RDPIPE`                                                        |
//! | 6     | protocol version                                                |
//! | 7     | what the connection is for, or what became of it ([`PreambleKind`])     |
//!
//! It is the only part that all versions share, so it can say that they differ.

use crate::transport::data::frame::PROTOCOL_VERSION;

/// Bytes of a preamble.
pub(crate) const PREAMBLE_BYTES: usize = 8;

const MAGIC: &[u8; 6] = b"RDPIPE";

/// What a connection is for, as its dialer says, or the acceptor's answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PreambleKind {
    /// Dialer: this will be a control connection; a handshake follows.
    Control,
    /// Dialer: this is the data connection of a stream; its token follows.
    Data,
    /// Acceptor: your first message verifies; mine follows.
    Reply,
    /// Acceptor: your first message does not verify.
    WrongKey,
    /// Acceptor: your version is not mine, which stands in this preamble.
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

/// See the module.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Preamble {
    /// Protocol version of whoever wrote it.
    pub(crate) version: u8,
    /// `None`: a kind that this version does not know.
    pub(crate) kind: Option<PreambleKind>,
}

impl Preamble {
    /// A preamble of this version, as it travels.
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

    /// Reads a preamble; `None` when whoever wrote the bytes is not rdpipe.
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
}
