//! The name of a key in a handshake.

use std::fmt;

use super::{Key, digest::keyed_digest};

/// The size of a [`KeyId`]: 128 bits, so that two keys do not share one.
pub(crate) const KEY_ID_BYTES: usize = 16;

/// The name of a key, by which a [`Listener`](crate::Listener) with many keys finds the one that a peer uses:
/// [`Listener::bind_with`](crate::Listener::bind_with).
///
/// It follows from the key, and the key does not follow from it. A peer sends it in the clear, so an observer of the
/// network can see that two connections use the same key, and nothing else of the key. `Display` prints 32 hexadecimal
/// digits.
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
