//! Two ends that exchange frames through a queue of bytes.

use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
    sync::Arc,
};

use proptest::prelude::*;

use super::{
    Mux, MuxEnd, MuxEvent, MuxFault, WindowBudget,
    frame::{
        FRAME_HEADER_BYTES, FlowId, FrameDecoder, FrameHead, FrameKind, FramePiece, MAX_DATA_BYTES,
    },
    window::{BUDGET_BYTES, MAX_WINDOW, MIN_WINDOW},
};

/// One end: its connections, the bytes that travel to it, and what it has seen.
struct End {
    mux: Mux,
    decoder: FrameDecoder,
    inbox: Vec<u8>,
    /// The bytes that were received and not consumed.
    unread: BTreeMap<FlowId, usize>,
    received: BTreeMap<FlowId, usize>,
    seen: Vec<String>,
}

impl End {
    fn new(end: MuxEnd) -> Self {
        Self::sharing(end, &Arc::default())
    }

    /// Returns an end of one of several streams.
    fn sharing(end: MuxEnd, budget: &Arc<WindowBudget>) -> Self {
        Self {
            mux: Mux::new(end, budget),
            decoder: FrameDecoder::default(),
            inbox: Vec::new(),
            unread: BTreeMap::new(),
            received: BTreeMap::new(),
            seen: Vec::new(),
        }
    }

    /// Moves the control frames of this end to `peer`.
    fn flush(&mut self, peer: &mut Self) {
        let mut room = [0; 4096];
        loop {
            let count = self.mux.write_control(&mut room);
            if count == 0 {
                assert!(!self.mux.has_control());
                return;
            }
            peer.inbox.extend_from_slice(&room[..count]);
        }
    }

    /// Sends up to `count` bytes of a connection. Returns how many the peer accepts.
    fn send(&mut self, id: FlowId, count: usize, peer: &mut Self) -> usize {
        self.flush(peer);
        let accepted = usize::try_from(self.mux.sendable(id)).unwrap();
        let count = count.min(accepted).min(MAX_DATA_BYTES);
        if count > 0 {
            peer.inbox.extend(FrameHead::data(id, count).encode());
            peer.inbox.resize(peer.inbox.len() + count, 7);
            self.mux.sent(id, count);
        }
        count
    }

    /// Handles the first `most` bytes that have arrived.
    fn receive(&mut self, most: usize) -> Result<(), MuxFault> {
        let count = self.inbox.len().min(most);
        let later = self.inbox.split_off(count);
        let bytes = mem::replace(&mut self.inbox, later);
        let mut rest = &bytes[..];
        while let Some(piece) = self.decoder.next(&mut rest)? {
            match self.mux.receive(piece)? {
                MuxEvent::None => {}
                MuxEvent::Data(id, bytes) => {
                    *self.unread.entry(id).or_default() += bytes.len();
                    *self.received.entry(id).or_default() += bytes.len();
                }
                MuxEvent::Open(id, target) => {
                    self.seen.push(format!("open {id}"));
                    if target == b"no" {
                        self.mux.refuse(id, b"refused".to_vec());
                    } else {
                        self.mux.accept(id);
                    }
                }
                other => self.seen.push(format!("{other:?}")),
            }
        }
        Ok(())
    }

    /// Consumes up to `count` bytes of a connection.
    fn consume(&mut self, id: FlowId, count: usize) {
        let unread = self.unread.entry(id).or_default();
        let count = count.min(*unread);
        *unread -= count;
        self.mux.consume(id, count);
    }
}

fn ends() -> (End, End) {
    (End::new(MuxEnd::Odd), End::new(MuxEnd::Even))
}

/// Exchanges control frames until there are none.
fn settle(a: &mut End, b: &mut End) {
    loop {
        a.flush(b);
        b.flush(a);
        if a.inbox.is_empty() && b.inbox.is_empty() {
            return;
        }
        a.receive(usize::MAX).unwrap();
        b.receive(usize::MAX).unwrap();
    }
}

