//! The bytes that an agent writes, from its greeting on, as they arrive in pieces.

use bytes::BytesMut;
use tokio_util::codec::Decoder;

use crate::ssh::protocol::{
    FromAgent, MAX_MESSAGE_BYTES, decode,
    frames::{FrameCodec, codec},
    greeting_scan::{Found, Greeting},
};

/// What was found in the bytes of an agent.
#[derive(Debug, Default, PartialEq)]
struct Findings {
    noise: Vec<String>,
    /// The version and the program of the greeting.
    greeting: Option<(u32, String)>,
    messages: Vec<Option<FromAgent>>,
    /// No more bytes are read.
    is_refused: bool,
}

/// Reads all of `data` but its first byte, once as a whole and once in pieces of as many bytes as the first byte says.
/// Both find the same lines, greeting and messages. Panics if they differ, or if more bytes are kept than one message
/// may have.
pub fn session(data: &[u8]) {
    let Some((&size, bytes)) = data.split_first() else {
        return;
    };
    let whole = find(bytes, bytes.len().max(1));
    let pieces = find(bytes, usize::from(size).max(1));
    assert_eq!(whole, pieces);
}

fn find(bytes: &[u8], size: usize) -> Findings {
    let mut found = Findings::default();
    let mut pieces = bytes.chunks(size);
    let Some(mut buffer) = find_greeting(&mut pieces, &mut found) else {
        return found;
    };
    let mut codec = codec();
    loop {
        take_messages(&mut codec, &mut buffer, &mut found);
        assert!(buffer.len() <= MAX_MESSAGE_BYTES + size + 5);
        match pieces.next() {
            Some(piece) if !found.is_refused => buffer.extend_from_slice(piece),
            _ => return found,
        }
    }
}

/// Reads up to the greeting. Returns the bytes behind it that were read as well.
fn find_greeting<'a>(
    pieces: &mut impl Iterator<Item = &'a [u8]>,
    found: &mut Findings,
) -> Option<BytesMut> {
    let mut scanner = Greeting::new("agent");
    loop {
        match scanner.next() {
            Found::Noise(line) => {
                assert!(!line.is_empty() && !line.contains('\n'));
                found.noise.push(line);
            }
            Found::Greeting { version, program } => {
                found.greeting = Some((version, program));
                return Some(BytesMut::from(&scanner.into_rest()[..]));
            }
            Found::NotYet => scanner.feed(pieces.next()?),
            Found::TooMuch => {
                found.is_refused = true;
                return None;
            }
        }
    }
}

fn take_messages(codec: &mut FrameCodec, buffer: &mut BytesMut, found: &mut Findings) {
    while !found.is_refused {
        match codec.decode(buffer) {
            Ok(Some(frame)) => {
                assert!(frame.len() <= MAX_MESSAGE_BYTES);
                let message = decode(&frame).ok();
                found.is_refused = message.is_none();
                found.messages.push(message);
            }
            Ok(None) => return,
            Err(_) => found.is_refused = true,
        }
    }
}
