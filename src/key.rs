//! The key that two ends share: made by rdpipe, or stretched from any text that the user chose, and read from files.

use std::{
    ffi::OsStr,
    fmt,
    fs::File,
    io::{self, Read},
    ops::Deref,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use argon2::{Algorithm, Argon2, Block, Params, Version};
use blake2::Blake2s256;
use data_encoding::BASE32_NOPAD;
use hmac::{Mac, SimpleHmac};
use rdpipe_digest::xxh3_64;
use rustix::process::geteuid;
use zeroize::{Zeroize, Zeroizing};

/// The secret that two ends share: 32 bytes, wiped from memory when dropped.
///
/// A `Key` cannot be printed. Only a [`GeneratedKey`] has a text.
#[derive(Clone)]
pub struct Key {
    secret: [u8; SECRET_BYTES],
    origin: KeyOrigin,
}

/// Where a key comes from, which decides whether it can be guessed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum KeyOrigin {
    /// Random bits.
    Random,
    /// A text that a user chose.
    Stretched,
    /// A text that a user chose, of fewer than [`MIN_CHOSEN_CHARS`] characters.
    StretchedShort,
}

impl Key {
    /// Makes a key of 256 random bits from the operating system.
    ///
    /// # Errors
    ///
    /// Returns [`KeyError::Random`] if the system returns no random bytes.
    pub fn generate() -> Result<GeneratedKey, KeyError> {
        let mut key = Self::from_secret(&[0; SECRET_BYTES]);
        getrandom::fill(&mut key.secret).map_err(|error| KeyError::Random(error.to_string()))?;
        Ok(GeneratedKey(key))
    }

    /// Returns the key that `text` describes.
    ///
    /// The text of a [`GeneratedKey`] is decoded. Any other text is stretched with Argon2id, which takes tens of
    /// milliseconds and 19 MiB: call this function once at the start, and not for each connection. Spaces in the text
    /// are part of the key.
    ///
    /// Every text is accepted, also a short one. An attacker who has recorded a handshake can guess a text that a
    /// person chose, at the cost of one Argon2id for each guess: take a [`GeneratedKey`], or a text of 128 random bits.
    /// The [id](Self::id) of a stretched key is never sent, because a table of words and ids would show the word.
    ///
    /// # Errors
    ///
    /// Returns [`KeyError::Empty`] if the text has only white space, and [`KeyError::Mistyped`] if it looks like the
    /// text of a [`GeneratedKey`] but is damaged.
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

    /// Returns the key in the text of a [`GeneratedKey`]. No text is stretched, so one of another host costs nothing.
    /// Fails with [`KeyError::Mistyped`] for any other text.
    #[cfg(feature = "cli")]
    pub(crate) fn parse_generated(text: impl AsRef<[u8]>) -> Result<Self, KeyError> {
        let encoded = text.as_ref().strip_prefix(PREFIX);
        encoded.and_then(decode).ok_or(KeyError::Mistyped)
    }

    /// Returns the key with these random bytes, without stretching them.
    pub(crate) fn from_secret(secret: &[u8; SECRET_BYTES]) -> Self {
        Self {
            secret: *secret,
            origin: KeyOrigin::Random,
        }
    }

    /// Returns true if the key was stretched from a text that a user chose. The id of such a key is not sent.
    pub(crate) fn is_stretched(&self) -> bool {
        self.origin != KeyOrigin::Random
    }

    /// Returns true if the key was stretched from a text of fewer than [`MIN_CHOSEN_CHARS`] characters.
    #[cfg(feature = "cli")]
    pub(crate) fn is_short(&self) -> bool {
        self.origin == KeyOrigin::StretchedShort
    }

    /// Returns the bytes of the key, for the handshake and for tickets.
    pub(crate) fn secret(&self) -> &[u8; SECRET_BYTES] {
        &self.secret
    }
}

impl Drop for Key {
    fn drop(&mut self) {
        self.secret.zeroize();
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(..)")
    }
}

/// A key that [`Key::generate`] made. Only generated keys have a text to print, because the user passes that text to
/// the other end.
#[derive(Clone)]
pub struct GeneratedKey(Key);

