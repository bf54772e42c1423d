//! The digests with which the two ends of a copy compare what an earlier run has left of a file.
//!
//! A digest is a part of the SHA-256 of a key and the bytes of a block. The destination draws the key when it answers,
//! after the bytes were written. A process or a client that has written other bytes into the file before does not know
//! the key, so that it can only guess: two different contents of a block have the same digest with a probability of
//! 2^-128. XXH3-64 promises nothing of the kind, and whoever knows the bytes can find others with the same digest.

use aws_lc_rs::digest::{Context, SHA256};
use serde::{Deserialize, Serialize};

pub(crate) const BLOCK_DIGEST_BYTES: usize = 16;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct DigestKey([u8; 32]);

impl DigestKey {
    /// Returns a random key; none if the system returns no random bytes.
    pub(crate) fn random() -> Option<Self> {
        let mut key = [0; 32];
        getrandom::fill(&mut key).ok().map(|()| Self(key))
    }
}

/// The digest of a block, as its bytes arrive in order.
pub(crate) struct BlockDigest(Context);

impl BlockDigest {
    /// Returns the digest of no bytes.
    pub(crate) fn new(key: DigestKey) -> Self {
        let mut context = Context::new(&SHA256);
        context.update(&key.0);
        Self(context)
    }

    pub(crate) fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    pub(crate) fn finish(self) -> [u8; BLOCK_DIGEST_BYTES] {
        let digest = self.0.finish();
        let mut part = [0; BLOCK_DIGEST_BYTES];
        part.copy_from_slice(&digest.as_ref()[..BLOCK_DIGEST_BYTES]);
        part
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_digest_is_a_part_of_the_sha_256_of_the_key_and_the_bytes() {
        let mut digest = BlockDigest::new(DigestKey([b'k'; 32]));
        digest.update(b"bytes");
        let whole = aws_lc_rs::digest::digest(&SHA256, &[&[b'k'; 32][..], b"bytes"].concat());
        assert_eq!(digest.finish(), whole.as_ref()[..BLOCK_DIGEST_BYTES]);
    }

    proptest! {
        #[test]
        fn pieces_do_not_matter_and_a_changed_byte_does(
            bytes in prop::collection::vec(any::<u8>(), 1..200),
            cuts in prop::collection::vec(0..200_usize, 0..6),
            at in 0..200_usize,
        ) {
            let key = DigestKey::random().unwrap();
            let digest = |bytes: &[u8]| {
                let mut digest = BlockDigest::new(key);
                digest.update(bytes);
                digest.finish()
            };
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(bytes.len())).collect();
            cuts.sort_unstable();
            let mut pieces = BlockDigest::new(key);
            let mut start = 0;
            for cut in cuts.into_iter().chain([bytes.len()]) {
                pieces.update(&bytes[start..cut]);
                start = cut;
            }
            prop_assert_eq!(pieces.finish(), digest(&bytes));
            let mut other = bytes.clone();
            let at = at % other.len();
            other[at] ^= 1;
            prop_assert_ne!(digest(&other), digest(&bytes));
            let other = DigestKey::random().unwrap();
            prop_assert_ne!(other, key);
        }
    }
}
