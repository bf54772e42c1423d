//! The shared key: made by us, or stretched from whatever the user calls a key.

mod file;

#[cfg(feature = "cli")]
pub(crate) use file::{exposure, first_line};

use std::{fmt, io, ops::Deref, path::PathBuf};

use argon2::{Algorithm, Argon2, Params, Version};
use data_encoding::BASE32_NOPAD;
use twox_hash::XxHash3_64;
use zeroize::{Zeroize, Zeroizing};

/// The secret that two ends share: 32 bytes, wiped from memory when dropped.
///
/// It cannot be printed: only a key that was made here has a text, see [`GeneratedKey`].
#[derive(Clone)]
pub struct Key([u8; SECRET_BYTES]);

impl Key {
    /// Makes a key of 256 random bits from the operating system.
    ///
    /// # Errors
    ///
    /// [`KeyError::Random`] when the system has no random bytes to give.
    pub fn generate() -> Result<GeneratedKey, KeyError> {
        let mut key = Self([0; SECRET_BYTES]);
        getrandom::fill(&mut key.0).map_err(|error| KeyError::Random(error.to_string()))?;
        Ok(GeneratedKey(key))
    }

    /// Takes a key from its text: one that we made as it is, any other stretched with Argon2id,
    /// which takes tens of milliseconds and 19 MiB. Call it once at the start, never per connection.
    ///
    /// The text is taken as it stands, spaces included.
    ///
    /// # Errors
    ///
    /// [`KeyError::Empty`] when there is nothing but white space, [`KeyError::Mistyped`] when it
    /// looks like a key of ours but is damaged.
    pub fn parse(text: impl AsRef<[u8]>) -> Result<Self, KeyError> {
        let text = text.as_ref();
        if text.trim_ascii().is_empty() {
            return Err(KeyError::Empty);
        }
        match text.strip_prefix(PREFIX) {
            Some(encoded) => decode(encoded).ok_or(KeyError::Mistyped),
            None if resembles_ours(text) => Err(KeyError::Mistyped),
            None => stretch(text),
        }
    }

    /// A key that was made here, from its bytes.
    #[cfg(feature = "cli")]
    pub(crate) fn from_secret(secret: &[u8; SECRET_BYTES]) -> Self {
        Self(*secret)
    }

    /// The bytes, for the handshake and for tickets.
    pub(crate) fn secret(&self) -> &[u8; SECRET_BYTES] {
        &self.0
    }
}

impl Drop for Key {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(..)")
    }
}

/// A key that was made here, the only kind that can be shown: somebody has to be told.
#[derive(Clone)]
pub struct GeneratedKey(Key);

impl GeneratedKey {
    /// The key itself.
    #[must_use]
    pub fn key(&self) -> &Key {
        &self.0
    }

    /// The text that [`Key::parse`] takes: `rdk1`, then 56 characters of lower-case base32, which
    /// hold the 32 bytes and a checksum of 3. Letters and digits only, so it needs no quoting.
    #[must_use]
    pub fn text(&self) -> KeyText {
        let mut bytes = Zeroizing::new([0; SECRET_BYTES + CHECKSUM_BYTES]);
        bytes[..SECRET_BYTES].copy_from_slice(&self.0.0);
        bytes[SECRET_BYTES..].copy_from_slice(&checksum(&self.0.0));
        let mut encoded = Zeroizing::new(BASE32_NOPAD.encode(bytes.as_slice()));
        encoded.make_ascii_lowercase();
        // Its full length from the start: growing would leave copies of the key behind.
        let mut text = Zeroizing::new(String::with_capacity(PREFIX.len() + ENCODED_CHARS));
        text.extend(PREFIX.iter().copied().map(char::from));
        text.push_str(&encoded);
        KeyText(text)
    }
}

impl fmt::Debug for GeneratedKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("GeneratedKey(..)")
    }
}

/// The text of a key, a `str` that is wiped from memory when dropped. It is shown where somebody asks
/// for it to be shown (`Display`), and not by `Debug`.
pub struct KeyText(Zeroizing<String>);

impl KeyText {
    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Deref for KeyText {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for KeyText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self)
    }
}

impl fmt::Debug for KeyText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeyText(..)")
    }
}

