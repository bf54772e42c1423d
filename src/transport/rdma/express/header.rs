//! The header of a small frame. Pure, no I/O.
//!
//! | bytes  | field    | meaning                                                                              |
//! |--------|----------|--------------------------------------------------------------------------------------|
//! | 0..4   | length   | payload bytes; 0 in a report                                                         |
//! | 4..8   | consumed | the number of frames of the other direction that this end has consumed, modulo 2^32  |
//! | 8..16  | offset   | bytes of this direction before the payload                                           |
//! | 16..24 | digest   | as in the header of a chunk                                                          |
//! | 24..32 | check    | xxh3-64 of bytes 0..24                                                               |
//!
//! All integers are little-endian. A *report* is a frame without payload: it carries only the number of consumed
//! frames. A small frame has no slot, so its header is a quarter of that of a chunk.

use twox_hash::XxHash3_64;

use crate::transport::data::{
    frame::{Damage, Header},
    path::NO_SLOT,
};

/// The size of a header, in bytes.
pub(in crate::transport::rdma) const EXPRESS_HEADER_BYTES: usize = 32;

/// The most payload of a small frame, in bytes.
pub(in crate::transport::rdma) const EXPRESS_PAYLOAD_BYTES: usize = 4096;

/// The number of bytes that the check covers.
const CHECKED_BYTES: usize = EXPRESS_HEADER_BYTES - size_of::<u64>();

/// The header of a small frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ExpressHeader {
    /// The number of payload bytes; 0 in a report.
    pub(super) length: u32,
    /// The number of frames of the other direction that this end has consumed, modulo 2^32.
    pub(super) consumed: u32,
    /// The number of bytes of this direction before the payload.
    pub(super) offset: u64,
    /// The digest of the payload.
    pub(super) digest: u64,
}

impl ExpressHeader {
    /// The header of a report.
    pub(super) fn report(consumed: u32) -> Self {
        Self {
            length: 0,
            consumed,
            offset: 0,
            digest: 0,
        }
    }

    /// The header for the chunk that `header` describes.
    pub(super) fn of(header: &Header, consumed: u32) -> Self {
        Self {
            length: header.length,
            consumed,
            offset: header.offset,
            digest: header.digest,
        }
    }

    /// Returns the header of the chunk, as the lanes know it.
    pub(super) fn chunk(&self) -> Header {
        Header {
            length: self.length,
            slot: NO_SLOT,
            offset: self.offset,
            digest: self.digest,
        }
    }

    /// Encodes the header.
    pub(super) fn encode(&self) -> [u8; EXPRESS_HEADER_BYTES] {
        let mut bytes = [0; EXPRESS_HEADER_BYTES];
        bytes[0..4].copy_from_slice(&self.length.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.consumed.to_le_bytes());
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
    /// [`Damage::Header`] unless the bytes are exactly the encoding of their fields.
    pub(super) fn decode(bytes: &[u8; EXPRESS_HEADER_BYTES]) -> Result<Self, Damage> {
        let header = Self {
            length: u32::from_le_bytes(std::array::from_fn(|i| bytes[i])),
            consumed: u32::from_le_bytes(std::array::from_fn(|i| bytes[4 + i])),
            offset: u64::from_le_bytes(std::array::from_fn(|i| bytes[8 + i])),
            digest: u64::from_le_bytes(std::array::from_fn(|i| bytes[16 + i])),
        };
        if header.encode() == *bytes {
            Ok(header)
        } else {
            Err(Damage::Header)
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_header_survives_the_wire(length: u32, consumed: u32, offset: u64, digest: u64, bit in 0..8 * EXPRESS_HEADER_BYTES) {
            let header = ExpressHeader { length, consumed, offset, digest };
            let mut bytes = header.encode();
            prop_assert_eq!(ExpressHeader::decode(&bytes), Ok(header));
            bytes[bit / 8] ^= 1 << (bit % 8);
            prop_assert_eq!(ExpressHeader::decode(&bytes), Err(Damage::Header));
        }
    }
}
