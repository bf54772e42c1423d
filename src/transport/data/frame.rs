//! The frames of the data path: header, digests, and the rule of credits. Pure, no I/O.
//!
//! A chunk travels as one frame, header and payload side by side, into one slot of the receiver:
//!
//! | bytes    | field   | meaning                                                        |
//! |----------|---------|----------------------------------------------------------------|
//! | 0..4     | length  | payload bytes, 1 to the chunk size agreed on                   |
//! | 4..8     | slot    | the receiver's slot this frame was written to                  |
//! | 8..16    | offset  | bytes of this direction before the payload                     |
//! | 16..24   | digest  | the digest of the payload; 0 if the payload is sealed          |
//! | 24..40   | tag     | the tag of a sealed payload; zero if the payload is not sealed |
//! | 40..48   | follows | the end of the chunk before it on this rail                    |
//! | 48..120  |         | zero: see [`HEADER_BYTES`]                                     |
//! | 120..128 | check   | xxh3-64 of bytes 0..120, so that a damaged length is detected  |
//!
//! All integers are little-endian.
//!
//! # The chain
//!
//! The payload is sealed with a cipher, or carries a digest ([`seal`](crate::transport::control::seal)): a tag or a digest depends on the
//! payload, the offset and the direction alone, so chunks can be opened in any order and in parallel. The
//! [chain](Chain) is a digest over the tags or digests, in the order of the chunks. The FIN carries its end, so that a
//! chunk which was left out or taken twice is found even if every other check fails to find it. The chain of an empty
//! stream is 0. Each rail of a stream has a chain: its offsets only grow, the bytes between two of its chunks travel on
//! other rails, and the FIN carries the digest over the ends of all chains. Each header says where the chunk before it
//! on its rail ends. So the receiver knows of any chunk whether it is the next one of its rail, and a chunk that is
//! missing or early is found at once. No tag covers that field: a wrong value only makes the receiver refuse the chunk.
//!
//! # Credits
//!
//! The receiver grants slots by number over the control connection ([`Message::Credit`]); the
//! sender writes a slot only against such a grant and names it in the header. A slot is granted
//! again only after it has been read. Credits not yet sent are held back only while
//! the sender still has half of the pool (see [`credit_batch`]), so whenever a slot is free
//! and the sender has none, a grant is on its way: the two ends cannot wait for each other.
//!
//! [`Message::Credit`]: crate::transport::control::message::Message::Credit

use rdpipe_digest::{xxh3_64, xxh3_64_with_seed};

use crate::transport::control::seal::{Guard, Mark, TAG_BYTES, WrongMark};

/// The size of a header, in bytes.
///
/// It is larger than its fields, because that makes copies fast. A source's data begins where a page does, in the page
/// cache or in a pipe. If the copy begins up to some 100 bytes further into its own page, the processor mistakes each
/// store for the source of the loads that follow ("4K aliasing"). The copy then takes two to three times as long: 5.6
/// instead of 16 GB/s with 32 bytes of header, measured out of a tmpfs.
pub(crate) const HEADER_BYTES: usize = 128;

/// The number of bytes that the check covers: all but the check itself.
const CHECKED_BYTES: usize = HEADER_BYTES - size_of::<u64>();

/// Returns how many slots the receiver may hold back before it must grant them: half of the pool. So there are two
/// control messages for each pool's worth of data, and the sender, which still has the other half, does not wait for
/// one.
pub(crate) fn credit_batch(depth: usize) -> usize {
    (depth / 2).max(1)
}

/// The header of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header {
    /// The number of payload bytes.
    pub(crate) length: u32,
    /// The number of the receiver's slot.
    pub(crate) slot: u32,
    /// The number of bytes of this direction before the payload.
    pub(crate) offset: u64,
    /// The digest of the payload, or its tag.
    pub(crate) mark: Mark,
    /// The end of the chunk before it on this rail: `offset`, unless other rails carry bytes between the two.
    pub(crate) follows: u64,
}

