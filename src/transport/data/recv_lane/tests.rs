//! Tests of the receive lane over a data path that is made up.

use std::task::Waker;

use super::*;
use crate::{
    Direction,
    transport::{control::message::Message, data::frame::HEADER_BYTES},
};

/// The number of slots of the pool, and the payload of a slot in bytes.
const DEPTH: u32 = 2;
const CHUNK: usize = 8192;

const SEED: u64 = 7;

/// A slot in heap memory.
struct Memory {
    index: u32,
    bytes: Box<[u8]>,
}

impl Slot for Memory {
    fn index(&self) -> u32 {
        self.index
    }

    fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }
}

/// A peer that sends one byte in each frame, as fast as the frames are taken: the first frame into slot 0, and all others
/// into slot 1, whatever it is granted.
struct Flood {
    chain: Chain,
    next: u32,
    /// The header that the peer leaves in the slot after this end has read the right one.
    left_in_slot: Option<Header>,
}

impl Flood {
    fn new() -> Self {
        Self {
            chain: Chain::new(SEED),
            next: 0,
            left_in_slot: None,
        }
    }
}

impl ReceivePath for Flood {
    type Slot = Memory;

    fn poll_frame(&mut self, _cx: &mut Context<'_>) -> Poll<io::Result<(Memory, Header)>> {
        let payload = [1];
        let header = self.chain.seal(self.next, &payload);
        let mut bytes = vec![0; HEADER_BYTES + CHUNK].into_boxed_slice();
        bytes[..HEADER_BYTES].copy_from_slice(&self.left_in_slot.unwrap_or(header).encode());
        bytes[HEADER_BYTES..=HEADER_BYTES].copy_from_slice(&payload);
        let index = std::mem::replace(&mut self.next, 1);
        Poll::Ready(Ok((Memory { index, bytes }, header)))
    }

    fn release(&mut self, _slot: Memory) -> bool {
        true
    }

    fn can_grant(&self) -> bool {
        true
    }

    fn post_receive(&mut self, _index: u32) {}
}

fn state() -> Arc<State> {
    State::new("hostB".to_owned(), Direction::Receive, 2)
}

fn credits(state: &State) -> usize {
    let messages = state.outgoing().messages;
    let slots = messages.iter().map(|message| match message {
        Message::Credit(slots) => slots.len(),
        _ => 0,
    });
    slots.sum()
}

#[test]
fn a_peer_that_ignores_credits_cannot_fill_the_outbox() {
    let state = state();
    let lane = SharedRecvLane::new(Flood::new(), DEPTH, SEED, faults::Faults::default());
    lane.grant_all(&state);
    let mut cx = Context::from_waker(Waker::noop());
    // The peer does not read the control connection, so the outbox stays as it is.
    lane.lock().receive_frames(&state, &mut cx, CHUNK);
    let error = state.receive_error().expect("the peer broke the protocol");
    let text = error.to_string();
    assert!(text.contains("credits were not sent"), "{text}");
    assert!(credits(&state) <= DEPTH as usize);
}

#[test]
fn a_header_that_the_peer_rewrites_has_no_effect() {
    let header = Header {
        length: u32::MAX,
        slot: 0,
        offset: 0,
        digest: 0,
    };
    let (state, mut flood) = (state(), Flood::new());
    flood.left_in_slot = Some(header);
    let lane = SharedRecvLane::new(flood, DEPTH, SEED, faults::Faults::default());
    lane.grant_all(&state);
    let mut cx = Context::from_waker(Waker::noop());
    let chunk = lane.lock().next(&state, &mut cx).expect("a chunk");
    assert_eq!(chunk.rest(), [1]);
}

#[test]
fn bytes_after_the_announced_end_are_not_delivered() {
    let state = state();
    let lane = SharedRecvLane::new(Flood::new(), DEPTH, SEED, faults::Faults::default());
    lane.grant_all(&state);
    let digest = Chain::new(SEED).digest();
    state.receive(Message::Fin { bytes: 0, digest });
    let mut cx = Context::from_waker(Waker::noop());
    for _ in 0..2 {
        assert!(lane.lock().next(&state, &mut cx).is_none());
        assert!(state.at_end().unwrap());
    }
}
