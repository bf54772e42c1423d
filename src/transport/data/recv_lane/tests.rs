//! Tests of the receive lane over a data path that is made up.

use std::task::Waker;

use super::*;
use crate::{Direction, transport::control::message::Message};

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
}

impl ReceivePath for Flood {
    type Slot = Memory;

    fn poll_frame(&mut self, _cx: &mut Context<'_>) -> Poll<io::Result<Memory>> {
        let payload = [1];
        let header = self.chain.seal(self.next, &payload);
        let mut bytes = vec![0; HEADER_BYTES + CHUNK].into_boxed_slice();
        bytes[..HEADER_BYTES].copy_from_slice(&header.encode());
        bytes[HEADER_BYTES..=HEADER_BYTES].copy_from_slice(&payload);
        let index = std::mem::replace(&mut self.next, 1);
        Poll::Ready(Ok(Memory { index, bytes }))
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
    let flood = Flood {
        chain: Chain::new(SEED),
        next: 0,
    };
    let lane = SharedRecvLane::new(flood, DEPTH, SEED, faults::Faults::default());
    lane.grant_all(&state);
    let mut cx = Context::from_waker(Waker::noop());
    // The peer does not read the control connection, so the outbox stays as it is.
    lane.lock().receive_frames(&state, &mut cx, CHUNK);
    let error = state.receive_error().expect("the peer broke the protocol");
    let text = error.to_string();
    assert!(text.contains("credits were not sent"), "{text}");
    assert!(credits(&state) <= DEPTH as usize);
}
