//! The frames of the data path: header, digests, and the rule of credits. Pure, no I/O.
//!
//! A chunk travels as one frame, header and payload side by side, into one slot of the receiver:
//!
//! | bytes    | field  | meaning                                                              |
//! |----------|--------|----------------------------------------------------------------------|
//! | 0..4     | length | payload bytes, 1 to the chunk size agreed on                         |
//! | 4..8     | slot   | the receiver's slot this frame was written to                        |
//! | 8..16    | offset | bytes of this direction before the payload                           |
//! | 16..24   | digest | xxh3-64 of the payload, seeded with [`chunk_seed`]                   |
//! | 24..40   | tag    | reserved for the tag of an encrypted payload: zero                   |
//! | 40..120  |        | zero: see [`HEADER_BYTES`]                                           |
//! | 120..128 | check  | xxh3-64 of bytes 0..120, so that a damaged length is detected       |
//!
//! All integers are little-endian.
//!
//! # Digests
//!
//! The digest of a chunk depends on its payload, on its offset, and on a seed that both ends derive from the handshake,
//! a different one for each direction. So a chunk of another stream, of the other direction or of another offset does
//! not verify, and chunks can be verified in any order and in parallel. The [chain](Chain) is a digest over these
//! digests, in the order of the chunks. The FIN carries its end, so that a chunk which was left out or taken twice is
//! found even if every other check fails to find it. The chain of an empty stream is the seed of the direction.
//!
//! The digests detect damage, not attacks: xxh3 is not a MAC.
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

use twox_hash::XxHash3_64;

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
    /// The digest of the payload, seeded with [`chunk_seed`].
    pub(crate) digest: u64,
}

/// How bytes that arrived differ from what was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Damage {
    /// The check of the header does not match.
    Header,
    /// The digest of the payload does not match.
    Payload,
    /// The header is valid, but it is not the next one.
    Order,
    /// All bytes have arrived, but the end of the chain of digests is not that of the FIN.
    Whole,
    /// More bytes arrived than the FIN announced.
    Excess,
}

impl Damage {
    /// Returns the damage as a sentence.
    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::Header => "a chunk's header does not match its check",
            Self::Payload => "a chunk does not match its digest",
            Self::Order => "a chunk came out of order",
            Self::Whole => "the stream does not match the digest in its FIN",
            Self::Excess => "more bytes came than the FIN announced",
        }
    }
}