/// How bytes that arrived differ from what was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Damage {
    /// The check of the header does not match.
    Header,
    /// The digest of the payload does not match.
    Payload,
    /// The tag of the sealed payload does not match.
    Seal,
    /// The header is valid, but it is not the next one.
    Order,
    /// All bytes have arrived, but the end of the chain is not that of the FIN.
    Whole,
    /// More bytes arrived than the FIN announced.
    Excess,
}

impl Damage {
    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::Header => "a chunk's header does not match its check",
            Self::Payload => "a chunk does not match its digest",
            Self::Seal => "a chunk does not match its tag",
            Self::Order => "a chunk came out of order",
            Self::Whole => "the stream does not match the digest in its FIN",
            Self::Excess => "more bytes came than the FIN announced",
        }
    }
}

impl Header {
    pub(crate) fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[0..4].copy_from_slice(&self.length.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.slot.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.offset.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.mark.digest.to_le_bytes());
        bytes[24..24 + TAG_BYTES].copy_from_slice(&self.mark.tag);
        bytes[40..48].copy_from_slice(&self.follows.to_le_bytes());
        let check = xxh3_64(&bytes[..CHECKED_BYTES]);
        bytes[CHECKED_BYTES..].copy_from_slice(&check.to_le_bytes());
        bytes
    }

    /// Decodes a header.
    /// Fails with [`Damage::Header`] unless the bytes are exactly the encoding of their fields. No field of a damaged
    /// header is valid.
    pub(crate) fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<Self, Damage> {
        let header = Self {
            length: word(bytes, 0),
            slot: word(bytes, 4),
            offset: long(bytes, 8),
            mark: Mark {
                digest: long(bytes, 16),
                tag: std::array::from_fn(|i| bytes[24 + i]),
            },
            follows: long(bytes, 40),
        };
        if header.encode() == *bytes {
            Ok(header)
        } else {
            Err(Damage::Header)
        }
    }

    /// Returns the number of bytes of this direction up to the end of the payload.
    pub(crate) fn end(&self) -> u64 {
        self.offset.saturating_add(u64::from(self.length))
    }

    /// Returns the size of the whole frame.
    pub(crate) fn frame_bytes(&self) -> usize {
        HEADER_BYTES + self.length as usize
    }
}

fn word(bytes: &[u8; HEADER_BYTES], at: usize) -> u32 {
    u32::from_le_bytes(std::array::from_fn(|i| bytes[at + i]))
}

fn long(bytes: &[u8; HEADER_BYTES], at: usize) -> u64 {
    u64::from_le_bytes(std::array::from_fn(|i| bytes[at + i]))
}

/// The offset of one direction, what protects its chunks, and the digest over their tags or digests. Sender and receiver
/// each keep a chain; the two are equal as long as every byte arrives.
pub(crate) struct Chain {
    guard: Guard,
    offset: u64,
    digest: u64,
    /// Other rails carry bytes of this direction too.
    has_gaps: bool,
}

impl Chain {
    /// Returns the chain before the first chunk.
    pub(crate) fn new(guard: Guard) -> Self {
        Self {
            guard,
            offset: 0,
            digest: 0,
            has_gaps: false,
        }
    }

    /// Returns the chain before the first chunk of one of several rails.
    pub(crate) fn with_gaps(guard: Guard) -> Self {
        Self {
            has_gaps: true,
            ..Self::new(guard)
        }
    }

