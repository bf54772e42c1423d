//! The entry points of the fuzz targets for what other hosts send over ssh. They are compiled only for fuzzing.
//!
//! | file | what is fuzzed |
//! |---|---|
//! | `pipeline` | the decisions of the controller, when the agents send any messages |
//!
//! Those of the agent are in `agent/fuzzing.rs`.

mod pipeline;

use std::fmt::Debug;

use bytes::BytesMut;
use serde::{Serialize, de::DeserializeOwned};
use tokio_util::codec::Decoder;

use crate::ssh::{
    protocol::{
        Envelope, FromAgent, MAX_MESSAGE_BYTES, Payload, ToAgent, decode, encode,
        frames::{Found, FrameCodec, Greeting, codec},
    },
    stage::{FromStage, StageOrder, StageReport, ToStage},
};

pub use pipeline::pipeline;

pub use super::agent::fuzzing::{controller, proc_stat};

/// Decodes `data` as the output of a login shell and of an agent. Panics if a message that was decoded cannot be
/// encoded and decoded again.
pub fn agent_messages(data: &[u8]) {
    let mut greeting = Greeting::new("agent");
    greeting.feed(data);
    let rest = loop {
        match greeting.next() {
            Found::Noise(line) => assert!(!line.is_empty() && !line.contains('\n')),
            Found::Greeting { .. } => break greeting.into_rest(),
            Found::NotYet | Found::TooMuch => break data.to_vec(),
        }
    };
    if let Some(payload) = message::<FromAgent>(&rest) {
        application::<FromStage>(&payload);
        application::<StageReport>(&payload);
    }
    if let Some(payload) = message::<ToAgent>(&rest) {
        application::<ToStage>(&payload);
        application::<StageOrder>(&payload);
    }
}

/// Decodes a message of the envelope, encodes it, and panics if the result decodes to another message. Returns the
/// application's message inside it.
fn message<T: Envelope + Debug + PartialEq>(bytes: &[u8]) -> Option<Payload> {
    let message = decode::<T>(bytes).ok()?;
    let again = encode(&message).expect("what was decoded can be encoded");
    let payload = message.payload().cloned();
    assert_eq!(decode(&again), Ok(message));
    payload
}

/// Decodes an application's message, encodes it, and panics if the result decodes to another message.
fn application<T: Serialize + DeserializeOwned + Debug + PartialEq>(payload: &Payload) {
    if let Ok(message) = payload.decode::<T>() {
        let again = Payload::encode(&message).expect("what was decoded can be encoded");
        assert_eq!(again.decode(), Ok(message));
    }
}

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
