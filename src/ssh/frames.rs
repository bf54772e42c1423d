//! The frames that separate the messages of a session, and the greeting of an agent in the output of a login shell.
//! Pure, no I/O.
//!
//! A frame is a length (u32, big-endian), a message, and a newline. A program between the two ends may pass on whole
//! lines only, as `srun` does: the newline makes it pass on the frame at once.

use std::io;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use tokio_util::codec::{Decoder, Encoder, LengthDelimitedCodec};

use super::protocol::{self, MAX_MESSAGE_BYTES};

/// Returns the codec for the frames between controller and agent.
pub(crate) fn codec() -> FrameCodec {
    FrameCodec {
        lengths: LengthDelimitedCodec::builder()
            .max_frame_length(MAX_MESSAGE_BYTES)
            .new_codec(),
        expects_newline: false,
    }
}

/// Encodes and decodes the frames between controller and agent.
#[derive(Debug)]
pub(crate) struct FrameCodec {
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

/// The most bytes that are skipped before the greeting. More output comes from another program, not from a profile.
const MAX_NOISE_BYTES: usize = 64 << 10;

/// Finds the line with which the peer begins.
#[derive(Debug)]
pub(crate) struct Greeting {
    role: &'static str,
    buffer: Vec<u8>,
    skipped: usize,
}

/// What stands next in the bytes that a peer has sent.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// A line that a profile printed. Empty lines are left out.
    Noise(String),
    /// The greeting. [`Greeting::into_rest`] returns the bytes after it.
    Greeting { version: u32, program: String },
    /// More bytes are needed.
    NotYet,
    /// More than 64 KiB arrived without a greeting.
    TooMuch,
}

impl Greeting {
    /// Returns a scanner for the greeting of `role`: "agent" or "controller".
    pub(crate) fn new(role: &'static str) -> Self {
        Self {
            role,
            buffer: Vec::new(),
            skipped: 0,
        }
    }

    /// Adds bytes that have arrived.
    pub(crate) fn feed(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// Returns what stands next in the bytes that have arrived.
    pub(crate) fn next(&mut self) -> Found {
        loop {
            let Some(end) = self.buffer.iter().position(|&byte| byte == b'\n') else {
                let long = self.skipped + self.buffer.len() > MAX_NOISE_BYTES;
                return if long { Found::TooMuch } else { Found::NotYet };
            };
            let line: Vec<u8> = self.buffer.drain(..=end).collect();
            self.skipped += line.len();
            let line = String::from_utf8_lossy(&line);
            if let Some((version, program)) = protocol::parse_greeting(&line, self.role) {
                let program = program.to_owned();
                return Found::Greeting { version, program };
            }
            if self.skipped > MAX_NOISE_BYTES {
                return Found::TooMuch;
            }
            if !line.trim_end().is_empty() {
                return Found::Noise(line.trim_end().to_owned());
            }
        }
    }

    /// Returns the bytes that were fed and not used: those after the greeting.
    pub(crate) fn into_rest(self) -> Vec<u8> {
        self.buffer
    }
}

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

    fn find(bytes: &[u8]) -> (Vec<String>, Option<(u32, String)>, Vec<u8>) {
        let mut greeting = Greeting::new("agent");
        greeting.feed(bytes);
        let mut noise = Vec::new();
        loop {
            match greeting.next() {
                Found::Noise(line) => noise.push(line),
                Found::Greeting { version, program } => {
                    return (noise, Some((version, program)), greeting.into_rest());
                }
                Found::NotYet | Found::TooMuch => return (noise, None, greeting.into_rest()),
            }
        }
    }

    #[test]
    fn lines_of_a_profile_are_skipped_and_shown() {
        let text = format!("Welcome!\n\nunfinished{}\0\0", protocol::greeting("agent"));
        let (noise, found, rest) = find(text.as_bytes());
        assert_eq!(noise, ["Welcome!", "unfinished"]);
        let program = env!("CARGO_PKG_VERSION").to_owned();
        assert_eq!(found, Some((protocol::VERSION, program)));
        assert_eq!(rest, b"\0\0");
    }

    #[test]
    fn the_greeting_of_another_version_is_recognised() {
        let (_, found, _) = find(b"\nrdpipe-agent 77 9.1.0\n");
        assert_eq!(found, Some((77, "9.1.0".to_owned())));
        assert_eq!(find(b"rdpipe-controller 1 0.1.0\n").1, None);
    }

    #[test]
    fn a_profile_that_prints_without_end_is_refused() {
        let mut greeting = Greeting::new("agent");
        let line = "x".repeat(1000) + "\n";
        for _ in 0..66 {
            greeting.feed(line.as_bytes());
        }
        let last =
            std::iter::from_fn(|| Some(greeting.next())).find(|f| !matches!(f, Found::Noise(_)));
        assert_eq!(last, Some(Found::TooMuch));

        let mut greeting = Greeting::new("agent");
        greeting.feed(&vec![b'x'; MAX_NOISE_BYTES + 1]);
        assert_eq!(greeting.next(), Found::TooMuch);
    }

    proptest! {
        #[test]
        fn a_greeting_that_arrives_in_pieces_is_found(noise in "[a-z\n]{0,100}", rest: Vec<u8>, size in 1..20_usize) {
            let mut bytes = noise.into_bytes();
            bytes.extend_from_slice(protocol::greeting("agent").as_bytes());
            bytes.extend_from_slice(&rest);
            let whole = find(&bytes);
            prop_assert_eq!(&whole.2, &rest);
            let mut greeting = Greeting::new("agent");
            let mut left = bytes.chunks(size);
            let found = loop {
                match greeting.next() {
                    Found::NotYet => greeting.feed(left.next().unwrap()),
                    Found::Noise(_) => {}
                    found => break found,
                }
            };
            prop_assert!(matches!(found, Found::Greeting { .. }), "{:?}", found);
        }
    }
}
