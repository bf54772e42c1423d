//! Digests that only an end with the secret can compute.

use snow::{
    params::HashChoice,
    resolvers::{CryptoResolver, DefaultResolver},
};

/// The size of a [`keyed_digest`].
pub(crate) const DIGEST_BYTES: usize = 32;

/// Returns the HMAC-BLAKE2s of `data` under `secret`, which only an end that has `secret` can compute.
pub(crate) fn keyed_digest(secret: &[u8; 32], data: &[u8]) -> [u8; DIGEST_BYTES] {
    let hash = DefaultResolver.resolve_hash(&HashChoice::Blake2s);
    let mut digest = [0; DIGEST_BYTES];
    hash.expect("the pattern of the handshake has the same hash")
        .hmac(secret, data, &mut digest);
    digest
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Python's `hmac` with `hashlib.blake2s` returns the same bytes.
    #[test]
    fn a_keyed_digest_is_hmac_blake2s() {
        let secret = std::array::from_fn(|at| u8::try_from(at).unwrap());
        let digest = keyed_digest(&secret, b"data");
        let expected = "45d04ca12cc44ade40f47bbdd8afb903809f5495b3fa3b3576c93588fba314ce";
        assert_eq!(data_encoding::HEXLOWER.encode(&digest), expected);
    }
}
