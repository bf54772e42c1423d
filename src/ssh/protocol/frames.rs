//! Where one message ends and the next begins.

use tokio_util::codec::LengthDelimitedCodec;

use super::MAX_MESSAGE_BYTES;

/// Frames for the messages of the controller and of an agent.
pub(in crate::ssh) fn codec() -> LengthDelimitedCodec {
    LengthDelimitedCodec::builder()
        .max_frame_length(MAX_MESSAGE_BYTES)
        .new_codec()
}
