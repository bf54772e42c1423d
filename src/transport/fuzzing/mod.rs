//! The entry points of the fuzz targets. They are compiled only for fuzzing and tests, stand above all layers, and no layer uses
//! them.
//!
//! Each function must return for any bytes, and checks the promise that its doc comment makes.

#[cfg(test)]
mod lost_rail;
mod stream;

use std::sync::OnceLock;

use bytes::BytesMut;
use tokio::runtime::Builder;
use tokio_util::codec::Decoder;

#[cfg(feature = "rdma")]
use crate::transport::{connect::share_without_halves, rdma::fuzzing};
use crate::{
    Key,
    transport::{
        connect::preamble::{PREAMBLE_BYTES, Preamble},
        control::{
            connection::Codec,
            message::Message,
            noise::{self, HANDSHAKE_BYTES, Initiator, Role},
            seal::{Cipher, StreamSeal, Way},
        },
        data::frame::{Chain, HEADER_BYTES, Header},
    },
};

pub use stream::stream;

/// Runs `play` to its end on a runtime of its own, and returns its result.
///
/// Dropping the runtime frees every task and every socket that `play` leaves behind. A runtime that all executions
/// shared would keep them: it runs tasks, and frees the registrations of closed sockets, only while a future waits.
pub(crate) fn run<T>(play: impl Future<Output = T>) -> T {
    let runtime = Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(play)
}

/// Reads bytes as numbers and pieces. At the end of the bytes there are no more decisions.
pub(crate) struct FuzzScript<'a>(&'a [u8]);

impl<'a> FuzzScript<'a> {
    /// Returns a script that reads `bytes` from their beginning.
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// Returns the next byte; none at the end.
    pub(crate) fn byte(&mut self) -> Option<u8> {
        let (&first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(first)
    }

    /// Returns a number below `end`, which must not be 0; at the end of the bytes, 0.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        usize::from(self.byte().unwrap_or(0)) % end
    }

    /// Returns true or false; at the end of the bytes, false.
    pub(crate) fn flag(&mut self) -> bool {
        self.below(2) == 1
    }

    /// Returns a number of 16 bits; at the end of the bytes, 0.
    pub(crate) fn number(&mut self) -> u16 {
        u16::from_le_bytes([self.byte().unwrap_or(0), self.byte().unwrap_or(0)])
    }

    /// Returns a piece: its length in one byte, then its bytes, as many as there are.
    pub(crate) fn piece(&mut self) -> &'a [u8] {
        let count = usize::from(self.byte().unwrap_or(0)).min(self.0.len());
        let (piece, rest) = self.0.split_at(count);
        self.0 = rest;
        piece
    }
}

/// A header that is decoded encodes to the same bytes, and a payload verifies only with the header that was made for
/// it, at the place that it was made for.
pub fn header(data: &[u8]) {
    let Some((header, payload)) = data.split_first_chunk::<HEADER_BYTES>() else {
        return;
    };
    if let Ok(parsed) = Header::decode(header) {
        assert_eq!(&parsed.encode(), header);
        for cipher in GUARDS {
            let [mut chain, untouched] = [(); 2].map(|()| fuzz_chain(cipher));
            if chain.open(&parsed, &mut payload.to_vec()).is_err() {
                assert_eq!(chain.digest(), untouched.digest());
            }
        }
    }
    if !payload.is_empty() {
        for cipher in GUARDS {
            seal_and_open(payload, cipher);
        }
    }
}

/// What protects chunks: a digest, and each cipher.
const GUARDS: [Option<Cipher>; 3] = [
    None,
    Some(Cipher::Aes256Gcm),
    Some(Cipher::ChaCha20Poly1305),
];

fn fuzz_chain(cipher: Option<Cipher>) -> Chain {
    Chain::new(StreamSeal::of_seed(1, Role::Dialer, cipher).guard(Way::Out))
}

/// Seals a payload twice: each chunk opens at its own place, and nowhere else.
fn seal_and_open(payload: &[u8], cipher: Option<Cipher>) {
    let [mut sender, mut receiver] = [(); 2].map(|()| fuzz_chain(cipher));
    let mut sealed = [(); 2].map(|()| {
        let mut bytes = payload.to_vec();
        (sender.seal(0, &mut bytes), bytes)
    });
    let [(first, opened), (second, bytes)] = &mut sealed;
    assert_eq!(receiver.open(first, opened), Ok(()));
    assert_eq!(opened, payload);
    let moved = Header {
        offset: second.offset,
        ..*first
    };
    assert!(receiver.open(&moved, &mut bytes.clone()).is_err());
    assert_eq!(receiver.open(second, bytes), Ok(()));
    assert_eq!(bytes, payload);
    assert_eq!(receiver.digest(), sender.digest());
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
    if let Ok(Some(message)) = codec.decode(&mut buffer) {
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
    Codec::new(session)
}

/// Reads `data` as a dialer's ports, an acceptor's pairs of ports, a part of a link, or the steps of a renewal: the
/// first byte chooses one of them. Each is refused or leads to a plan that this end allows.
#[cfg(feature = "rdma")]
pub fn rdma(data: &[u8]) {
    let Some((kind, rest)) = data.split_first() else {
        return;
    };
    match kind % 4 {
        0 => fuzzing::offer(rest),
        1 => fuzzing::proposal(rest),
        2 => fuzzing::part(rest),
        _ => run(async {
            fuzzing::renewal(&share_without_halves(), &mut FuzzScript::new(rest));
        }),
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use super::*;

    /// A frame that opens leads the fuzzer behind the check of the tag.
    #[test]
    fn the_seeds_of_sealed_frames_open() {
        let seeds = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/seeds/header");
        for cipher in [Cipher::Aes256Gcm, Cipher::ChaCha20Poly1305] {
            let name = format!("sealed-{}", cipher.to_string().to_lowercase());
            let seed = fs::read(seeds.join(&name)).expect("a seed");
            let (header, payload) = seed.split_first_chunk().expect("a header");
            let header = Header::decode(header).expect("a whole header");
            let mut payload = payload.to_vec();
            let opened = fuzz_chain(Some(cipher)).open(&header, &mut payload);
            assert_eq!(opened, Ok(()), "{name}");
            assert_eq!(payload, b"hello, world\n");
        }
    }
}
