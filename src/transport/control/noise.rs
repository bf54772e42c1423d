//! The Noise handshake and the session keys that follow from it. Pure, no I/O.
//!
//! The pattern is `Noise_NNpsk0_25519_ChaChaPoly_BLAKE2s` (the Noise Protocol Framework, revision 34). Neither
//! end has an identity beyond the shared key. The key is mixed in before the first message, so an acceptor
//! answers only dialers that have the key. Both ends add a fresh key pair, so a key that leaks later does not
//! decrypt a recording. A replayed first message gets an answer, but its sender does not know the session keys:
//! only a message under those keys authenticates.

use snow::{Builder, HandshakeState, TransportState};
use zeroize::Zeroizing;

use super::{
    message::{MAX_MESSAGE_BYTES, Message},
    primitives::Primitives,
};
use crate::key::Key;

const PATTERN: &str = "Noise_NNpsk0_25519_ChaChaPoly_BLAKE2s";

/// The size of each of the two handshake messages: a public key and the tag of an empty payload.
pub(crate) const HANDSHAKE_BYTES: usize = 32 + 16;

/// The number of bytes that encryption adds to a message.
pub(crate) const TAG_BYTES: usize = 16;

/// The most bytes that one message can carry: Noise limits a message with its tag to 65,535 bytes.
#[cfg(feature = "cli")]
pub(crate) const MAX_PLAIN_BYTES: usize = 65_535 - TAG_BYTES;

/// The peer does not have the key, or the bytes are not a handshake.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the handshake does not verify")]
pub(crate) struct Unverified;

/// The dialing end, after its first message.
pub(crate) struct Initiator(HandshakeState);

impl Initiator {
    /// Starts a handshake; `prologue` is what both ends must have seen the same way before it.
    pub(crate) fn start(key: &Key, prologue: &[u8]) -> (Self, [u8; HANDSHAKE_BYTES]) {
        let mut state = builder(key, prologue).build_initiator().expect(COMPLETE);
        let mut first = [0; HANDSHAKE_BYTES];
        state.write_message(&[], &mut first).expect(FITS);
        (Self(state), first)
    }

    /// Finishes the handshake with the acceptor's reply.
    /// Fails when the reply was not made with the same key for this first message.
    pub(crate) fn finish(mut self, reply: &[u8]) -> Result<Session, Unverified> {
        self.0
            .read_message(reply, &mut [])
            .map_err(|_| Unverified)?;
        Ok(Session::new(self.0))
    }
}

/// Checks a dialer's first message. The check costs a few microseconds of hashing; the answer,
/// [`Responder::reply`], costs many times more.
/// Fails when the message was not made with the same key.
pub(crate) fn respond(key: &Key, prologue: &[u8], first: &[u8]) -> Result<Responder, Unverified> {
    let mut state = builder(key, prologue).build_responder().expect(COMPLETE);
    state.read_message(first, &mut []).map_err(|_| Unverified)?;
    Ok(Responder(state))
}

/// The accepting end, after it has verified the dialer's first message.
pub(crate) struct Responder(HandshakeState);

impl Responder {
    /// Makes the acceptor's reply and session, with two multiplications on the curve.
    pub(crate) fn reply(mut self) -> (Session, [u8; HANDSHAKE_BYTES]) {
        let mut reply = [0; HANDSHAKE_BYTES];
        self.0.write_message(&[], &mut reply).expect(FITS);
        (Session::new(self.0), reply)
    }
}

const COMPLETE: &str = "pattern, key and prologue are all that this pattern needs";
const FITS: &str = "an empty payload makes a message of exactly this size";

fn builder<'a>(key: &'a Key, prologue: &'a [u8]) -> Builder<'a> {
    let params = PATTERN.parse().expect("the pattern is one that snow knows");
    let builder = Builder::with_resolver(params, Box::new(Primitives))
        .psk(0, key.secret())
        .expect(COMPLETE);
    builder.prologue(prologue).expect(COMPLETE)
}

/// The keys of one connection after its handshake, both ways, with their message counters.
pub(crate) struct Session {
    keys: TransportState,
}

impl Session {
    fn new(state: HandshakeState) -> Self {
        Self {
            keys: state
                .into_transport_mode()
                .expect("both messages have been exchanged"),
        }
    }

