//! Cuts the bytes of a stream into frames. Pure, no I/O.

use super::{
    MuxFault,
    frame::{FRAME_HEADER_BYTES, FlowId, FrameHead, FrameKind, PADDING},
};

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
    /// The connection was reset.
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
    /// Takes bytes from the front of `input`, until a frame or a part of a data frame is complete. Returns none if `input` is
    /// used up.
    ///
    /// # Errors
    ///
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