fn opened(a: &mut End, b: &mut End) -> FlowId {
    let id = a.mux.open(b"target".to_vec()).unwrap();
    settle(a, b);
    id
}

#[test]
fn a_connection_is_opened_used_and_closed() {
    let (mut a, mut b) = ends();
    let id = opened(&mut a, &mut b);
    assert_eq!(a.seen, [format!("Opened({id})")]);
    assert_eq!(a.send(id, 100, &mut b), 100);
    a.mux.finish(id);
    settle(&mut a, &mut b);
    assert_eq!(b.seen, [format!("open {id}"), format!("Fin({id})")]);
    assert_eq!(b.send(id, 50, &mut a), 50);
    b.mux.finish(id);
    settle(&mut a, &mut b);
    // The connection lives until its bytes have been consumed.
    assert_eq!((a.mux.count(), b.mux.count()), (1, 1));
    a.consume(id, 50);
    b.consume(id, 100);
    assert_eq!((a.mux.count(), b.mux.count()), (0, 0));
    assert_eq!((a.mux.free(), b.mux.free()), (BUDGET_BYTES, BUDGET_BYTES));
}

#[test]
fn a_refusal_and_a_reset_end_a_connection() {
    let (mut a, mut b) = ends();
    let id = a.mux.open(b"no".to_vec()).unwrap();
    settle(&mut a, &mut b);
    assert!(a.seen[0].starts_with(&format!("Refused({id}")));
    let id = opened(&mut a, &mut b);
    a.send(id, 100, &mut b);
    settle(&mut a, &mut b);
    b.mux.reset(id);
    // Bytes that cross the reset are dropped.
    a.send(id, 100, &mut b);
    settle(&mut a, &mut b);
    assert_eq!(a.seen.last(), Some(&format!("Reset({id})")));
    assert_eq!((a.mux.count(), b.mux.count()), (0, 0));
    assert_eq!((a.mux.free(), b.mux.free()), (BUDGET_BYTES, BUDGET_BYTES));
}

#[test]
fn bytes_before_a_reset_keep_their_memory_until_they_are_consumed() {
    let (mut a, mut b) = ends();
    let id = opened(&mut a, &mut b);
    assert_eq!(b.send(id, 1000, &mut a), 1000);
    b.mux.reset(id);
    b.flush(&mut a);
    a.receive(usize::MAX).unwrap();
    assert_eq!(b.mux.count(), 0);
    assert!(a.mux.is_live(id) && a.mux.free() < BUDGET_BYTES);
    a.consume(id, 1000);
    assert_eq!((a.mux.count(), a.mux.free()), (0, BUDGET_BYTES));
    assert!(!a.mux.has_control(), "the peer needs no answer");
}

#[test]
fn an_end_before_a_reset_is_sent() {
    let (mut a, mut b) = ends();
    let id = opened(&mut a, &mut b);
    b.mux.finish(id);
    b.mux.reset(id);
    let mut room = [0; 64];
    let count = b.mux.write_control(&mut room);
    let (mut decoder, mut bytes) = (FrameDecoder::default(), &room[..count]);
    let mut pieces = Vec::new();
    while let Some(piece) = decoder.next(&mut bytes).unwrap() {
        pieces.push(piece);
    }
    assert_eq!(pieces, [FramePiece::Fin(id), FramePiece::Reset(id)]);
}

#[test]
fn a_connection_that_is_given_up_at_once_leaves_no_gap_in_the_numbers() {
    let (mut a, mut b) = ends();
    let id = a.mux.open(b"target".to_vec()).unwrap();
    a.mux.reset(id);
    settle(&mut a, &mut b);
    let next = opened(&mut a, &mut b);
    assert_eq!(next, id + 2);
    assert_eq!((a.mux.count(), b.mux.count()), (1, 1));
}

