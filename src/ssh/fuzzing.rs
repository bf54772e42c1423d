//! Entry points of the fuzz targets, as in the transport: what arrives over ssh.

use super::{
    greeting::{Found, Greeting},
    protocol::{FromAgent, ToAgent, decode, encode},
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
    if let Ok(message) = decode::<FromAgent>(&rest) {
        let again = encode(&message).expect("what was understood can be said");
        assert_eq!(decode(&again), Ok(message));
    }
    if let Ok(message) = decode::<ToAgent>(&rest) {
        let again = encode(&message).expect("what was understood can be said");
        assert_eq!(decode(&again), Ok(message));
    }
}