impl GeneratedKey {
    /// Returns the key.
    #[must_use]
    pub fn key(&self) -> &Key {
        &self.0
    }

    /// Returns the text of the key, which [`Key::parse`] decodes: `rdk1`, then 56 characters of lower-case base32,
    /// which hold the 32 bytes of the key and a checksum of 3 bytes. The text has only letters and digits, so it needs
    /// no quoting in a shell.
    #[must_use]
    pub fn text(&self) -> KeyText {
        let mut bytes = Zeroizing::new([0; SECRET_BYTES + CHECKSUM_BYTES]);
        bytes[..SECRET_BYTES].copy_from_slice(self.secret());
        bytes[SECRET_BYTES..].copy_from_slice(&checksum(self.secret()));
        let mut encoded = Zeroizing::new(BASE32_NOPAD.encode(bytes.as_slice()));
        encoded.make_ascii_lowercase();
        // The string has its full capacity from the start: growing it would leave copies of the key in memory.
        let mut text = Zeroizing::new(String::with_capacity(PREFIX.len() + ENCODED_CHARS));
        text.extend(PREFIX.iter().copied().map(char::from));
        text.push_str(&encoded);
        KeyText(text)
    }
}

impl AsRef<Key> for Key {
    fn as_ref(&self) -> &Key {
        self
    }
}

impl AsRef<Key> for GeneratedKey {
    fn as_ref(&self) -> &Key {
        &self.0
    }
}

impl Deref for GeneratedKey {
    type Target = Key;

    /// Returns the key, so that a `&GeneratedKey` can stand where a `&Key` is wanted.
    fn deref(&self) -> &Key {
        &self.0
    }
}

impl fmt::Debug for GeneratedKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("GeneratedKey(..)")
    }
}

/// The text of a key: a `str` that is wiped from memory when dropped. `Display` prints it, and `Debug` does not.
pub struct KeyText(Zeroizing<String>);

