//! The digests of [rdpipe](https://crates.io/crates/rdpipe): xxh3-64 and xxh64, as twox-hash computes them.
//!
//! twox-hash marks its functions `#[inline]`, so they are compiled in the crate that calls them, and as that crate is:
//! without optimisation, one of them takes 40 times as long. Here they are compiled in a crate of their own, which the
//! profile of a build without optimisation can name. So no function here may be inlined into its caller.

use std::hash::Hasher;

use twox_hash::{XxHash3_64, XxHash64};

/// The size of a secret of [`xxh3_64_with_secret`], in bytes. It is that of xxh3's own secret.
pub const SECRET_BYTES: usize = 192;

/// Returns the xxh3-64 digest of `bytes`.
#[inline(never)]
#[must_use]
pub fn xxh3_64(bytes: &[u8]) -> u64 {
    XxHash3_64::oneshot(bytes)
}

/// Returns the xxh3-64 digest of `bytes` with a seed.
#[inline(never)]
#[must_use]
pub fn xxh3_64_with_seed(seed: u64, bytes: &[u8]) -> u64 {
    XxHash3_64::oneshot_with_seed(seed, bytes)
}

/// Returns the xxh3-64 digest of `bytes` with a secret.
#[expect(
    clippy::missing_panics_doc,
    reason = "a secret of this size is long enough"
)]
#[inline(never)]
#[must_use]
pub fn xxh3_64_with_secret(secret: &[u8; SECRET_BYTES], bytes: &[u8]) -> u64 {
    XxHash3_64::oneshot_with_secret(secret, bytes).expect("the secret is long enough")
}

/// The xxh64 digest of bytes that arrive in pieces.
#[derive(Debug, Clone, Default)]
pub struct Xxh64(XxHash64);

impl Xxh64 {
    /// Adds bytes behind those so far.
    #[inline(never)]
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.write(bytes);
    }

    /// Returns the digest of all bytes so far.
    #[inline(never)]
    #[must_use]
    pub fn finish(&self) -> u64 {
        self.0.finish()
    }
}