/// Why there is no key. No message repeats the text that was given.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// No key was given anywhere.
    #[error("no key was given")]
    Missing,
    /// The key has no character that counts.
    #[error("the key is empty, and protects nothing")]
    Empty,
    /// A key of ours whose checksum does not match.
    #[error("this looks like a key made by rdpipe, but it is mistyped or cut off")]
    Mistyped,
    /// The key file cannot be read.
    #[error("cannot read the key file {}: {source}", path.display())]
    File {
        /// The file as it was named.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The first line of the key file has no character that counts.
    #[error("the key file {} has no key in its first line", .0.display())]
    FileEmpty(PathBuf),
    /// The key file does not look like one.
    #[error("the first line of the key file {} is longer than {} bytes; is it the right file?", .0.display(), file::MAX_LINE_BYTES)]
    FileLong(PathBuf),
    /// The system has no random bytes.
    #[error("cannot make a key: the system gives no random bytes: {0}")]
    Random(String),
    /// The key cannot be stretched.
    #[error("cannot use this key: {0}")]
    Stretch(String),
}

/// 256 bits, as many as the cipher's own key has.
const SECRET_BYTES: usize = 32;

/// A mistyped key passes for another one once in 2^24 times. With three bytes the whole is 35,
/// a multiple of five, so that base32 has no unused bits: every key has exactly one text.
const CHECKSUM_BYTES: usize = 3;

/// Five bits a character.
const ENCODED_CHARS: usize = (SECRET_BYTES + CHECKSUM_BYTES) * 8 / 5;

/// How a key of ours begins; the digit is the version of the format.
const PREFIX: &[u8] = b"rdk1";

/// The minimum that OWASP's Password Storage Cheat Sheet recommends for Argon2id (m = 19 MiB,
/// t = 2, p = 1), which is also the default of the argon2 crate: tens of milliseconds, and well
/// within the memory that a stream takes afterwards.
const STRETCH_KIB: u32 = 19 * 1024;
/// See [`STRETCH_KIB`].
const STRETCH_PASSES: u32 = 2;
/// See [`STRETCH_KIB`].
const STRETCH_LANES: u32 = 1;

/// The same for everybody: the two ends share nothing but the key before they have authenticated
/// each other, so neither could tell the other its salt without a message from a stranger deciding
/// how the key is stretched, and stretching would then cost 19 MiB per connection. What a fixed
/// salt gives up is that tables made for this very program fit every pair; made keys need none.
const SALT: &[u8] = b"rdpipe shared key, version 1";

/// Makes guessing expensive for whoever recorded a handshake.
fn stretch(text: &[u8]) -> Result<Key, KeyError> {
    let unusable = |error: argon2::Error| KeyError::Stretch(error.to_string());
    let params = Params::new(
        STRETCH_KIB,
        STRETCH_PASSES,
        STRETCH_LANES,
        Some(SECRET_BYTES),
    )
    .map_err(unusable)?;
    let mut key = Key([0; SECRET_BYTES]);
    Argon2::new(Algorithm::Argon2id, Version::V0x13, params)
        .hash_password_into(text, SALT, &mut key.0)
        .map_err(unusable)?;
    Ok(key)
}

/// The key in what follows the prefix, if nothing is wrong with it.
fn decode(encoded: &[u8]) -> Option<Key> {
    // One text for each key: upper case would be a second.
    if encoded.len() != ENCODED_CHARS || encoded.iter().any(u8::is_ascii_uppercase) {
        return None;
    }
    let upper = Zeroizing::new(encoded.to_ascii_uppercase());
    let mut bytes = Zeroizing::new([0; SECRET_BYTES + CHECKSUM_BYTES]);
    BASE32_NOPAD.decode_mut(&upper, bytes.as_mut_slice()).ok()?;
    let mut key = Key([0; SECRET_BYTES]);
    key.0.copy_from_slice(&bytes[..SECRET_BYTES]);
    (checksum(&key.0) == bytes[SECRET_BYTES..]).then_some(key)
}

/// Whether a text without our prefix was one of ours before somebody typed it: another case, or
/// a fault within the prefix. Stretching it would end in "the keys do not match" on the other host.
fn resembles_ours(text: &[u8]) -> bool {
    let ours_in_capitals = text
        .get(..PREFIX.len())
        .is_some_and(|start| start.eq_ignore_ascii_case(PREFIX));
    let tail = text.len().checked_sub(ENCODED_CHARS).map(|at| &text[at..]);
    ours_in_capitals || tail.is_some_and(|tail| decode(tail).is_some())
}

