//! The primitives of the Noise handshake. Curve25519 and ChaCha20-Poly1305 come from the library that seals the data
//! too.

use aws_lc_rs::{
    aead::{Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey},
    agreement::{self, PrivateKey, UnparsedPublicKey, X25519},
};
use blake2::{Blake2s256, Digest};
use snow::{
    Error,
    params::{CipherChoice, DHChoice, HashChoice},
    resolvers::CryptoResolver,
    types::{Cipher, Dh, Hash, Random},
};
use zeroize::Zeroizing;

use super::noise::TAG_BYTES;

/// The size of keys and of shared secrets, in bytes.
const KEY_BYTES: usize = 32;

/// Gives snow its primitives.
pub(super) struct Primitives;

impl CryptoResolver for Primitives {
    fn resolve_rng(&self) -> Option<Box<dyn Random>> {
        Some(Box::new(SystemRandom))
    }

    fn resolve_dh(&self, choice: &DHChoice) -> Option<Box<dyn Dh>> {
        let is_known = matches!(choice, DHChoice::Curve25519);
        is_known.then(|| -> Box<dyn Dh> { Box::<Curve25519>::default() })
    }

    fn resolve_hash(&self, choice: &HashChoice) -> Option<Box<dyn Hash>> {
        let is_known = matches!(choice, HashChoice::Blake2s);
        is_known.then(|| -> Box<dyn Hash> { Box::<Blake2s>::default() })
    }

    fn resolve_cipher(&self, choice: &CipherChoice) -> Option<Box<dyn Cipher>> {
        let is_known = matches!(choice, CipherChoice::ChaChaPoly);
        is_known.then(|| -> Box<dyn Cipher> { Box::new(ChaChaPoly::of_key(&[0; KEY_BYTES])) })
    }
}

struct SystemRandom;

impl Random for SystemRandom {
    fn try_fill_bytes(&mut self, bytes: &mut [u8]) -> Result<(), Error> {
        getrandom::fill(bytes).map_err(|_| Error::Rng)
    }
}

#[derive(Default)]
struct Blake2s(Blake2s256);

impl Hash for Blake2s {
    fn name(&self) -> &'static str {
        "BLAKE2s"
    }

    fn block_len(&self) -> usize {
        64
    }

    fn hash_len(&self) -> usize {
        32
    }

    fn reset(&mut self) {
        self.0.reset();
    }

    fn input(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    fn result(&mut self, out: &mut [u8]) {
        out[..32].copy_from_slice(&self.0.finalize_reset());
    }
}

/// A key pair on Curve25519.
#[derive(Default)]
struct Curve25519 {
    private: Zeroizing<[u8; KEY_BYTES]>,
    public: [u8; KEY_BYTES],
    key: Option<PrivateKey>,
}

impl Dh for Curve25519 {
    fn name(&self) -> &'static str {
        "25519"
    }

    fn pub_len(&self) -> usize {
        KEY_BYTES
    }

    fn priv_len(&self) -> usize {
        KEY_BYTES
    }

    fn set(&mut self, private: &[u8]) {
        self.private.copy_from_slice(private);
        let key = PrivateKey::from_private_key(&X25519, private);
        let key = key.expect("any 32 bytes are a private key");
        let public = key.compute_public_key();
        let public = public.expect("each private key has a public key");
        self.public.copy_from_slice(public.as_ref());
        self.key = Some(key);
    }

    fn generate(&mut self, random: &mut dyn Random) -> Result<(), Error> {
        let mut private = Zeroizing::new([0; KEY_BYTES]);
        random.try_fill_bytes(&mut *private)?;
        self.set(&*private);
        Ok(())
    }

    fn pubkey(&self) -> &[u8] {
        &self.public
    }

    fn privkey(&self) -> &[u8] {
        &*self.private
    }

    /// Fails for a public key of low order too, with which the shared secret would be known to everybody.
    fn dh(&self, public: &[u8], out: &mut [u8]) -> Result<(), Error> {
        let key = self.key.as_ref().ok_or(Error::Dh)?;
        let public = UnparsedPublicKey::new(&X25519, &public[..KEY_BYTES]);
        agreement::agree(key, public, Error::Dh, |shared| {
            out[..KEY_BYTES].copy_from_slice(shared);
            Ok(())
        })
    }
}