impl KeyText {
    /// Returns the text as a `str`.
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

/// The error of reading or making a key. No message contains the text of the key.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// The user gave no key.
    #[error("no key was given")]
    Missing,
    /// The text of the key is empty or has only white space.
    #[error("the key is empty, and protects nothing")]
    Empty,
    /// The text looks like that of a [`GeneratedKey`], but its checksum does not match.
    #[error("this looks like a key made by rdpipe, but it is mistyped or cut off")]
    Mistyped,
    /// The key file cannot be read.
    #[error("cannot read the key file {}: {source}", path.display())]
    File {
        /// The path that was given.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// Another user can change the key file, and so choose the key.
    #[error("the key file {} is not used: {reason}", path.display())]
    FileUnsafe {
        /// The path that was given.
        path: PathBuf,
        /// Who can change the file, and what to do.
        reason: String,
    },
    /// The first line of the key file is empty or has only white space.
    #[error("the key file {} has no key in its first line", .0.display())]
    FileEmpty(PathBuf),
    /// The first line of the key file is too long for a key.
    #[error("the first line of the key file {} is longer than {} bytes; is it the right file?", .0.display(), MAX_LINE_BYTES)]
    FileLong(PathBuf),
    /// The system returned no random bytes.
    #[error("cannot make a key: the system returned no random bytes: {0}")]
    Random(String),
    /// Stretching the key failed.
    #[error("cannot use this key: {0}")]
    Stretch(String),
}

/// The size of a key: 256 bits, as many as the key of the cipher has.
const SECRET_BYTES: usize = 32;

/// The size of the checksum in the text of a key. A mistyped key passes as another key once in 2^24 times. Key and
/// checksum together have 35 bytes, a multiple of five, so base32 has no unused bits and every key has exactly one
/// text.
const CHECKSUM_BYTES: usize = 3;

/// The number of characters after the prefix: base32 holds five bits in each.
const ENCODED_CHARS: usize = (SECRET_BYTES + CHECKSUM_BYTES) * 8 / 5;

/// The number of characters from which a chosen key is accepted without a warning: 16 characters of base64 hold 96
/// random bits. Words are shorter as a rule, and attackers have them in dictionaries.
const MIN_CHOSEN_CHARS: usize = 16;

/// The reason why programs warn of a short key, or refuse it.
#[cfg(feature = "cli")]
pub(crate) const SHORT_KEY: &str =
    "a key of fewer than 16 characters can be guessed from a recording of the network";

/// The most stretched keys of one listener. The first message of a dialer with such a key has no id, so the listener
/// tries all of them for each stranger: a few microseconds of hashing for each.
pub(crate) const MAX_STRETCHED_KEYS: usize = 16;

/// The first characters of the text of a generated key. The digit is the version of the format.
const PREFIX: &[u8] = b"rdk1";

/// The memory that Argon2id uses, in KiB. Memory, passes and lanes are the minimum that OWASP's Password Storage Cheat
/// Sheet recommends (m = 19 MiB, t = 2, p = 1), and also the default of the argon2 crate. Stretching takes tens of
/// milliseconds, once for each process.
const STRETCH_KIB: u32 = 19 * 1024;
/// The number of passes of Argon2id: see [`STRETCH_KIB`].
const STRETCH_PASSES: u32 = 2;
/// The number of lanes of Argon2id: see [`STRETCH_KIB`].
const STRETCH_LANES: u32 = 1;

/// The salt of Argon2id, which is the same in every installation.
///
/// Before two ends have authenticated each other, they share only the key. To send a salt, an end would have to let a
/// message from a stranger decide how it stretches the key, and stretching would cost 19 MiB for each connection. The
/// price of a fixed salt is that one table of guesses, computed for this program, works against all installations.
/// Generated keys are not stretched and need no salt.
const SALT: &[u8] = b"rdpipe shared key, version 1";

/// Stretches a text into a key, so that guessing the text from a recorded handshake is expensive.
fn stretch(text: &[u8]) -> Result<Key, KeyError> {
    let unusable = |error: argon2::Error| KeyError::Stretch(error.to_string());
    let params = Params::new(
        STRETCH_KIB,
        STRETCH_PASSES,
        STRETCH_LANES,
        Some(SECRET_BYTES),
    )
    .map_err(unusable)?;
    let mut memory = Vec::new();
    let count = params.block_count();
    memory.try_reserve_exact(count).map_err(|_| {
        KeyError::Stretch(format!(
            "stretching it takes {} MiB of memory, which the system does not give (see `ulimit -v`)",
            STRETCH_KIB / 1024
        ))
    })?;
    memory.resize(count, Block::default());
    let mut key = Key {
        secret: [0; SECRET_BYTES],
        origin: if characters(text) < MIN_CHOSEN_CHARS {
            KeyOrigin::StretchedShort
        } else {
            KeyOrigin::Stretched
        },
    };
    Argon2::new(Algorithm::Argon2id, Version::V0x13, params)
        .hash_password_into_with_memory(text, SALT, &mut key.secret, &mut memory)
        .map_err(unusable)?;
    Ok(key)
}

/// Returns the number of characters of a text; of its bytes if it is not UTF-8.
fn characters(text: &[u8]) -> usize {
    std::str::from_utf8(text).map_or(text.len(), |text| text.chars().count())
}

/// Returns the key in `encoded`, the text after the prefix, or `None` if the text is damaged.
fn decode(encoded: &[u8]) -> Option<Key> {
    // Upper case is an error, because every key has exactly one text.
    if encoded.len() != ENCODED_CHARS || encoded.iter().any(u8::is_ascii_uppercase) {
        return None;
    }
    let upper = Zeroizing::new(encoded.to_ascii_uppercase());
    let mut bytes = Zeroizing::new([0; SECRET_BYTES + CHECKSUM_BYTES]);
    BASE32_NOPAD.decode_mut(&upper, bytes.as_mut_slice()).ok()?;
    let key = Key::from_secret(bytes.first_chunk()?);
    (checksum(key.secret()) == bytes[SECRET_BYTES..]).then_some(key)
}

/// Returns true if a text without the prefix is probably a mistyped generated key: in upper case, or with an error in
/// the prefix. Stretching such a text would lead to "the keys do not match" on the other host.
pub(crate) fn resembles_ours(text: &[u8]) -> bool {
    let ours_in_capitals = text
        .get(..PREFIX.len())
        .is_some_and(|start| start.eq_ignore_ascii_case(PREFIX));
    let tail = text.len().checked_sub(ENCODED_CHARS).map(|at| &text[at..]);
    ours_in_capitals || tail.is_some_and(|tail| decode(tail).is_some())
}

/// Returns the checksum of a key, which detects typing errors. It neither adds secrecy nor reduces it.
fn checksum(secret: &[u8; SECRET_BYTES]) -> [u8; CHECKSUM_BYTES] {
    let hash = xxh3_64(secret).to_be_bytes();
    [hash[0], hash[1], hash[2]]
}

/// The size of a [`keyed_digest`].
pub(crate) const DIGEST_BYTES: usize = 32;

/// Returns the HMAC-BLAKE2s of `data` under `secret`, which only an end that has `secret` can compute.
pub(crate) fn keyed_digest(secret: &[u8; 32], data: &[u8]) -> [u8; DIGEST_BYTES] {
    let mac = <SimpleHmac<Blake2s256> as Mac>::new_from_slice(secret);
    let mac = mac.expect("a key of any length is a key of HMAC");
    mac.chain_update(data).finalize().into_bytes().into()
}

/// The size of a [`KeyId`]: 128 bits, so that two keys do not share one.
pub(crate) const KEY_ID_BYTES: usize = 16;

/// The name of a key, by which a [`Listener`](crate::Listener) with many keys finds the one that a peer uses:
/// [`Listener::bind_with`](crate::Listener::bind_with).
///
/// It follows from the key, and the key does not follow from it. A peer sends the id of a [`GeneratedKey`] in the
/// clear, so an observer of the network can see that two connections use the same key, and nothing else of the key.
/// The id of a key that was stretched from a word is never sent. Do not publish it either: a table of words and ids
/// shows the word. `Display` prints 32 hexadecimal digits.
///
/// ```
/// use rdpipe::Key;
///
/// # fn main() -> Result<(), rdpipe::KeyError> {
/// let key = Key::generate()?;
/// assert_eq!(key.id(), Key::parse(key.text().as_str())?.id());
/// assert_eq!(key.id().to_string().len(), 32);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyId([u8; KEY_ID_BYTES]);

impl KeyId {
    /// Returns the id that a peer has sent.
    pub(crate) fn from_bytes(bytes: [u8; KEY_ID_BYTES]) -> Self {
        Self(bytes)
    }

