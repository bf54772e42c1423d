//! How a data connection proves that it belongs to a stream. Pure, no I/O.
//!
//! ```text
//! dialer                                      acceptor
//!   preamble, label of the stream  ────────►
//!                                  ◄────────    challenge: random bytes, made for this connection
//!   proof of the challenge         ────────►    hands the connection to the stream
//! ```
//!
//! The token of the stream is the secret. It travels to the dialer under Noise, and never appears on a data connection:
//! label and proof are keyed digests under the token. Each connection gets a challenge of its own, so a proof that was
//! read on the path is worth nothing on another connection, neither before nor after the dialer has used it.

use crate::{
    key::digest::{DIGEST_BYTES, keyed_digest},
    transport::control::message::Token,
};

/// The size of a [`label`]: 128 bits, which a stranger does not guess.
pub(super) const LABEL_BYTES: usize = 16;

/// The size of a challenge.
pub(super) const CHALLENGE_BYTES: usize = 32;

/// Returns random bytes, for a token or a challenge.
pub(super) fn random() -> [u8; 32] {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes).expect("the system has random numbers once it has booted");
    bytes
}

/// The size of a proof.
pub(super) const PROOF_BYTES: usize = DIGEST_BYTES;

/// Returns the label that tells the acceptor which stream a data connection is for. It can be read on the path.
pub(super) fn label(token: &Token) -> [u8; LABEL_BYTES] {
    let digest = keyed_digest(&token.0, b"rdpipe data connection: label");
    *digest.first_chunk().expect("a digest is longer")
}

/// Returns the proof that the connection with this challenge belongs to the stream with this token.
pub(super) fn proof(token: &Token, challenge: &[u8; CHALLENGE_BYTES]) -> [u8; PROOF_BYTES] {
    let text = [&b"rdpipe data connection: proof"[..], challenge].concat();
    keyed_digest(&token.0, &text)
}

/// Returns true if `shown` is the proof. Takes the same time for every wrong proof.
pub(super) fn is_proof(
    token: &Token,
    challenge: &[u8; CHALLENGE_BYTES],
    shown: &[u8; PROOF_BYTES],
) -> bool {
    let right = proof(token, challenge);
    let pairs = right.iter().zip(shown);
    pairs.fold(0, |differing, (a, b)| differing | (a ^ b)) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proof_is_good_for_one_token_and_one_challenge() {
        let (token, challenge) = (Token([1; 32]), [2; CHALLENGE_BYTES]);
        let shown = proof(&token, &challenge);
        assert!(is_proof(&token, &challenge, &shown));
        assert!(!is_proof(&token, &[3; CHALLENGE_BYTES], &shown));
        assert!(!is_proof(&Token([3; 32]), &challenge, &shown));
        for at in 0..PROOF_BYTES {
            let mut damaged = shown;
            damaged[at] ^= 1;
            assert!(!is_proof(&token, &challenge, &damaged));
        }
    }

    #[test]
    fn a_label_shows_neither_token_nor_proof() {
        let token = Token([1; 32]);
        let label = label(&token);
        assert_ne!(label, token.0[..LABEL_BYTES]);
        assert_ne!(label, proof(&token, &[0; CHALLENGE_BYTES])[..LABEL_BYTES]);
    }
}
