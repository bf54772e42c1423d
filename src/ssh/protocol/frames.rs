//! The frames that separate the messages of a session.
//!
//! A frame is a length (u32, big-endian), a message, and a newline. A program between the two ends may pass on whole
//! lines only, as `srun` does: the newline makes it pass on the frame at once.

use std::io;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use tokio_util::codec::{Decoder, Encoder, LengthDelimitedCodec};

use super::MAX_MESSAGE_BYTES;

/// Returns the codec for the frames between controller and agent.
pub(in crate::ssh) fn codec() -> FrameCodec {
    FrameCodec {
        lengths: LengthDelimitedCodec::builder()
            .max_frame_length(MAX_MESSAGE_BYTES)
            .new_codec(),
        expects_newline: false,
    }
}

/// Encodes and decodes the frames between controller and agent.
#[derive(Debug)]
pub(in crate::ssh) struct FrameCodec {
    lengths: LengthDelimitedCodec,
    /// The newline of the last frame has not arrived yet.
    expects_newline: bool,
}

impl Decoder for FrameCodec {
    type Item = BytesMut;
    type Error = io::Error;

    /// Returns a message as soon as all of it has arrived. Its newline is skipped before the next message.
    fn decode(&mut self, buffer: &mut BytesMut) -> io::Result<Option<BytesMut>> {
        if self.expects_newline {
            match buffer.first() {
                None => return Ok(None),
                Some(b'\n') => buffer.advance(1),
                Some(_) => return Err(io::Error::new(io::ErrorKind::InvalidData, NO_NEWLINE)),
            }
            self.expects_newline = false;
        }
        let message = self.lengths.decode(buffer)?;
        self.expects_newline = message.is_some();
        Ok(message)
    }
}

impl Encoder<Bytes> for FrameCodec {
    type Error = io::Error;

    fn encode(&mut self, message: Bytes, buffer: &mut BytesMut) -> io::Result<()> {
        self.lengths.encode(message, buffer)?;
        buffer.put_u8(b'\n');
        Ok(())
    }
}

const NO_NEWLINE: &str = "a frame without a newline behind it";

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn encoded(messages: &[Vec<u8>]) -> BytesMut {
        let mut buffer = BytesMut::new();
        for message in messages {
            codec()
                .encode(Bytes::from(message.clone()), &mut buffer)
                .unwrap();
        }
        buffer
    }

    #[test]
    fn every_frame_ends_a_line() {
        assert_eq!(&encoded(&[b"ab".to_vec()])[..], b"\0\0\0\x02ab\n");
        assert_eq!(&encoded(&[Vec::new()])[..], b"\0\0\0\0\n");
    }

    #[test]
    fn a_message_does_not_wait_for_its_newline() {
        let mut codec = codec();
        let mut buffer = BytesMut::from(&b"\0\0\0\x02ab"[..]);
        assert_eq!(codec.decode(&mut buffer).unwrap().unwrap(), "ab");
        assert_eq!(codec.decode(&mut buffer).unwrap(), None);
        buffer.extend_from_slice(b"\n\0\0\0\x01c\n");
        assert_eq!(codec.decode(&mut buffer).unwrap().unwrap(), "c");
        assert_eq!(codec.decode_eof(&mut buffer).unwrap(), None);
    }

    #[test]
    fn a_frame_without_its_newline_is_refused() {
        let mut codec = codec();
        let mut buffer = BytesMut::from(&b"\0\0\0\x02ab\0\0\0\x01c"[..]);
        assert!(codec.decode(&mut buffer).unwrap().is_some());
        let error = codec.decode(&mut buffer).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    }

    proptest! {
        #[test]
        fn messages_that_arrive_in_pieces_are_found(messages: Vec<Vec<u8>>, size in 1..20_usize) {
            let mut codec = codec();
            let mut buffer = BytesMut::new();
            let mut found = Vec::new();
            for piece in encoded(&messages).chunks(size) {
                buffer.extend_from_slice(piece);
                while let Some(message) = codec.decode(&mut buffer).unwrap() {
                    found.push(message.to_vec());
                }
            }
            prop_assert_eq!(found, messages);
        }
    }
}
