//! Tests of the receive lane over a data path that is made up.

use std::{sync::mpsc, task::Waker, thread};

use futures::task::AtomicWaker;

use super::*;
use crate::{
    Direction,
    transport::{
        control::message::Message,
        data::{
            frame::HEADER_BYTES, path::DataPath, recv_half::RecvHalf, shared::Shared, tcp::TcpSend,
        },
    },
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

/// A peer of which nothing has arrived. The thread that looks for it stops before its next use of the stream's state.
struct Held {
    is_looked_at: mpsc::Sender<()>,
    is_held: mpsc::Receiver<()>,
}

impl ReceivePath for Held {
    type Slot = Memory;

    fn poll_frame(&mut self, _cx: &mut Context<'_>) -> Poll<io::Result<(Memory, Header)>> {
        self.is_looked_at.send(()).unwrap();
        self.is_held.recv().unwrap();
        Poll::Pending
    }

    fn release(&mut self, _slot: Memory) -> bool {
        true
    }

    fn can_grant(&self) -> bool {
        true
    }

    fn post_receive(&mut self, _index: u32) {}
}

struct HeldPath;

impl DataPath for HeldPath {
    type Send = TcpSend;
    type Receive = Held;
}

/// A read looks for a chunk, and then for the end. In between the steward cannot take the lane: it could verify the last
/// chunk and complete the stream, and the reader would get the end in place of the chunk.
#[test]
fn the_lane_stays_locked_between_a_look_for_chunks_and_for_the_end() {
    let (is_looked_at, looked) = mpsc::channel();
    let (hold, is_held) = mpsc::channel();
    let path = Held {
        is_looked_at,
        is_held,
    };
    let state = state();
    let recv_lane = SharedRecvLane::new(path, DEPTH, SEED, faults::Faults::default());
    recv_lane.grant_all(&state);
    let shared: Arc<Shared<HeldPath>> = Arc::new(Shared {
        state,
        send_lane: None,
        recv_lane: Some(recv_lane),
        attended: AtomicWaker::new(),
    });
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut half = RecvHalf::new(Arc::clone(&shared));
            let read = half.poll_fill(&mut Context::from_waker(Waker::noop()));
            assert!(read.is_pending());
        });
        looked.recv().unwrap();
        let stopped = shared.state.hold();
        hold.send(()).unwrap();
        // A second look fails the test instead of waiting.
        drop(hold);
        let lane = shared.recv_lane.as_ref().unwrap();
        for _ in 0..10_000 {
            assert!(lane.lane.try_lock().is_err(), "the steward can take it");
            thread::yield_now();
        }
        drop(stopped);
    });
}