    /// Returns the id as it is sent.
    pub(crate) fn to_bytes(self) -> [u8; KEY_ID_BYTES] {
        self.0
    }
}

impl Key {
    /// Returns the name of the key.
    #[must_use]
    pub fn id(&self) -> KeyId {
        let digest = keyed_digest(self.secret(), b"rdpipe key id");
        KeyId(std::array::from_fn(|at| digest[at]))
    }
}

impl fmt::Display for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&data_encoding::HEXLOWER.encode(&self.0))
    }
}

impl fmt::Debug for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeyId({self})")
    }
}

impl Key {
    /// Reads a key from the first line of a file, without the line end. If this user is root and the file belongs to
    /// another user, the second part of the result is a sentence that warns about it.
    ///
    /// Reads no byte after the first line, so the file may be a pipe that continues with data.
    ///
    /// # Errors
    ///
    /// Returns [`KeyError::File`] if the file cannot be read, [`KeyError::FileUnsafe`] if another user can read or
    /// change it, [`KeyError::FileEmpty`] if its first line is empty, [`KeyError::FileLong`] if the first line is too long for a key,
    /// and the errors of [`parse`](Self::parse).
    pub fn from_file(path: impl AsRef<Path>) -> Result<(Self, Option<String>), KeyError> {
        let path = path.as_ref();
        let (mut file, warning) = open_key_file(path)?;
        let line = first_line(&mut file)
            .map_err(|source| unreadable(path, source))?
            .ok_or_else(|| KeyError::FileLong(path.to_owned()))?;
        match Self::parse(line.as_slice()) {
            Ok(key) => Ok((key, warning)),
            Err(KeyError::Empty) => Err(KeyError::FileEmpty(path.to_owned())),
            Err(error) => Err(error),
        }
    }
}

