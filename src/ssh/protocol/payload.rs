//! The message of an application, as it travels inside the envelope.

use serde::{Deserialize, Serialize, de::DeserializeOwned};

/// The most bytes of an application's message: the longest command that Linux accepts as an argument (128 KiB),
/// and as much again for the rest.
pub(crate) const MAX_PAYLOAD_BYTES: usize = 256 << 10;

/// An application's message in its encoded form: opaque to the envelope, at most [`MAX_PAYLOAD_BYTES`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Payload(Vec<u8>);

/// The reason why an application's message could not be encoded or decoded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum PayloadError {
    /// The message is longer than [`MAX_PAYLOAD_BYTES`].
    #[error(
        "an application's message has {bytes} bytes, more than the limit of {MAX_PAYLOAD_BYTES}"
    )]
    TooLong {
        /// The length of the message.
        bytes: usize,
    },
    /// The bytes are not the encoding of the application's message.
    #[error("not a message of this application")]
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
    /// [`PayloadError::Malformed`] if the bytes are not exactly one `T`.
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
