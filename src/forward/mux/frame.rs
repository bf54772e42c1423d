//! The frames of a tunnel, as bytes, and the decoder that cuts a stream into frames. Pure, no I/O.
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

pub(crate) const FRAME_HEADER_BYTES: usize = 12;

/// The most payload bytes of a data frame: a connection waits for no longer frame of another one, and a system call for
/// each 64 KiB costs little beside the copy that it makes.
pub(crate) const MAX_DATA_BYTES: usize = 64 << 10;

/// The most payload bytes of any other frame. The frame fits into the smallest chunk.
pub(crate) const MAX_CONTROL_BYTES: usize = 2 << 10;

/// The byte that fills the end of a chunk.
pub(crate) const PADDING: u8 = 0;

/// The number of a connection in its stream. The near end opens odd ones, the far end even ones.
pub(crate) type FlowId = u32;

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
    Reset = 7,
    /// The receiver accepts more bytes of a connection.
    Window = 8,
}

/// The header of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FrameHead {
    pub(crate) kind: FrameKind,
    /// The connection.
    pub(crate) flow: FlowId,
    /// The length of the payload, or a number of bytes.
    pub(crate) value: u32,
}

impl FrameHead {
    pub(crate) fn data(flow: FlowId, length: usize) -> Self {
        debug_assert!((1..=MAX_DATA_BYTES).contains(&length));
        Self {
            kind: FrameKind::Data,
            flow,
            value: u32::try_from(length).unwrap_or(u32::MAX),
        }
    }

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

/// A frame that was received, or a part of a data frame.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum FramePiece<'a> {
    /// A message of the tunnel itself.
    Message(Vec<u8>),
    /// The peer asks for a connection.
    Open {
        /// The number of the connection.
        flow: FlowId,
        /// The bytes that may be sent to the peer.
        window: u32,
        /// What to connect to, as the peer's program encoded it.
        target: Vec<u8>,
    },
    /// The peer has made the connection.
    Opened {
        /// The number of the connection.
        flow: FlowId,
        /// The bytes that may be sent to the peer.
        window: u32,
    },
    /// The peer cannot make the connection.
    Refused {
        /// The number of the connection.
        flow: FlowId,
        /// Why, as the peer's program encoded it.
        reason: Vec<u8>,
    },
    /// The next bytes of a connection.
    Data {
        /// The number of the connection.
        flow: FlowId,
        /// At least one byte.
        bytes: &'a [u8],
    },
    /// No more bytes of a connection follow.
    Fin(FlowId),
    Reset(FlowId),
    /// More bytes of a connection may be sent.
    Window {
        /// The number of the connection.
        flow: FlowId,
        /// How many.
        more: u32,
    },
}

/// Cuts bytes into frames. Frames may be split anywhere.
#[derive(Debug, Default)]
pub(crate) struct FrameDecoder {
    state: DecoderState,
}

#[derive(Debug)]
enum DecoderState {
    /// The first bytes of a header.
    Head([u8; FRAME_HEADER_BYTES], usize),
    /// So many bytes of a data frame are missing.
    Data(FlowId, usize),
    /// The payload of another frame is collected.
    Payload(FrameHead, Vec<u8>),
}

impl Default for DecoderState {
    fn default() -> Self {
        Self::Head([0; FRAME_HEADER_BYTES], 0)
    }
}

impl FrameDecoder {
    /// Takes bytes from the front of `input`, until a frame or a part of a data frame is complete. Returns none if
    /// `input` is used up.
    /// Fails if the bytes are not frames. The decoder must not be used any more.
    pub(crate) fn next<'a>(
        &mut self,
        input: &mut &'a [u8],
    ) -> Result<Option<FramePiece<'a>>, MuxFault> {
        loop {
            match &mut self.state {
                DecoderState::Head(bytes, filled) => {
                    if *filled == 0 {
                        let padding = input.iter().take_while(|byte| **byte == PADDING).count();
                        *input = &input[padding..];
                    }
                    *filled += take(input, &mut bytes[*filled..]);
                    if *filled < FRAME_HEADER_BYTES {
                        return Ok(None);
                    }
                    let head = FrameHead::decode(*bytes)?;
                    self.state = DecoderState::default();
                    if let Some(piece) = self.begin(head) {
                        return Ok(Some(piece));
                    }
                }
                DecoderState::Data(flow, left) => {
                    let count = input.len().min(*left);
                    if count == 0 {
                        return Ok(None);
                    }
                    let (bytes, rest) = input.split_at(count);
                    *input = rest;
                    *left -= count;
                    let piece = FramePiece::Data { flow: *flow, bytes };
                    if *left == 0 {
                        self.state = DecoderState::default();
                    }
                    return Ok(Some(piece));
                }
                DecoderState::Payload(head, payload) => {
                    let count = input.len().min(head.value as usize - payload.len());
                    payload.extend_from_slice(&input[..count]);
                    *input = &input[count..];
                    if payload.len() < head.value as usize {
                        return Ok(None);
                    }
                    let piece = whole(*head, std::mem::take(payload));
                    self.state = DecoderState::default();
                    return Ok(Some(piece));
                }
            }
        }
    }

    /// Returns true if the bytes so far end with a whole frame.
    pub(crate) fn is_between_frames(&self) -> bool {
        matches!(self.state, DecoderState::Head(_, 0))
    }

    /// Begins the frame after its header. Returns the frame if it has no payload.
    fn begin(&mut self, head: FrameHead) -> Option<FramePiece<'static>> {
        let FrameHead { kind, flow, value } = head;
        match kind {
            FrameKind::Message | FrameKind::Open | FrameKind::Refused => {
                self.state = DecoderState::Payload(head, Vec::with_capacity(value as usize));
                None
            }
            FrameKind::Data => {
                self.state = DecoderState::Data(flow, value as usize);
                None
            }
            FrameKind::Opened => Some(FramePiece::Opened {
                flow,
                window: value,
            }),
            FrameKind::Fin => Some(FramePiece::Fin(flow)),
            FrameKind::Reset => Some(FramePiece::Reset(flow)),
            FrameKind::Window => Some(FramePiece::Window { flow, more: value }),
        }
    }
}

/// Returns the frame with this payload, which its header announced.
fn whole(head: FrameHead, mut payload: Vec<u8>) -> FramePiece<'static> {
    let flow = head.flow;
    match head.kind {
        FrameKind::Open => {
            let target = payload.split_off(4);
            let window = payload.try_into().map_or(0, u32::from_le_bytes);
            FramePiece::Open {
                flow,
                window,
                target,
            }
        }
        FrameKind::Refused => FramePiece::Refused {
            flow,
            reason: payload,
        },
        _ => FramePiece::Message(payload),
    }
}

/// Moves as many bytes as fit from the front of `input` to `target`. Returns how many.
fn take(input: &mut &[u8], target: &mut [u8]) -> usize {
    let count = input.len().min(target.len());
    target[..count].copy_from_slice(&input[..count]);
    *input = &input[count..];
    count
}