/// Opens a key file. Returns a warning if this user is root and the file belongs to another user.
/// Fails with [`KeyError::File`] if the file cannot be opened, and [`KeyError::FileUnsafe`] if another user can read or
/// change it.
pub(crate) fn open_key_file(path: &Path) -> Result<(File, Option<String>), KeyError> {
    let file = File::open(path).map_err(|source| unreadable(path, source))?;
    let warning = check_key_file(path, &file)?;
    Ok((file, warning))
}

/// Checks who else can use an open key file. Returns a warning if this user is root and the file belongs to another
/// user.
/// Fails with [`KeyError::FileUnsafe`] if another user can read or change the file.
pub(crate) fn check_key_file(path: &Path, file: &File) -> Result<Option<String>, KeyError> {
    let metadata = file.metadata().map_err(|source| unreadable(path, source))?;
    if !metadata.is_file() {
        return Ok(None);
    }
    let reader = geteuid().as_raw();
    let protected = protection(path, "key file", metadata.mode(), metadata.uid(), reader);
    protected.map_err(|reason| KeyError::FileUnsafe {
        path: path.to_owned(),
        reason,
    })
}

/// Returns the error of a key file that cannot be read.
pub(crate) fn unreadable(path: &Path, source: io::Error) -> KeyError {
    KeyError::File {
        path: path.to_owned(),
        source,
    }
}

/// The longest line of a key file, in bytes: far longer than any key, and short enough that reading `/dev/zero`
/// fails at once.
pub(crate) const MAX_LINE_BYTES: usize = 4096;

