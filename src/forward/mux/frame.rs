//! The frames of a tunnel, as bytes. Pure, no I/O.
//!
//! | bytes | field | meaning |
//! |-------|-------|---------|
//! | 0 | kind | below |
//! | 1..4 | | zero |
//! | 4..8 | flow | the number of the connection, little-endian; 0 in a message |
//! | 8..12 | value | the length of the payload, or a number of bytes, little-endian |
//!
//! | kind | from | value | payload |
//! |------|------|-------|---------|
//! | 0 padding | both | | none: this one byte is the whole frame, to the end of a chunk |
//! | 1 message | both | length | a message of the tunnel itself |
//! | 2 open | either end | length | window of this end (4 bytes), then the target |
//! | 3 opened | the other end | its window | |
//! | 4 refused | the other end | length | the reason |
//! | 5 data | both | length | bytes of the connection |
//! | 6 fin | both | 0 | |
//! | 7 reset | both | 0 | |
//! | 8 window | both | bytes that may be sent in addition | |

use super::MuxFault;

/// The length of the header of a frame.
pub(crate) const FRAME_HEADER_BYTES: usize = 12;

/// The most payload bytes of a data frame: a connection waits for no longer frame of another one, and a system call for
/// each 64 KiB costs little beside the copy that it makes.
pub(crate) const MAX_DATA_BYTES: usize = 64 << 10;

/// The most payload bytes of any other frame. The frame fits into the smallest chunk.
pub(crate) const MAX_CONTROL_BYTES: usize = 2 << 10;

/// The byte that fills the end of a chunk.
pub(crate) const PADDING: u8 = 0;

/// The number of a connection in its tunnel. The end that listens on the stream opens odd ones, the other end even ones.
pub(crate) type FlowId = u32;

/// What a frame is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FrameKind {
    /// A message of the tunnel itself.
    Message = 1,
    /// Asks for a connection.
    Open = 2,
    /// Answers that the connection is made.
    Opened = 3,
    /// Answers that the connection cannot be made.
    Refused = 4,
    /// Bytes of a connection.
    Data = 5,
    /// The end of one direction of a connection.
    Fin = 6,
    /// The connection was reset.
    Reset = 7,
    /// The receiver accepts more bytes of a connection.
    Window = 8,
}

/// The header of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FrameHead {
    /// What the frame is.
    pub(crate) kind: FrameKind,
    /// The connection.
    pub(crate) flow: FlowId,
    /// The length of the payload, or a number of bytes.
    pub(crate) value: u32,
}

impl FrameHead {
    /// Returns the header of a data frame.
    pub(crate) fn data(flow: FlowId, length: usize) -> Self {
        debug_assert!((1..=MAX_DATA_BYTES).contains(&length));
        Self {
            kind: FrameKind::Data,
            flow,
            value: u32::try_from(length).unwrap_or(u32::MAX),
        }
    }

    /// Returns the bytes of the header.
    pub(crate) fn encode(self) -> [u8; FRAME_HEADER_BYTES] {
        let mut bytes = [0; FRAME_HEADER_BYTES];
        bytes[0] = self.kind as u8;
        bytes[4..8].copy_from_slice(&self.flow.to_le_bytes());
        bytes[8..].copy_from_slice(&self.value.to_le_bytes());
        bytes
    }

    /// Decodes a header, and checks its length.
    pub(super) fn decode(bytes: [u8; FRAME_HEADER_BYTES]) -> Result<Self, MuxFault> {
        let [kind, a, b, c, flow @ .., v0, v1, v2, v3] = bytes;
        let kind = match kind {
            1 => FrameKind::Message,
            2 => FrameKind::Open,
            3 => FrameKind::Opened,
            4 => FrameKind::Refused,
            5 => FrameKind::Data,
            6 => FrameKind::Fin,
            7 => FrameKind::Reset,
            8 => FrameKind::Window,
            other => return Err(MuxFault::Kind(other)),
        };
        let head = Self {
            kind,
            flow: u32::from_le_bytes(flow),
            value: u32::from_le_bytes([v0, v1, v2, v3]),
        };
        let length = head.value as usize;
        let fits = match kind {
            FrameKind::Data => (1..=MAX_DATA_BYTES).contains(&length),
            FrameKind::Open => (4..=MAX_CONTROL_BYTES).contains(&length),
            FrameKind::Message | FrameKind::Refused => length <= MAX_CONTROL_BYTES,
            FrameKind::Fin | FrameKind::Reset => length == 0,
            FrameKind::Opened | FrameKind::Window => true,
        };
        let is_message = kind == FrameKind::Message;
        if !fits || [a, b, c] != [0; 3] || is_message != (head.flow == 0) {
            return Err(MuxFault::Header);
        }
        Ok(head)
    }
}
