//! One message that arrives over ssh.

use std::fmt::Debug;

use serde::{Serialize, de::DeserializeOwned};

use crate::ssh::{
    protocol::{
        Envelope, FromAgent, Payload, ToAgent, decode, encode,
        greeting_scan::{Found, Greeting},
    },
    stage::{FromStage, StageOrder, StageReport, ToStage},
};

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