    /// Encrypts one message, which becomes [`TAG_BYTES`] longer.
    pub(crate) fn seal(&mut self, message: &Message) -> Vec<u8> {
        // A few messages carry what keys come from.
        let plain = Zeroizing::new(message.encode());
        debug_assert!(plain.len() <= MAX_MESSAGE_BYTES, "{message:?}");
        let mut sealed = vec![0; plain.len() + TAG_BYTES];
        self.keys
            .write_message(&plain, &mut sealed)
            .expect("every message is below the limit");
        sealed
    }

    /// Decrypts one message.
    /// Fails when the bytes are not the peer's next message, or not a message of this version.
    pub(crate) fn open(&mut self, sealed: &[u8]) -> Result<Message, Unopened> {
        let plain = Zeroizing::new(self.open_bytes(sealed)?);
        Message::decode(&plain).map_err(|_| Unopened::Unintelligible)
    }

    /// Encrypts bytes, at most [`MAX_PLAIN_BYTES`].
    #[cfg(feature = "cli")]
    pub(crate) fn seal_bytes(&mut self, plain: &[u8]) -> Vec<u8> {
        let mut sealed = vec![0; plain.len() + TAG_BYTES];
        let length = self.keys.write_message(plain, &mut sealed);
        debug_assert_eq!(
            length.ok(),
            Some(sealed.len()),
            "the caller keeps the limit"
        );
        sealed
    }

    /// Decrypts what [`seal_bytes`](Self::seal_bytes) made at the other end.
    /// Fails when the bytes are not the peer's next message.
    pub(crate) fn open_bytes(&mut self, sealed: &[u8]) -> Result<Vec<u8>, Unopened> {
        let mut plain = vec![0; sealed.len()];
        let opened = self.keys.read_message(sealed, &mut plain);
        plain.truncate(opened.map_err(|_| Unopened::Damaged)?);
        Ok(plain)
    }
}

/// The reason why a message could not be opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{}", self.text())]
pub(crate) enum Unopened {
    /// The bytes are not the peer's next message.
    Damaged,
    /// The message is the peer's, and this version does not know it.
    Unintelligible,
}

impl Unopened {
    /// Returns the reason as a sentence.
    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::Damaged => "a control message does not verify",
            Self::Unintelligible => "this version cannot decode a control message",
        }
    }
}

/// The role of this end on the control connection. Two ends on one host have the same list of RDMA ports, so that only
/// the role distinguishes (first, second) from (second, first).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// The end that connected.
    Dialer,
    /// The end that was listening.
    Acceptor,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fresh() -> Key {
        Key::generate().unwrap().key().clone()
    }

    fn pair(ours: &Key, theirs: &Key) -> Result<(Session, Session), Unverified> {
        let (initiator, first) = Initiator::start(ours, b"prologue");
        let (acceptor, reply) = respond(theirs, b"prologue", &first)?.reply();
        Ok((initiator.finish(&reply)?, acceptor))
    }

    #[test]
    fn the_same_key_makes_a_session() {
        let key = fresh();
        let (mut dialer, mut acceptor) = pair(&key, &key).unwrap();
        let sealed = dialer.seal(&Message::FinAck);
        assert_eq!(acceptor.open(&sealed), Ok(Message::FinAck));
        assert_eq!(
            acceptor.open(&sealed),
            Err(Unopened::Damaged),
            "a repeated message"
        );
    }

    #[test]
    fn another_key_makes_none() {
        assert!(pair(&fresh(), &fresh()).is_err());
    }

    #[test]
    fn another_prologue_makes_none() {
        let key = fresh();
        let (_, first) = Initiator::start(&key, b"version 1");
        assert!(respond(&key, b"version 2", &first).is_err());
    }

    #[test]
    fn a_replayed_first_message_cannot_go_on() {
        let key = fresh();
        let (initiator, first) = Initiator::start(&key, b"");
        let (_, reply) = respond(&key, b"", &first).unwrap().reply();
        let mut recorded = initiator.finish(&reply).unwrap();
        let recorded_hello = recorded.seal(&Message::FinAck);
        let (mut replayed, _) = respond(&key, b"", &first).unwrap().reply();
        assert_eq!(replayed.open(&recorded_hello), Err(Unopened::Damaged));
    }
}
