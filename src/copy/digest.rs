//! The digests of `--checksum`. Pure, no I/O.

use data_encoding::HEXLOWER;
use sha2::{Digest, Sha256};
use twox_hash::XxHash64;

use super::order::DigestKind;

/// The digest of a file, as its bytes arrive in order.
pub(crate) enum FileDigest {
    /// XXH64.
    Xxh64(XxHash64),
    /// SHA-256.
    Sha256(Sha256),
}

impl FileDigest {
    /// Returns the digest of no bytes.
    pub(crate) fn new(kind: DigestKind) -> Self {
        match kind {
            DigestKind::Xxh64 => Self::Xxh64(XxHash64::with_seed(0)),
            DigestKind::Sha256 => Self::Sha256(Sha256::new()),
        }
    }

    /// Adds bytes.
    pub(crate) fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Xxh64(digest) => std::hash::Hasher::write(digest, bytes),
            Self::Sha256(digest) => digest.update(bytes),
        }
    }

    /// Adds `count` zeros, the bytes of a hole.
    pub(crate) fn update_zeros(&mut self, count: u64) {
        const ZEROS: [u8; 64 << 10] = [0; 64 << 10];
        let mut left = count;
        while left > 0 {
            let piece = usize::try_from(left).map_or(ZEROS.len(), |left| left.min(ZEROS.len()));
            self.update(&ZEROS[..piece]);
            left -= piece as u64;
        }
    }

    /// Returns the digest in hexadecimal digits, as `xxhsum` and `sha256sum` print it.
    pub(crate) fn finish(self) -> String {
        match self {
            Self::Xxh64(digest) => format!("{:016x}", std::hash::Hasher::finish(&digest)),
            Self::Sha256(digest) => HEXLOWER.encode(&digest.finalize()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digest(kind: DigestKind, bytes: &[u8]) -> String {
        let mut digest = FileDigest::new(kind);
        digest.update(bytes);
        digest.finish()
    }

    #[test]
    fn known_digests() {
        assert_eq!(digest(DigestKind::Xxh64, b""), "ef46db3751d8e999");
        assert_eq!(
            digest(DigestKind::Sha256, b"abc"),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
    }

    #[test]
    fn a_hole_counts_as_zeros() {
        let mut holes = FileDigest::new(DigestKind::Xxh64);
        holes.update(b"a");
        holes.update_zeros(100_000);
        let mut bytes = vec![b'a'];
        bytes.resize(100_001, 0);
        assert_eq!(holes.finish(), digest(DigestKind::Xxh64, &bytes));
    }
}