struct ChaChaPoly(LessSafeKey);

impl ChaChaPoly {
    fn of_key(key: &[u8; KEY_BYTES]) -> Self {
        let key = UnboundKey::new(&CHACHA20_POLY1305, key);
        Self(LessSafeKey::new(key.expect("a key has 32 bytes")))
    }
}

impl Cipher for ChaChaPoly {
    fn name(&self) -> &'static str {
        "ChaChaPoly"
    }

    fn set(&mut self, key: &[u8; KEY_BYTES]) {
        *self = Self::of_key(key);
    }

    fn encrypt(&self, nonce: u64, authtext: &[u8], plaintext: &[u8], out: &mut [u8]) -> usize {
        let (sealed, tag) = out.split_at_mut(plaintext.len());
        sealed.copy_from_slice(plaintext);
        let made =
            self.0
                .seal_in_place_separate_tag(noise_nonce(nonce), Aad::from(authtext), sealed);
        let made = made.expect("a message is shorter than the limit of the cipher");
        tag[..TAG_BYTES].copy_from_slice(made.as_ref());
        plaintext.len() + TAG_BYTES
    }

    fn decrypt(
        &self,
        nonce: u64,
        authtext: &[u8],
        ciphertext: &[u8],
        out: &mut [u8],
    ) -> Result<usize, Error> {
        let length = ciphertext.len().checked_sub(TAG_BYTES);
        let (sealed, tag) = ciphertext.split_at(length.ok_or(Error::Decrypt)?);
        let out = &mut out[..sealed.len()];
        out.copy_from_slice(sealed);
        let opened =
            self.0
                .open_in_place_separate_tag(noise_nonce(nonce), Aad::from(authtext), tag, out);
        opened.map(|plain| plain.len()).map_err(|_| Error::Decrypt)
    }
}

/// Returns the nonce of a message with this number: 32 bits of zero, and the number, little-endian.
fn noise_nonce(number: u64) -> Nonce {
    let mut bytes = [0; NONCE_LEN];
    bytes[4..].copy_from_slice(&number.to_le_bytes());
    Nonce::assume_unique_for_key(bytes)
}

#[cfg(test)]
mod tests {
    use data_encoding::HEXLOWER;

    use super::*;

    fn decoded(text: &str) -> Vec<u8> {
        HEXLOWER.decode(text.as_bytes()).unwrap()
    }

    /// The pair of Bob in RFC 7748, section 6.1.
    #[test]
    fn a_key_pair_is_that_of_the_standard_and_both_ends_share_a_secret() {
        let pair = |private: &str| {
            let mut pair = Curve25519::default();
            pair.set(&decoded(private));
            pair
        };
        let alice = pair("77076d0a7318a57d3c16c17251b26645df4d6f4f3a4b1b2c5a5e5e7a9a7f4a2a");
        let bob = pair("5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb");
        let shared = |ours: &Curve25519, theirs: &Curve25519| {
            let mut shared = [0; KEY_BYTES];
            ours.dh(theirs.pubkey(), &mut shared).unwrap();
            shared
        };
        assert_eq!(shared(&alice, &bob), shared(&bob, &alice));
        assert_eq!(
            HEXLOWER.encode(bob.pubkey()),
            "de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f"
        );
        assert!(alice.dh(&[0; KEY_BYTES], &mut [0; KEY_BYTES]).is_err());
    }

    #[test]
    fn a_message_opens_with_its_number_and_its_text_only() {
        let cipher = ChaChaPoly::of_key(&[7; KEY_BYTES]);
        let mut sealed = [0; 5 + TAG_BYTES];
        assert_eq!(cipher.encrypt(3, b"text", b"bytes", &mut sealed), 21);
        let opened = |number, text: &[u8], sealed: &[u8]| {
            let mut plain = [0; 5];
            let length = cipher.decrypt(number, text, sealed, &mut plain).ok()?;
            Some(plain[..length].to_vec())
        };
        assert_eq!(opened(3, b"text", &sealed).as_deref(), Some(&b"bytes"[..]));
        assert_eq!(opened(4, b"text", &sealed), None);
        assert_eq!(opened(3, b"other", &sealed), None);
        assert_eq!(opened(3, b"text", &sealed[..TAG_BYTES - 1]), None);
    }
}