/// Tells a typing error, and nothing else: it adds no secrecy and takes none.
fn checksum(secret: &[u8; SECRET_BYTES]) -> [u8; CHECKSUM_BYTES] {
    let hash = XxHash3_64::oneshot(secret).to_be_bytes();
    [hash[0], hash[1], hash[2]]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_generated_key_comes_back_from_its_text() {
        let made = Key::generate().unwrap();
        let text = made.text();
        assert!(text.starts_with("rdk1"));
        assert_eq!(text.len(), PREFIX.len() + ENCODED_CHARS);
        assert!(
            text.bytes()
                .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit())
        );
        assert_eq!(
            Key::parse(text.as_str()).unwrap().secret(),
            made.key().secret()
        );
        assert_ne!(Key::generate().unwrap().key().secret(), made.key().secret());
    }

    #[test]
    fn the_format_stays_as_it_is() {
        let text = GeneratedKey(Key([7; SECRET_BYTES])).text();
        let expected = "rdk1a4dqobyha4dqobyha4dqobyha4dqobyha4dqobyha4dqobyha4dwf24g";
        assert_eq!(text.as_str(), expected);
        assert_eq!(
            Key::parse(text.as_str()).unwrap().secret(),
            &[7; SECRET_BYTES]
        );
    }

    #[test]
    fn any_other_key_is_stretched_the_same_on_both_ends() {
        let here = Key::parse("secret_key").unwrap();
        let there = Key::parse("secret_key").unwrap();
        assert_eq!(here.secret(), there.secret());
        assert_ne!(here.secret(), Key::parse("secret_kez").unwrap().secret());
        assert_ne!(here.secret(), Key::parse("secret_key ").unwrap().secret());
        assert!(Key::parse(b"\xff\xfe").is_ok(), "a key need not be UTF-8");
    }

    /// Two versions that stretch differently would tell their users that the keys differ.
    #[test]
    fn stretching_stays_as_it_is() {
        let key = Key::parse("secret_key").unwrap();
        // Another implementation of Argon2id (OpenSSL's, through Python's cryptography) agrees.
        let expected = "3020f2241f26aab28dfef42ceab9c6f38e608235947ad1bf4e05ec52b3e356a1";
        assert_eq!(data_encoding::HEXLOWER.encode(key.secret()), expected);
    }

    #[test]
    fn an_empty_key_is_refused() {
        for text in ["", " ", "\t\r\n "] {
            assert!(matches!(Key::parse(text), Err(KeyError::Empty)));
        }
    }

    #[test]
    fn a_damaged_key_of_ours_is_told_apart() {
        let made = Key::generate().unwrap();
        let text = made.text();
        let damaged = [
            text[..text.len() - 1].to_owned(),
            text[..20].to_owned(),
            "rdk1".to_owned(),
            format!("{text}a"),
            format!("{text} "),
            format!(" {text}"),
            text[1..].to_owned(),
            text[4..].to_owned(),
            text.replacen("rdk1", "rdkl", 1),
            text.to_uppercase(),
        ];
        for damaged in damaged {
            assert!(
                matches!(Key::parse(&damaged), Err(KeyError::Mistyped)),
                "{damaged}"
            );
        }
    }

    #[test]
    fn debug_shows_no_key() {
        let made = Key::generate().unwrap();
        assert_eq!(
            format!("{:?} {made:?}", made.key()),
            "Key(..) GeneratedKey(..)"
        );
    }

    proptest! {
        #[test]
        fn every_secret_survives_its_text(secret: [u8; SECRET_BYTES]) {
            let made = GeneratedKey(Key(secret));
            let parsed = Key::parse(made.text().as_str()).unwrap();
            prop_assert_eq!(parsed.secret(), &secret);
        }

        #[test]
        fn one_changed_character_is_never_the_same_key(
            secret: [u8; SECRET_BYTES],
            at in 0..PREFIX.len() + ENCODED_CHARS,
            to in 0x20_u8..0x7f,
        ) {
            let mut text = GeneratedKey(Key(secret)).text().as_bytes().to_vec();
            prop_assume!(text[at] != to);
            text[at] = to;
            match Key::parse(&text) {
                Err(KeyError::Mistyped) => {}
                Err(other) => prop_assert!(false, "{}", other),
                // Once in 2^24 changes the checksum agrees by chance.
                Ok(other) => prop_assert_ne!(other.secret(), &secret),
            }
        }
    }
}