impl Header {
    /// Encodes the header.
    pub(crate) fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[0..4].copy_from_slice(&self.length.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.slot.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.offset.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.digest.to_le_bytes());
        let check = XxHash3_64::oneshot(&bytes[..CHECKED_BYTES]);
        bytes[CHECKED_BYTES..].copy_from_slice(&check.to_le_bytes());
        bytes
    }

    /// Decodes a header.
    ///
    /// # Errors
    ///
    /// [`Damage::Header`] unless the bytes are exactly the encoding of their fields. No field of a damaged header is valid.
    pub(crate) fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<Self, Damage> {
        let header = Self {
            length: word(bytes, 0),
            slot: word(bytes, 4),
            offset: long(bytes, 8),
            digest: long(bytes, 16),
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

/// Returns the seed of the digest of the chunk at `offset`, in a direction whose seed is `seed`.
///
/// The factor is the odd number nearest to 2^64 divided by the golden ratio. Two offsets have different seeds, because
/// a product with an odd number is unique; and seeds of neighbouring offsets differ in their high bits too. Short
/// payloads need that: in its input of up to three bytes, xxh3 combines payload and seed only in the low 32 bits.
fn chunk_seed(seed: u64, offset: u64) -> u64 {
    seed ^ offset.wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

/// Returns the digest of the chunk with this `payload` at `offset`, in a direction whose seed is `seed`. It depends on
/// no other chunk.
fn chunk_digest(seed: u64, offset: u64, payload: &[u8]) -> u64 {
    XxHash3_64::oneshot_with_seed(chunk_seed(seed, offset), payload)
}

/// The offset of one direction, and the digest over the digests of its chunks. Sender and receiver each keep a chain
/// from the same seed; the two are equal as long as every byte arrives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Chain {
    seed: u64,
    offset: u64,
    digest: u64,
}

impl Chain {
    /// Returns the chain before the first chunk.
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            seed,
            offset: 0,
            digest: seed,
        }
    }

    /// Returns the number of bytes so far.
    pub(crate) fn offset(&self) -> u64 {
        self.offset
    }

    /// Returns the digest over the digests so far, which depends on every byte so far.
    pub(crate) fn digest(&self) -> u64 {
        self.digest
    }

    /// Makes the header for the next payload, which has 1 to `u32::MAX` bytes.
    pub(crate) fn seal(&mut self, slot: u32, payload: &[u8]) -> Header {
        let length = u32::try_from(payload.len()).expect("a chunk is at most 64 MiB");
        let digest = chunk_digest(self.seed, self.offset, payload);
        let header = Header {
            length,
            slot,
            offset: self.offset,
            digest,
        };
        self.advance(&header);
        header
    }

    /// Verifies the next chunk and adds it to the chain. A damaged chunk does not change the chain.
    ///
    /// # Errors
    ///
    /// [`Damage::Order`] or [`Damage::Payload`].
    pub(crate) fn verify(&mut self, header: &Header, payload: &[u8]) -> Result<(), Damage> {
        if header.offset != self.offset || header.length as usize != payload.len() {
            return Err(Damage::Order);
        }
        if chunk_digest(self.seed, self.offset, payload) != header.digest {
            return Err(Damage::Payload);
        }
        self.advance(header);
        Ok(())
    }

    /// Adds a chunk to the chain without verifying it.
    pub(crate) fn advance(&mut self, header: &Header) {
        self.offset = header.end();
        self.digest = XxHash3_64::oneshot_with_seed(self.digest, &header.digest.to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    fn sealed(seed: u64, payloads: &[Vec<u8>]) -> Vec<Header> {
        let mut chain = Chain::new(seed);
        payloads
            .iter()
            .map(|payload| chain.seal(7, payload))
            .collect()
    }

    proptest! {
        #[test]
        fn a_header_survives_the_wire(length: u32, slot: u32, offset: u64, digest: u64) {
            let header = Header { length, slot, offset, digest };
            prop_assert_eq!(Header::decode(&header.encode()), Ok(header));
        }

        #[test]
        fn one_flipped_bit_in_a_header_is_found(length: u32, slot: u32, offset: u64, digest: u64, bit in 0..8 * HEADER_BYTES) {
            let mut bytes = Header { length, slot, offset, digest }.encode();
            bytes[bit / 8] ^= 1 << (bit % 8);
            prop_assert_eq!(Header::decode(&bytes), Err(Damage::Header));
        }

        #[test]
        fn a_header_with_more_in_it_is_none(length: u32, slot: u32, offset: u64, digest: u64, at in 24..CHECKED_BYTES, more in 1..=u8::MAX) {
            let mut bytes = Header { length, slot, offset, digest }.encode();
            bytes[at] = more;
            let check = XxHash3_64::oneshot(&bytes[..CHECKED_BYTES]);
            bytes[CHECKED_BYTES..].copy_from_slice(&check.to_le_bytes());
            prop_assert_eq!(Header::decode(&bytes), Err(Damage::Header));
        }

        #[test]
        fn both_ends_of_a_chain_agree(seed: u64, payloads in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 1..600), 0..9)) {
            let mut there = Chain::new(seed);
            for (header, payload) in sealed(seed, &payloads).iter().zip(&payloads) {
                prop_assert_eq!(there.verify(header, payload), Ok(()));
            }
            let total: usize = payloads.iter().map(Vec::len).sum();
            prop_assert_eq!(there.offset(), total as u64);
        }

        #[test]
        fn one_flipped_bit_in_a_payload_is_found(seed: u64, mut payload in proptest::collection::vec(any::<u8>(), 1..5000), at: prop::sample::Index, bit in 0..8_u8) {
            let header = Chain::new(seed).seal(0, &payload);
            let at = at.index(payload.len());
            payload[at] ^= 1 << bit;
            let mut there = Chain::new(seed);
            prop_assert_eq!(there.verify(&header, &payload), Err(Damage::Payload));
            prop_assert_eq!(there, Chain::new(seed));
        }
    }

    #[test]
    fn chunks_verify_in_any_order() {
        let payloads = [b"first".to_vec(), b"second".to_vec(), b"third".to_vec()];
        for (header, payload) in sealed(1, &payloads).iter().zip(&payloads).rev() {
            let digest = chunk_digest(1, header.offset, payload);
            assert_eq!(digest, header.digest);
        }
    }

    #[test]
    fn equal_chunks_at_different_places_have_different_digests() {
        for length in [1, 2, 3, 4, 8, 9, 16, 17, 128, 240, 241, 5000] {
            let payloads = vec![vec![0; length]; 300];
            let headers = sealed(1, &payloads);
            let digests: HashSet<_> = headers.iter().map(|header| header.digest).collect();
            assert_eq!(digests.len(), payloads.len(), "{length}");
        }
    }

    /// A chunk at the place of another one is found by its digest alone, even if its header names the place where it
    /// is.
    #[test]
    fn a_chunk_moved_to_another_place_is_found() {
        let payloads = [b"one half".to_vec(), b"the rest".to_vec()];
        let headers = sealed(1, &payloads);
        for (here, there) in [(0, 1), (1, 0)] {
            let mut chain = Chain::new(1);
            chain.offset = headers[here].offset;
            assert_eq!(
                chain.verify(&headers[there], &payloads[there]),
                Err(Damage::Order)
            );
            let moved = Header {
                offset: headers[here].offset,
                ..headers[there]
            };
            assert_eq!(chain.verify(&moved, &payloads[there]), Err(Damage::Payload));
        }
    }

    #[test]
    fn a_chunk_that_comes_twice_is_found() {
        let payloads = [b"once".to_vec(), b"more".to_vec()];
        let headers = sealed(1, &payloads);
        let mut there = Chain::new(1);
        there.verify(&headers[0], &payloads[0]).unwrap();
        assert_eq!(there.verify(&headers[0], &payloads[0]), Err(Damage::Order));
    }

    #[test]
    fn the_chain_depends_on_every_digest_and_on_their_order() {
        let headers = sealed(1, &[b"same".to_vec(), b"size".to_vec()]);
        let end = |order: &[Header]| {
            let mut chain = Chain::new(1);
            for header in order {
                chain.advance(header);
            }
            chain.digest()
        };
        let [first, second] = headers[..] else {
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
        assert_eq!(end(&[]), 1, "an empty stream has the seed");
    }

    /// The numbers come from an independent implementation of xxh3. A change needs another version of the protocol.
    #[test]
    fn digests_are_those_of_this_version() {
        let mut chain = Chain::new(7);
        assert_eq!(chain.digest(), 7);
        let first = chain.seal(0, b"hello, world\n");
        assert_eq!(first.digest, 0xed73_a480_1d46_2fa4);
        assert_eq!(chain.digest(), 0xd0bc_bb96_d74e_8165);
        let second = chain.seal(0, b"goodbye\n");
        assert_eq!(second.digest, 0x4060_8eb2_fd7e_ced9);
        assert_eq!(chain.digest(), 0xe0a8_b365_9ded_7de2);
    }

    #[test]
    fn a_chunk_left_out_is_found() {
        let payloads = [b"first".to_vec(), b"second".to_vec(), b"third".to_vec()];
        let headers = sealed(1, &payloads);
        let mut there = Chain::new(1);
        there.verify(&headers[0], &payloads[0]).unwrap();
        assert_eq!(there.verify(&headers[2], &payloads[2]), Err(Damage::Order));
    }

    #[test]
    fn a_chunk_of_another_stream_is_found() {
        let payload = b"the same bytes at the same place".to_vec();
        let header = sealed(1, std::slice::from_ref(&payload))[0];
        assert_eq!(
            Chain::new(2).verify(&header, &payload),
            Err(Damage::Payload)
        );
    }

    #[test]
    fn credits_are_never_all_held_back() {
        for depth in [2, 3, 4, 5, 16, 4096] {
            let batch = credit_batch(depth);
            assert!(batch >= 1 && batch < depth, "{depth}");
        }
    }
}
