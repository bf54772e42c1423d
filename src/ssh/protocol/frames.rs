//! The frames that separate the messages of a session.

use tokio_util::codec::LengthDelimitedCodec;

use super::MAX_MESSAGE_BYTES;

/// Returns the codec for the frames between controller and agent: a length (u32, big-endian) before each message.
pub(in crate::ssh) fn codec() -> LengthDelimitedCodec {
    LengthDelimitedCodec::builder()
        .max_frame_length(MAX_MESSAGE_BYTES)
        .new_codec()
}