/// Reads the first line of a file, without the line end. Returns `None` if the line is too long.
pub(crate) fn first_line(file: &mut File) -> io::Result<Option<Zeroizing<Vec<u8>>>> {
    let mut line = Zeroizing::new(Vec::with_capacity(MAX_LINE_BYTES + 1));
    let mut byte = Zeroizing::new([0]);
    // Reads one byte at a time: the bytes after the line in a pipe may be the data to send.
    loop {
        match file.read(byte.as_mut_slice()) {
            Ok(0) => break,
            Ok(_) if byte[0] == b'\n' => break,
            Ok(_) if line.len() > MAX_LINE_BYTES => return Ok(None),
            Ok(_) => line.push(byte[0]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    if line.last() == Some(&b'\r') {
        line.pop();
    }
    Ok(Some(line))
}

/// Checks who else can use a file with a secret: its mode and the number of its owner, against that of the user who
/// reads it. `what` names the kind of file. Returns a warning if the reader is root and the file belongs to another user.
///
/// A user who can change the file chooses the secret, and one who can read it has the secret, so such a file is refused,
/// as ssh refuses a private key. Root may read the files of users, a mounted file in a container for example, and gets a
/// warning. A file of root may be readable for its group: a service that does not run as root reads it as one of that
/// group.
pub(crate) fn protection(
    path: &Path,
    what: &str,
    mode: u32,
    owner: u32,
    reader: u32,
) -> Result<Option<String>, String> {
    const ROOT: u32 = 0;
    let quoted = quoted(path.as_os_str());
    if mode & 0o022 != 0 {
        return Err(format!("others can write it; chmod go= {quoted}"));
    }
    let is_foreign = owner != reader && owner != ROOT;
    if is_foreign && reader != ROOT {
        return Err(format!(
            "it belongs to the user with the number {owner}, who can change it"
        ));
    }
    if is_foreign {
        return Ok(Some(format!(
            "the {what} {quoted} belongs to the user with the number {owner}, who can change it"
        )));
    }
    let (readable, taken) = if owner == reader {
        (0o044, "go")
    } else {
        (0o004, "o")
    };
    if mode & readable != 0 {
        return Err(format!("others can read it; chmod {taken}= {quoted}"));
    }
    Ok(None)
}

/// Returns the name quoted for a shell, so that the user can type the advised command.
fn quoted(name: &OsStr) -> String {
    let name = name.to_string_lossy();
    let plain = |c: char| c.is_alphanumeric() || "/._-+,:@%".contains(c);
    if name.chars().all(plain) {
        name.into_owned()
    } else {
        format!("'{}'", name.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

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
    fn the_text_of_a_key_keeps_its_format() {
        let text = GeneratedKey(Key::from_secret(&[7; SECRET_BYTES])).text();
        let expected = "rdk1a4dqobyha4dqobyha4dqobyha4dqobyha4dqobyha4dqobyha4dwf24g";
        assert_eq!(text.as_str(), expected);
        assert_eq!(
            Key::parse(text.as_str()).unwrap().secret(),
            &[7; SECRET_BYTES]
        );
    }

    #[test]
    fn both_ends_stretch_the_same_text_to_the_same_key() {
        let here = Key::parse("secret_key").unwrap();
        let there = Key::parse("secret_key").unwrap();
        assert_eq!(here.secret(), there.secret());
        assert_ne!(here.secret(), Key::parse("secret_kez").unwrap().secret());
        assert_ne!(here.secret(), Key::parse("secret_key ").unwrap().secret());
        assert!(Key::parse(b"\xff\xfe").is_ok(), "a key need not be UTF-8");
    }

    /// If two versions stretched differently, their handshake would fail because the keys differ.
    #[test]
    fn stretching_keeps_its_parameters() {
        let key = Key::parse("secret_key").unwrap();
        // Another implementation of Argon2id (OpenSSL's, through Python's cryptography) returns the same bytes.
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
    fn a_damaged_generated_key_is_reported_as_mistyped() {
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

    #[cfg(feature = "cli")]
    #[test]
    fn a_key_remembers_whether_it_can_be_guessed() {
        let made = Key::generate().unwrap();
        let decoded = Key::parse(made.text().as_str()).unwrap();
        for key in [made.key(), &decoded] {
            assert!(!key.is_stretched() && !key.is_short());
        }
        for (text, is_short) in [
            ("1", true),
            ("hunter2", true),
            ("fifteen chars..", true),
            ("\u{fc}\u{fc}\u{fc}\u{fc}\u{fc}\u{fc}\u{fc}\u{fc}", true),
            ("sixteen chars...", false),
            ("RtVF0QJxNL4yEt0pmA0q6A==", false),
        ] {
            let key = Key::parse(text).unwrap();
            assert_eq!(
                (key.is_stretched(), key.is_short()),
                (true, is_short),
                "{text}"
            );
            assert!(SHORT_KEY.contains(&MIN_CHOSEN_CHARS.to_string()));
            assert!(matches!(
                Key::parse_generated(text),
                Err(KeyError::Mistyped)
            ));
        }
        let parsed = Key::parse_generated(made.text().as_str()).unwrap();
        assert_eq!(parsed.secret(), made.secret());
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
            let made = GeneratedKey(Key::from_secret(&secret));
            let parsed = Key::parse(made.text().as_str()).unwrap();
            prop_assert_eq!(parsed.secret(), &secret);
        }

        #[test]
        fn one_changed_character_is_never_the_same_key(
            secret: [u8; SECRET_BYTES],
            at in 0..PREFIX.len() + ENCODED_CHARS,
            to in 0x20_u8..0x7f,
        ) {
            let mut text = GeneratedKey(Key::from_secret(&secret)).text().as_bytes().to_vec();
            prop_assume!(text[at] != to);
            text[at] = to;
            match Key::parse(&text) {
                Err(KeyError::Mistyped) => {}
                Err(other) => prop_assert!(false, "{}", other),
                // Once in 2^24 changes the checksum matches by chance.
                Ok(other) => prop_assert_ne!(other.secret(), &secret),
            }
        }
    }

    /// Python's `hmac` with `hashlib.blake2s` returns the same bytes.
    #[test]
    fn a_keyed_digest_is_hmac_blake2s() {
        let secret = std::array::from_fn(|at| u8::try_from(at).unwrap());
        let digest = keyed_digest(&secret, b"data");
        let expected = "45d04ca12cc44ade40f47bbdd8afb903809f5495b3fa3b3576c93588fba314ce";
        assert_eq!(data_encoding::HEXLOWER.encode(&digest), expected);
    }

    fn file_with(content: &[u8]) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), content).unwrap();
        file
    }

    #[test]
    fn a_key_file_holds_the_key_in_its_first_line() {
        let made = Key::generate().unwrap();
        for end in ["", "\n", "\r\n", "\nwhat follows is data\n"] {
            let file = file_with(format!("{}{end}", made.text()).as_bytes());
            let (key, warning) = Key::from_file(file.path()).unwrap();
            assert_eq!(key.secret(), made.key().secret());
            assert_eq!(warning, None, "tempfile makes files of mode 600");
        }
        let file = file_with(b"pass phrase \n");
        let (key, _) = Key::from_file(file.path()).unwrap();
        assert_eq!(key.secret(), Key::parse("pass phrase ").unwrap().secret());
    }

    #[test]
    fn a_key_file_without_a_key_is_refused() {
        for content in ["", "\n", "\r\n", "  \nkey\n"] {
            let file = file_with(content.as_bytes());
            assert!(matches!(
                Key::from_file(file.path()),
                Err(KeyError::FileEmpty(_))
            ));
        }
        let missing = Key::from_file("/nonexistent/key").unwrap_err();
        assert!(
            missing.to_string().contains("/nonexistent/key"),
            "{missing}"
        );
        assert!(matches!(Key::from_file("/"), Err(KeyError::File { .. })));
        assert!(matches!(
            Key::from_file("/dev/zero"),
            Err(KeyError::FileLong(_))
        ));
    }

    #[test]
    fn a_key_file_that_others_can_read_is_refused() {
        let file = file_with(b"key\n");
        for (mode, is_used) in [
            (0o600, true),
            (0o400, true),
            (0o640, false),
            (0o604, false),
            (0o644, false),
        ] {
            let permissions = std::fs::Permissions::from_mode(mode);
            std::fs::set_permissions(file.path(), permissions).unwrap();
            assert_eq!(Key::from_file(file.path()).is_ok(), is_used, "{mode:o}");
        }
        let (root, reader) = (0, 1000);
        let refused = |mode, owner, reader| {
            let protected = protection(Path::new("my key"), "key file", mode, owner, reader);
            protected.err()
        };
        for (mode, owner, reader, advice) in [
            (0o644, root, root, "chmod go= 'my key'"),
            (0o640, reader, reader, "chmod go= 'my key'"),
            (0o644, root, reader, "chmod o= 'my key'"),
        ] {
            let expected = format!("others can read it; {advice}");
            assert_eq!(refused(mode, owner, reader), Some(expected), "{mode:o}");
        }
        // A service reads a file of root as one of its group.
        assert_eq!(refused(0o640, root, reader), None);
    }

    #[test]
    fn a_key_file_that_others_can_change_is_refused() {
        let file = file_with(b"key\n");
        for mode in [0o620, 0o602, 0o664, 0o666] {
            let permissions = std::fs::Permissions::from_mode(mode);
            std::fs::set_permissions(file.path(), permissions).unwrap();
            let error = Key::from_file(file.path()).unwrap_err();
            assert!(matches!(error, KeyError::FileUnsafe { .. }), "{mode:o}");
            let text = error.to_string();
            assert!(text.contains("others can write it; chmod go="), "{text}");
        }
        let (root, reader, other) = (0, 1000, 1001);
        let protection =
            |owner, reader| protection(Path::new("key"), "key file", 0o600, owner, reader);
        assert_eq!(protection(reader, reader), Ok(None));
        assert_eq!(protection(root, reader), Ok(None));
        assert!(protection(other, reader).unwrap_err().contains("1001"));
        // Root is warned only.
        assert!(protection(other, root).unwrap().is_some());
    }
}
