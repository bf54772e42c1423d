//! The first bytes of a connection that was accepted: those that its dialer sends before it waits for an answer.

use std::io;

use rustix::{
    io::Errno,
    net::{RecvFlags, recv},
};
use tokio::{io::AsyncReadExt, net::TcpStream};

use crate::{
    key::{KEY_ID_BYTES, KeyId},
    transport::{
        connect::preamble::{
            LABEL_BYTES, PREAMBLE_BYTES, PROTOCOL_VERSION, Preamble, PreambleKind,
        },
        control::noise::HANDSHAKE_BYTES,
    },
};

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
    /// A control connection.
    Control(ControlOpening),
    /// The data connection of the stream with this label.
    Data([u8; LABEL_BYTES]),
    /// A connection of rdpipe with another version.
    OtherVersion(u8),
    /// A connection of rdpipe for a purpose that this version does not know.
    Unknown,
    /// Another protocol.
    Foreign,
}

/// The opening of a control connection.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ControlOpening {
    /// The preamble and the id of the key.
    pub(crate) prologue: [u8; PROLOGUE_BYTES],
    /// Noise message 1.
    pub(crate) first: [u8; HANDSHAKE_BYTES],
}

impl ControlOpening {
    /// Returns the id of the key with which the dialer made its message.
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
