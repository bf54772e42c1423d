//! Control messages on a TCP connection: each is a length of two bytes, then one Noise message.

use std::io;

use bytes::{Buf, BufMut, BytesMut};
use tokio::net::TcpStream;
use tokio_util::codec::{Decoder, Encoder, Framed};

use super::{
    message::Message,
    noise::{Session, TAG_BYTES, Unopened},
};

/// The size of the length field of each message, which is big-endian as in Noise's examples.
const LENGTH_BYTES: usize = 2;

/// The encrypted control connection.
pub(crate) type Control = Framed<TcpStream, Codec>;

/// Encrypts and decrypts the control connection.
pub(crate) struct Codec(pub(crate) Session);

/// The reason why a control connection cannot be used any more.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ControlError {
    /// The TCP connection failed.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// A message could not be opened.
    #[error(transparent)]
    Unopened(#[from] Unopened),
}

impl From<ControlError> for io::Error {
    fn from(error: ControlError) -> Self {
        match error {
            ControlError::Io(error) => error,
            ControlError::Unopened(unopened) => Self::new(io::ErrorKind::InvalidData, unopened),
        }
    }
}

/// Returns the error of a connection that ends where a message is due.
pub(crate) fn closed() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "closed by the other end")
}

impl Decoder for Codec {
    type Item = Message;
    type Error = ControlError;

    fn decode(&mut self, buffer: &mut BytesMut) -> Result<Option<Message>, ControlError> {
        match next_sealed(buffer)? {
            Some(sealed) => Ok(Some(self.0.open(&sealed)?)),
            None => Ok(None),
        }
    }

    /// Treats a connection that ends inside a message as one that ends: the peer is gone.
    fn decode_eof(&mut self, buffer: &mut BytesMut) -> Result<Option<Message>, ControlError> {
        self.decode(buffer)
    }
}

impl Encoder<Message> for Codec {
    type Error = ControlError;

    fn encode(&mut self, message: Message, buffer: &mut BytesMut) -> Result<(), ControlError> {
        put_sealed(&self.0.seal(&message), buffer);
        Ok(())
    }
}

/// Takes the next encrypted message from the front of `buffer`, if all of it has arrived.
///
/// # Errors
///
/// When the length before it is that of no message.
pub(crate) fn next_sealed(buffer: &mut BytesMut) -> Result<Option<BytesMut>, Unopened> {
    if buffer.len() < LENGTH_BYTES {
        return Ok(None);
    }
    let length = usize::from(u16::from_be_bytes([buffer[0], buffer[1]]));
    if length < TAG_BYTES {
        return Err(Unopened::Damaged);
    }
    if buffer.len() < LENGTH_BYTES + length {
        buffer.reserve(LENGTH_BYTES + length - buffer.len());
        return Ok(None);
    }
    buffer.advance(LENGTH_BYTES);
    Ok(Some(buffer.split_to(length)))
}

/// Appends an encrypted message with its length before it.
pub(crate) fn put_sealed(sealed: &[u8], buffer: &mut BytesMut) {
    let length = u16::try_from(sealed.len()).expect("a Noise message is shorter than that");
    buffer.put_u16(length);
    buffer.extend_from_slice(sealed);
}
