//! An application's message inside the envelope.

use serde::{Deserialize, Serialize, de::DeserializeOwned};

/// The most bytes of an application's message: a command as long as Linux lets an argument be (128 KiB),
/// and as much again.
pub(crate) const MAX_PAYLOAD_BYTES: usize = 256 << 10;

/// An application's message in its encoded form: opaque to the envelope, at most [`MAX_PAYLOAD_BYTES`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Payload(Vec<u8>);

/// Why something cannot be, or is not, an application's message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum PayloadError {
    /// It is longer than [`MAX_PAYLOAD_BYTES`].
    #[error("an application's message of {bytes} bytes, where {MAX_PAYLOAD_BYTES} are the most")]
    TooLong {
        /// Its length.
        bytes: usize,
    },
    /// The bytes are not the encoding of the application's message.
    #[error("no message of this application")]
    Malformed(#[from] postcard::Error),
}

impl Payload {
    /// Encodes an application's message.
    ///
    /// # Errors
    ///
    /// [`PayloadError::TooLong`] when the encoding is longer than [`MAX_PAYLOAD_BYTES`].
    pub(crate) fn encode(message: &impl Serialize) -> Result<Self, PayloadError> {
        let payload = Self(postcard::to_stdvec(message)?);
        payload.check()?;
        Ok(payload)
    }

    /// Decodes the application's message.
    ///
    /// # Errors
    ///
    /// [`PayloadError::Malformed`] when it is no `T`, or when something follows it.
    pub(crate) fn decode<T: DeserializeOwned>(&self) -> Result<T, PayloadError> {
        match postcard::take_from_bytes(&self.0)? {
            (message, []) => Ok(message),
            _ => Err(postcard::Error::DeserializeBadEncoding.into()),
        }
    }

    /// Checks the length of a payload that came from a peer.
    pub(super) fn check(&self) -> Result<(), PayloadError> {
        let bytes = self.0.len();
        if bytes > MAX_PAYLOAD_BYTES {
            return Err(PayloadError::TooLong { bytes });
        }
        Ok(())
    }
}
