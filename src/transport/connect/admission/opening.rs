//! The first bytes of a connection that was accepted: those that its dialer sends before it waits for an answer.

use std::io;

use rustix::{
    io::Errno,
    net::{RecvFlags, recv},
};
use tokio::{io::AsyncReadExt, net::TcpStream};

use crate::transport::{
    connect::{
        data_proof::LABEL_BYTES,
        preamble::{PREAMBLE_BYTES, Preamble, PreambleKind},
    },
    control::noise::HANDSHAKE_BYTES,
    data::frame::PROTOCOL_VERSION,
};

/// The first bytes of a connection, as far as they have arrived.
pub(crate) struct Opening {
    bytes: [u8; PREAMBLE_BYTES + HANDSHAKE_BYTES],
    have: usize,
}

/// What the first bytes of a connection are.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum OpeningKind {
    /// A control connection: the preamble, and Noise message 1.
    Control([u8; PREAMBLE_BYTES], [u8; HANDSHAKE_BYTES]),
    /// The data connection of the stream with this label.
    Data([u8; LABEL_BYTES]),
    /// A connection of rdpipe with another version.
    OtherVersion(u8),
    /// A connection of rdpipe for a purpose that this version does not know.
    Unknown,
    /// Another protocol.
    Foreign,
}

impl Opening {
    pub(crate) fn new() -> Self {
        Self {
            bytes: [0; PREAMBLE_BYTES + HANDSHAKE_BYTES],
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
        let (preamble, rest) = self.split();
        let Some(Preamble { version, kind }) = Preamble::decode(*preamble) else {
            return OpeningKind::Foreign;
        };
        match kind {
            _ if version != PROTOCOL_VERSION => OpeningKind::OtherVersion(version),
            Some(PreambleKind::Control) => OpeningKind::Control(*preamble, *rest),
            Some(PreambleKind::Data) => {
                OpeningKind::Data(*rest.first_chunk().expect("a label is shorter"))
            }
            _ => OpeningKind::Unknown,
        }
    }

    fn split(&self) -> (&[u8; PREAMBLE_BYTES], &[u8; HANDSHAKE_BYTES]) {
        let (preamble, rest) = self.bytes.split_first_chunk().expect("it begins with one");
        (preamble, rest.try_into().expect("its other part"))
    }

    /// Returns the number of bytes that are still missing, as far as the bytes that have arrived tell.
    fn missing(&self) -> usize {
        needed(&self.bytes, self.have) - self.have
    }
}

/// Returns the size of the opening that begins with the first `have` of `bytes`. No byte beyond it is read: what follows
/// belongs to others.
fn needed(bytes: &[u8], have: usize) -> usize {
    let preamble = bytes.first_chunk().expect("there is room for one");
    match Preamble::decode(*preamble) {
        _ if have < PREAMBLE_BYTES => PREAMBLE_BYTES,
        Some(Preamble {
            version: PROTOCOL_VERSION,
            kind: Some(PreambleKind::Control),
        }) => PREAMBLE_BYTES + HANDSHAKE_BYTES,
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
        assert_eq!(opening(&control).missing(), HANDSHAKE_BYTES);
        assert_eq!(opening(&data).missing(), LABEL_BYTES);
        assert_eq!(opening(b"GET / HT").missing(), 0);
        assert_eq!(opening(b"RDPIPE\xffC").missing(), 0);
    }

    #[test]
    fn every_purpose_is_told_apart() {
        let control = [
            &Preamble::encode(PreambleKind::Control)[..],
            &[7; HANDSHAKE_BYTES],
        ];
        let data = [&Preamble::encode(PreambleKind::Data)[..], &[7; LABEL_BYTES]];
        let preamble = Preamble::encode(PreambleKind::Control);
        let kinds = [
            (
                control.concat(),
                OpeningKind::Control(preamble, [7; HANDSHAKE_BYTES]),
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