    /// Returns a chain that continues at `offset`, without the digest of what came before.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn at(guard: Guard, offset: u64) -> Self {
        Self {
            offset,
            ..Self::new(guard)
        }
    }

    /// Returns the end of the last chunk: without gaps, the number of bytes so far.
    pub(crate) fn offset(&self) -> u64 {
        self.offset
    }

    /// Returns the digest over the chunks so far, which depends on every byte so far.
    pub(crate) fn digest(&self) -> u64 {
        self.digest
    }

    /// Makes the header for the next payload, which has 1 to `u32::MAX` bytes, and seals the payload in place if the
    /// stream is encrypted. `offset` bytes of the direction are before it; other rails carry those behind the end of the
    /// last chunk. The payload must not be read or changed after that: it is sent as it is, and again if it is lost.
    pub(crate) fn seal_at(&mut self, offset: u64, slot: u32, payload: &mut [u8]) -> Header {
        assert!(
            self.may_go_on_at(offset),
            "a rail goes back or leaves a gap"
        );
        let length = u32::try_from(payload.len()).expect("a chunk is at most 64 MiB");
        let header = Header {
            length,
            slot,
            offset,
            mark: self.guard.protect(offset, payload),
            follows: self.offset,
        };
        self.advance(&header);
        header
    }

    /// Makes the header for the payload that follows the last chunk: see [`seal_at`](Self::seal_at).
    #[cfg(any(test, fuzzing))]
    pub(crate) fn seal(&mut self, slot: u32, payload: &mut [u8]) -> Header {
        self.seal_at(self.offset, slot, payload)
    }

    /// Returns true if the chunk after the last one may begin at `offset`.
    fn may_go_on_at(&self, offset: u64) -> bool {
        offset == self.offset || (self.has_gaps && offset > self.offset)
    }

    /// Verifies the next chunk, opens it in place if the stream is encrypted, and adds it to the chain. A damaged chunk
    /// does not change the chain.
    /// Fails with [`Damage::Order`], [`Damage::Payload`] or [`Damage::Seal`].
    pub(crate) fn open(&mut self, header: &Header, payload: &mut [u8]) -> Result<(), Damage> {
        let is_next = header.follows == self.offset && self.may_go_on_at(header.offset);
        // A peer can make up an offset so large that no number of 64 bits is the end.
        let has_end = header.end() > header.offset;
        if !is_next || !has_end || header.length as usize != payload.len() {
            return Err(Damage::Order);
        }
        let checked = self.guard.check(header.offset, &header.mark, payload);
        checked.map_err(|wrong| match wrong {
            WrongMark::Digest => Damage::Payload,
            WrongMark::Tag => Damage::Seal,
        })?;
        self.advance(header);
        Ok(())
    }

    /// Adds a chunk to the chain without verifying it.
    pub(crate) fn advance(&mut self, header: &Header) {
        let Mark { digest, tag } = header.mark;
        let mut mark = [0; 8 + TAG_BYTES];
        mark[..8].copy_from_slice(&digest.to_le_bytes());
        mark[8..].copy_from_slice(&tag);
        self.offset = header.end();
        self.digest = xxh3_64_with_seed(self.digest, &mark);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;
    use crate::transport::control::{
        noise::Role,
        seal::{Cipher, StreamSeal, Way},
    };

    /// What protects chunks: a digest, and each cipher.
    const CIPHERS: [Option<Cipher>; 3] = [
        None,
        Some(Cipher::Aes256Gcm),
        Some(Cipher::ChaCha20Poly1305),
    ];

    fn chain(seed: u8, cipher: Option<Cipher>) -> Chain {
        Chain::new(StreamSeal::of_seed(seed, Role::Dialer, cipher).guard(Way::Out))
    }

    /// A chunk on its way: the header, and the payload as it travels.
    type Sealed = (Header, Vec<u8>);

    fn sealed(chain: &mut Chain, payloads: &[Vec<u8>]) -> Vec<Sealed> {
        let seal = |payload: &Vec<u8>| {
            let mut payload = payload.clone();
            (chain.seal(7, &mut payload), payload)
        };
        payloads.iter().map(seal).collect()
    }

    fn opened(chain: &mut Chain, (header, payload): &Sealed) -> Result<Vec<u8>, Damage> {
        let mut payload = payload.clone();
        chain.open(header, &mut payload)?;
        Ok(payload)
    }

    fn is_unmarked(result: &Result<Vec<u8>, Damage>) -> bool {
        matches!(result, Err(Damage::Payload | Damage::Seal))
    }

    prop_compose! {
        fn any_header()(length: u32, slot: u32, offset: u64, digest: u64, tag: [u8; TAG_BYTES], follows: u64) -> Header {
            Header { length, slot, offset, mark: Mark { digest, tag }, follows }
        }
    }

    proptest! {
        #[test]
        fn a_header_survives_the_wire(header in any_header()) {
            prop_assert_eq!(Header::decode(&header.encode()), Ok(header));
        }

        #[test]
        fn one_flipped_bit_in_a_header_is_found(header in any_header(), bit in 0..8 * HEADER_BYTES) {
            let mut bytes = header.encode();
            bytes[bit / 8] ^= 1 << (bit % 8);
            prop_assert_eq!(Header::decode(&bytes), Err(Damage::Header));
        }

        #[test]
        fn a_header_with_more_in_it_is_none(header in any_header(), at in 48..CHECKED_BYTES, more in 1..=u8::MAX) {
            let mut bytes = header.encode();
            bytes[at] = more;
            let check = xxh3_64(&bytes[..CHECKED_BYTES]);
            bytes[CHECKED_BYTES..].copy_from_slice(&check.to_le_bytes());
            prop_assert_eq!(Header::decode(&bytes), Err(Damage::Header));
        }

        #[test]
        fn both_ends_of_a_chain_agree(seed: u8, payloads in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 1..600), 0..9)) {
            for cipher in CIPHERS {
                let [mut here, mut there] = [(); 2].map(|()| chain(seed, cipher));
                for (chunk, payload) in sealed(&mut here, &payloads).iter().zip(&payloads) {
                    prop_assert_eq!(&opened(&mut there, chunk).unwrap(), payload);
                }
                let total: usize = payloads.iter().map(Vec::len).sum();
                prop_assert_eq!(there.offset(), total as u64);
                prop_assert_eq!(there.digest(), here.digest());
            }
        }

        #[test]
        fn one_flipped_bit_in_a_payload_is_found(seed: u8, payload in proptest::collection::vec(any::<u8>(), 1..5000), at: prop::sample::Index, bit in 0..8_u8) {
            for cipher in CIPHERS {
                let mut chunk = sealed(&mut chain(seed, cipher), std::slice::from_ref(&payload)).remove(0);
                let at = at.index(payload.len());
                chunk.1[at] ^= 1 << bit;
                let mut there = chain(seed, cipher);
                prop_assert!(is_unmarked(&opened(&mut there, &chunk)));
                prop_assert_eq!((there.offset(), there.digest()), (0, 0));
            }
        }

        /// The check of a header is no secret: who changes a field computes it again.
        #[test]
        fn a_field_that_somebody_changes_is_found(payload in proptest::collection::vec(any::<u8>(), 1..300), other in any_header(), field in 0..5_u8) {
            for cipher in CIPHERS.into_iter().skip(1) {
                let (header, sealed) = sealed(&mut chain(1, cipher), std::slice::from_ref(&payload)).remove(0);
                let mut changed = header;
                match field {
                    0 => changed.length = other.length,
                    1 => changed.offset = other.offset,
                    2 => changed.mark.digest = other.mark.digest,
                    3 => changed.follows = other.follows,
                    _ => changed.mark.tag = other.mark.tag,
                }
                prop_assume!(changed != header);
                prop_assert!(opened(&mut chain(1, cipher), &(changed, sealed)).is_err());
            }
        }
    }

    #[test]
    fn equal_chunks_at_different_places_have_different_marks() {
        for (cipher, length) in CIPHERS.into_iter().flat_map(|cipher| {
            [1, 2, 3, 4, 8, 9, 16, 17, 128, 240, 241, 5000].map(|length| (cipher, length))
        }) {
            let payloads = vec![vec![0; length]; 300];
            let chunks = sealed(&mut chain(1, cipher), &payloads);
            let marks: HashSet<_> = chunks
                .iter()
                .map(|(header, _)| (header.mark.digest, header.mark.tag))
                .collect();
            assert_eq!(marks.len(), payloads.len(), "{length}");
        }
    }

    /// A chunk at the place of another one is found by its mark alone, even if its header names the place where it is.
    #[test]
    fn a_chunk_moved_to_another_place_is_found() {
        let payloads = [b"one half".to_vec(), b"the rest".to_vec()];
        for cipher in CIPHERS {
            let chunks = sealed(&mut chain(1, cipher), &payloads);
            for (here, there) in [(0, 1), (1, 0)] {
                let place = chunks[here].0.offset;
                let mut chain = chain(1, cipher);
                chain.offset = place;
                assert_eq!(opened(&mut chain, &chunks[there]), Err(Damage::Order));
                let (header, payload) = chunks[there].clone();
                let moved = Header {
                    offset: place,
                    follows: place,
                    ..header
                };
                assert!(is_unmarked(&opened(&mut chain, &(moved, payload))));
            }
        }
    }

    #[test]
    fn a_chunk_that_comes_twice_or_was_left_out_is_found() {
        let payloads = [b"first".to_vec(), b"second".to_vec(), b"third".to_vec()];
        for cipher in CIPHERS {
            let chunks = sealed(&mut chain(1, cipher), &payloads);
            let mut there = chain(1, cipher);
            opened(&mut there, &chunks[0]).unwrap();
            assert_eq!(opened(&mut there, &chunks[0]), Err(Damage::Order));
            assert_eq!(opened(&mut there, &chunks[2]), Err(Damage::Order));
        }
    }

    /// The bytes between two chunks of a rail travel on other rails, so their number says nothing about what is missing.
    #[test]
    fn a_chunk_of_a_rail_that_comes_twice_or_too_early_is_found() {
        let rail = |cipher| Chain {
            has_gaps: true,
            ..chain(1, cipher)
        };
        for cipher in CIPHERS {
            let mut here = rail(cipher);
            let chunks = [0, 700, 705, 9_000].map(|offset| {
                let mut payload = b"chunk".to_vec();
                (here.seal_at(offset, 7, &mut payload), payload)
            });
            for next in 0..chunks.len() {
                let mut there = rail(cipher);
                for chunk in &chunks[..next] {
                    opened(&mut there, chunk).unwrap();
                }
                let others = chunks.iter().enumerate().filter(|(nth, _)| *nth != next);
                for (nth, chunk) in others {
                    let result = opened(&mut there, chunk);
                    assert_eq!(result, Err(Damage::Order), "{nth} after {next} chunks");
                }
            }
        }
    }

    #[test]
    fn the_chain_depends_on_every_mark_and_on_their_order() {
        for cipher in CIPHERS {
            let chunks = sealed(&mut chain(1, cipher), &[b"same".to_vec(), b"size".to_vec()]);
            let end = |order: &[Header]| {
                let mut chain = chain(1, cipher);
                for header in order {
                    chain.advance(header);
                }
                chain.digest()
            };
            let [(first, _), (second, _)] = chunks[..] else {
                panic!("two chunks");
            };
            let ends = [
                end(&[first, second]),
                end(&[second, first]),
                end(&[first, first]),
                end(&[second, second]),
                end(&[first]),
                end(&[]),
            ];
            let distinct: HashSet<_> = ends.iter().collect();
            assert_eq!(distinct.len(), ends.len());
        }
    }

    /// A recorded frame of another stream, even with the same key, or of the other direction does not verify.
    #[test]
    fn a_chunk_of_another_stream_or_direction_is_found() {
        let payload = b"the same bytes at the same place".to_vec();
        for cipher in CIPHERS {
            let chunk = sealed(&mut chain(1, cipher), std::slice::from_ref(&payload)).remove(0);
            assert!(is_unmarked(&opened(&mut chain(2, cipher), &chunk)));
            let seal = StreamSeal::of_seed(1, Role::Dialer, cipher);
            let mut back = Chain::new(seal.guard(Way::In));
            assert!(is_unmarked(&opened(&mut back, &chunk)));
        }
    }

    #[test]
    fn credits_are_never_all_held_back() {
        for depth in [2, 3, 4, 5, 16, 4096] {
            let batch = credit_batch(depth);
            assert!(batch >= 1 && batch < depth, "{depth}");
        }
    }
}