#[test]
fn a_window_grows_while_its_bytes_are_read_and_shrinks_while_they_wait() {
    let (mut a, mut b) = ends();
    let id = opened(&mut a, &mut b);
    let first = a.mux.sendable(id);
    for _ in 0..2000 {
        a.send(id, MAX_DATA_BYTES, &mut b);
        b.receive(usize::MAX).unwrap();
        b.consume(id, usize::MAX);
        settle(&mut a, &mut b);
    }
    let grown = a.mux.sendable(id);
    assert!(
        grown > MAX_WINDOW / 3 && grown <= MAX_WINDOW,
        "{first} became {grown}"
    );
    // The reader is slower than the writer.
    for _ in 0..2000 {
        while a.send(id, MAX_DATA_BYTES, &mut b) > 0 {}
        b.receive(usize::MAX).unwrap();
        b.consume(id, 64 << 10);
        settle(&mut a, &mut b);
    }
    assert!(b.unread[&id] <= 1 << 20, "{} bytes wait", b.unread[&id]);
}

#[test]
fn connections_that_are_not_read_leave_memory_for_others() {
    let (mut a, mut b) = ends();
    for _ in 0..200 {
        let id = opened(&mut a, &mut b);
        for _ in 0..8 {
            while a.send(id, MAX_DATA_BYTES, &mut b) > 0 {
                b.receive(usize::MAX).unwrap();
            }
            b.consume(id, usize::MAX);
            settle(&mut a, &mut b);
        }
        while a.send(id, MAX_DATA_BYTES, &mut b) > 0 {
            b.receive(usize::MAX).unwrap();
        }
    }
    let waiting: usize = b.unread.values().sum();
    assert!(waiting as u64 <= BUDGET_BYTES, "{waiting} bytes wait");
    let id = opened(&mut a, &mut b);
    assert!(a.mux.sendable(id) >= MIN_WINDOW);
}

#[test]
fn the_streams_of_a_tunnel_share_its_memory() {
    let budgets: [Arc<WindowBudget>; 2] = Default::default();
    let streams = || {
        let end = |end, at: usize| End::sharing(end, &budgets[at]);
        (end(MuxEnd::Odd, 0), end(MuxEnd::Even, 1))
    };
    let mut streams: Vec<_> = (0..4).map(|_| streams()).collect();
    for round in 0..200 {
        let (a, b) = &mut streams[round % 4];
        let id = opened(a, b);
        for _ in 0..8 {
            while a.send(id, MAX_DATA_BYTES, b) > 0 {
                b.receive(usize::MAX).unwrap();
            }
            b.consume(id, usize::MAX);
            settle(a, b);
        }
        while a.send(id, MAX_DATA_BYTES, b) > 0 {
            b.receive(usize::MAX).unwrap();
        }
    }
    let unread = streams.iter().flat_map(|(_, b)| b.unread.values());
    let unread: usize = unread.sum();
    assert!(unread as u64 <= BUDGET_BYTES, "{unread} bytes wait");
    // So many that one stream alone has not as much memory as all of them.
    assert!(unread as u64 > BUDGET_BYTES / 2, "{unread} bytes wait");
    drop(streams);
}

#[test]
fn without_memory_connections_are_refused_and_others_go_on() {
    let (mut a, mut b) = ends();
    let mut last = 0;
    while let Some(id) = a.mux.open(b"target".to_vec()) {
        last = id;
    }
    settle(&mut a, &mut b);
    assert!(a.mux.count() > 10_000, "{} connections", a.mux.count());
    assert!(b.mux.open(b"target".to_vec()).is_none());
    assert!(a.send(1, 10, &mut b) > 0);
    a.mux.reset(last);
    settle(&mut a, &mut b);
    assert!(b.mux.open(b"target".to_vec()).is_some());
}

