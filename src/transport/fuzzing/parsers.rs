//! Each parser of bytes from the network.

use std::sync::OnceLock;

use bytes::BytesMut;
use tokio_util::codec::Decoder;

use crate::Key;
use crate::transport::{
    connect::preamble::{PREAMBLE_BYTES, Preamble},
    control::{
        codec::Codec,
        message::Message,
        noise::{self, HANDSHAKE_BYTES, Initiator},
    },
    data::frame::{Chain, HEADER_BYTES, Header},
};

/// A header that is decoded encodes to the same bytes, and a payload verifies only with the header that was made for it,
/// at the place that it was made for.
pub fn header(data: &[u8]) {
    let Some((header, payload)) = data.split_first_chunk::<HEADER_BYTES>() else {
        return;
    };
    if let Ok(parsed) = Header::decode(header) {
        assert_eq!(&parsed.encode(), header);
        let mut chain = Chain::new(parsed.digest);
        let before = chain;
        if chain.verify(&parsed, payload).is_err() {
            assert_eq!(chain, before);
        }
    }
    if !payload.is_empty() {
        let mut sender = Chain::new(1);
        let sealed = [sender.seal(0, payload), sender.seal(0, payload)];
        let mut receiver = Chain::new(1);
        assert_eq!(receiver.verify(&sealed[0], payload), Ok(()));
        let moved = Header {
            offset: sealed[1].offset,
            ..sealed[0]
        };
        assert!(receiver.verify(&moved, payload).is_err());
        assert_eq!(receiver.verify(&sealed[1], payload), Ok(()));
        assert_eq!(receiver, sender);
    }
}

/// A message that is decoded can be encoded again, and its texts can be printed on a terminal.
pub fn control(data: &[u8]) {
    let Ok(message) = Message::decode(data) else {
        return;
    };
    if let Message::Abort { reason, .. } = &message {
        assert!(!reason.chars().any(char::is_control));
    }
    assert_eq!(Message::decode(&message.encode()).as_ref(), Ok(&message));
}

/// A peer without the key gets no session, neither as dialer, nor as acceptor, nor later on the encrypted connection.
pub fn handshake(data: &[u8]) {
    let key = key();
    if let Some(preamble) = data.first_chunk::<PREAMBLE_BYTES>() {
        let _ = Preamble::decode(*preamble);
    }
    let first = &data[..data.len().min(HANDSHAKE_BYTES)];
    assert!(noise::respond(key, b"", first).is_err());
    assert!(Initiator::start(key, b"").0.finish(data).is_err());
    let mut buffer = BytesMut::from(data);
    let mut codec = codec(key);
    while let Ok(Some(message)) = codec.decode(&mut buffer) {
        panic!("{message:?} was forged");
    }
}

fn key() -> &'static Key {
    static KEY: OnceLock<Key> = OnceLock::new();
    KEY.get_or_init(|| Key::generate().expect("random numbers").key().clone())
}

/// Returns the acceptor's codec after a successful handshake.
fn codec(key: &Key) -> Codec {
    let (_, first) = Initiator::start(key, b"");
    let (session, _) = noise::respond(key, b"", &first)
        .expect("the same key")
        .reply();
    Codec(session)
}
