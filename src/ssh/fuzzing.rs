//! Entry points of the fuzz targets, as in the transport: what arrives over ssh.

use std::fmt::Debug;

use serde::{Serialize, de::DeserializeOwned};

use super::{
    protocol::{
        Envelope, FromAgent, Payload, ToAgent, decode, encode,
        greeting_scan::{Found, Greeting},
    },
    stage::{FromStage, StageOrder, StageReport, ToStage},
};

/// Whatever a login shell and an agent say is taken apart in bounded time, and a message that is
/// understood can be said again.
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

/// A message that is decoded is encoded to the same. Returns the application's message inside.
fn message<T: Envelope + Debug + PartialEq>(bytes: &[u8]) -> Option<Payload> {
    let message = decode::<T>(bytes).ok()?;
    let again = encode(&message).expect("what was decoded can be encoded");
    let payload = message.payload().cloned();
    assert_eq!(decode(&again), Ok(message));
    payload
}

/// An application's message that is decoded is encoded to the same.
fn application<T: Serialize + DeserializeOwned + Debug + PartialEq>(payload: &Payload) {
    if let Ok(message) = payload.decode::<T>() {
        let again = Payload::encode(&message).expect("what was decoded can be encoded");
        assert_eq!(again.decode(), Ok(message));
    }
}