#[test]
fn the_peer_is_held_to_the_protocol() {
    let data = |flow, bytes| FramePiece::Data { flow, bytes };
    let open = |flow| FramePiece::Open {
        flow,
        window: 10,
        target: Vec::new(),
    };
    let mut mux = Mux::new(MuxEnd::Odd, &Arc::default());
    assert_eq!(mux.receive(open(4)), Err(MuxFault::Number));
    assert_eq!(mux.receive(data(2, b"x")), Err(MuxFault::Number));
    assert_eq!(mux.receive(data(1, b"x")), Err(MuxFault::Number));
    assert!(mux.receive(open(2)).is_ok());
    // Nothing may be sent before the answer, and only this end answers.
    assert_eq!(mux.receive(data(2, b"x")), Err(MuxFault::Unexpected));
    let answer = FramePiece::Opened { flow: 2, window: 1 };
    assert_eq!(mux.receive(answer), Err(MuxFault::Unexpected));
    mux.accept(2);
    let beyond = vec![0; 1 << 20];
    assert_eq!(mux.receive(data(2, &beyond)), Err(MuxFault::BeyondWindow));
    assert!(mux.receive(FramePiece::Fin(2)).is_ok());
    assert_eq!(mux.receive(FramePiece::Fin(2)), Err(MuxFault::Unexpected));
    let window = |more| FramePiece::Window { flow: 2, more };
    assert_eq!(mux.receive(window(u32::MAX)), Err(MuxFault::Unexpected));
}

#[test]
fn invalid_headers_are_refused() {
    let head = |kind, flow, value: u32| {
        let mut bytes = FrameHead::data(flow, 1).encode();
        bytes[0] = kind;
        bytes[8..].copy_from_slice(&value.to_le_bytes());
        FrameDecoder::default().next(&mut &bytes[..]).err()
    };
    assert_eq!(head(9, 1, 0), Some(MuxFault::Kind(9)));
    for (kind, flow, value) in [
        (FrameKind::Data, 1, 0),
        (FrameKind::Data, 1, 65_537),
        (FrameKind::Open, 1, 3),
        (FrameKind::Message, 0, 4096),
        (FrameKind::Message, 1, 4),
        (FrameKind::Fin, 1, 1),
        (FrameKind::Fin, 0, 0),
    ] {
        assert_eq!(head(kind as u8, flow, value), Some(MuxFault::Header));
    }
    assert_eq!(head(FrameKind::Fin as u8, 1, 0), None);
}

#[test]
fn padding_is_skipped_between_frames_only() {
    let mut bytes = vec![0; 5];
    bytes.extend(FrameHead::data(3, 4).encode());
    bytes.extend([0; 4]);
    bytes.extend([0; 3]);
    let mut decoder = FrameDecoder::default();
    let mut rest = &bytes[..];
    let piece = decoder.next(&mut rest).unwrap();
    let expected = FramePiece::Data {
        flow: 3,
        bytes: &[0; 4],
    };
    assert_eq!(piece, Some(expected));
    assert_eq!(decoder.next(&mut rest), Ok(None));
    assert!(decoder.is_between_frames() && rest.is_empty());
}

#[test]
fn control_frames_wait_for_room() {
    let mut mux = Mux::new(MuxEnd::Odd, &Arc::default());
    mux.send_message(vec![1; 100]);
    assert!(mux.open(vec![2; 50]).is_some());
    let mut room = [0; 100];
    assert_eq!(mux.write_control(&mut room), 0);
    assert!(mux.has_control());
    let mut room = [0; 130];
    assert_eq!(mux.write_control(&mut room), FRAME_HEADER_BYTES + 100);
    assert_eq!(mux.write_control(&mut room), FRAME_HEADER_BYTES + 54);
    assert!(!mux.has_control());
}

#[derive(Debug, Clone)]
enum Step {
    Open(bool),
    Send(bool, usize, usize),
    Receive(bool, usize),
    Consume(bool, usize, usize),
    Finish(bool, usize),
    Reset(bool, usize),
}

fn step() -> impl Strategy<Value = Step> {
    let which = 0..20usize;
    prop_oneof![
        2 => any::<bool>().prop_map(Step::Open),
        8 => (any::<bool>(), which.clone(), 1..100_000usize).prop_map(|(a, b, c)| Step::Send(a, b, c)),
        8 => (any::<bool>(), 1..200_000usize).prop_map(|(a, b)| Step::Receive(a, b)),
        8 => (any::<bool>(), which.clone(), 1..200_000usize).prop_map(|(a, b, c)| Step::Consume(a, b, c)),
        1 => (any::<bool>(), which.clone()).prop_map(|(a, b)| Step::Finish(a, b)),
        1 => (any::<bool>(), which).prop_map(|(a, b)| Step::Reset(a, b)),
    ]
}

proptest! {
    /// Whatever two ends do, neither breaks the protocol, memory stays within the budget, and no byte of a connection
    /// that was not reset is lost.
    #[test]
    fn two_ends_never_break_the_protocol(steps in proptest::collection::vec(step(), 1..200)) {
        let (mut a, mut b) = ends();
        let mut ids = Vec::new();
        let mut ended: BTreeSet<(bool, FlowId)> = BTreeSet::new();
        let mut was_reset = Vec::new();
        let mut sent: BTreeMap<(bool, FlowId), usize> = BTreeMap::new();
        for step in steps {
            let (is_b, pick) = match step {
                Step::Open(end) | Step::Receive(end, _) => (end, None),
                Step::Send(end, at, _)
                | Step::Consume(end, at, _)
                | Step::Finish(end, at)
                | Step::Reset(end, at) => (end, Some(at)),
            };
            let (own, peer) = if is_b { (&mut b, &mut a) } else { (&mut a, &mut b) };
            let id = pick.and_then(|at| ids.get(at).copied());
            match (step, id) {
                (Step::Open(_), _) => ids.extend(own.mux.open(b"target".to_vec())),
                (Step::Receive(_, most), _) => own.receive(most).unwrap(),
                (Step::Send(_, _, count), Some(id)) if !ended.contains(&(is_b, id)) => {
                    *sent.entry((is_b, id)).or_default() += own.send(id, count, peer);
                }
                (Step::Consume(_, _, count), Some(id)) => own.consume(id, count),
                (Step::Finish(_, _), Some(id))
                    if own.mux.sendable(id) > 0 && ended.insert((is_b, id)) =>
                {
                    own.mux.finish(id);
                }
                (Step::Reset(_, _), Some(id)) => {
                    ended.insert((is_b, id));
                    was_reset.push(id);
                    own.mux.reset(id);
                }
                _ => {}
            }
            for end in [&a, &b] {
                let unread: usize = end.unread.values().sum();
                prop_assert!(unread as u64 <= BUDGET_BYTES - end.mux.free() || !was_reset.is_empty());
            }
        }
        settle(&mut a, &mut b);
        for (&(is_b, id), &count) in &sent {
            if !was_reset.contains(&id) {
                let peer = if is_b { &a } else { &b };
                prop_assert_eq!(peer.received.get(&id).copied().unwrap_or(0), count);
            }
        }
        for id in ids {
            a.mux.reset(id);
            b.mux.reset(id);
        }
        settle(&mut a, &mut b);
        prop_assert_eq!((a.mux.count(), b.mux.count()), (0, 0));
        prop_assert_eq!((a.mux.free(), b.mux.free()), (BUDGET_BYTES, BUDGET_BYTES));
    }

    /// Arbitrary bytes are refused or understood; neither panics nor leaves memory behind.
    #[test]
    fn arbitrary_bytes_do_not_panic(bytes in proptest::collection::vec(0..12u8, 0..300)) {
        super::fuzz(&bytes);
    }
}
