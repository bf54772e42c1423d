//! The sending side: frames to the peer's slots, one write each.

use std::{
    collections::VecDeque,
    io, mem,
    sync::Arc,
    task::{Context, Poll},
};

use super::{
    express::{path::ExpressPath, queue::EXPRESS_PAYLOAD_BYTES},
    link::{Link, SlotToken, WorkRequest, WriteCompletion},
    link_setup::PeerPool,
    pool::{PoolPlan, RdmaSlot},
    renewal::RenewalShared,
};
use crate::{
    faults::Faults,
    transport::data::{
        frame::{HEADER_BYTES, Header},
        slots::{SendPath, Slot, SmallFrame, invalid},
    },
};

/// The sending side of the RDMA data path.
pub(crate) struct RdmaSend {
    /// The queue pair and its pool; `None` while they are being replaced.
    live: Option<SendLink>,
    /// Frames that a lost link did not deliver, or that were posted while it was being replaced, in order.
    waiting: VecDeque<Frame>,
    generation: u32,
    /// The number of writes that have completed on this link.
    written: u64,
    /// The offset of the oldest frame that the last express path may have lost, if the peer consumed none.
    small_in_doubt: Option<u64>,
    /// The number of express paths in a row that carried no frame.
    dead_express_paths: u32,
    renewal: Arc<RenewalShared>,
}

/// The number of express paths in a row that carry no frame, after which a stream does without.
const MAX_DEAD_EXPRESS_PATHS: u32 = 3;

/// The most bytes that are sent in small frames in place of one chunk, which costs several wake-ups at each end.
const MOST_SMALL: usize = 8 * EXPRESS_PAYLOAD_BYTES;

/// The most payload of the slot in which the first bytes of a stream are sent: more than small frames carry, so that
/// bulk data asks for the pools.
const FIRST_PAYLOAD: usize = 2 * MOST_SMALL;

/// Returns the most bytes that are sent in small frames: never more than half a chunk of the pool, unless they are one
/// frame, and never more frames than half the window of the express path.
fn most_small(pool: PoolPlan, express: Option<&ExpressPath>) -> usize {
    let slot = HEADER_BYTES + pool.chunk_bytes;
    let window = express.map_or(0, ExpressPath::window) * EXPRESS_PAYLOAD_BYTES;
    (slot.min(window) / 2).clamp(EXPRESS_PAYLOAD_BYTES, MOST_SMALL)
}

/// The pool of this end, from which a link writes.
pub(super) struct SendPool {
    plan: PoolPlan,
    free: Vec<RdmaSlot>,
    is_registered: bool,
    /// Before it is registered: memory for small frames, which are copied from it.
    first: Option<RdmaSlot>,
}

impl SendPool {
    /// A pool of these `slots`; none if they are registered when a frame needs them.
    pub(super) fn new(plan: PoolPlan, generation: u32, slots: Vec<RdmaSlot>) -> Self {
        let is_registered = !slots.is_empty();
        let first = || {
            let bytes = HEADER_BYTES + plan.chunk_bytes.min(FIRST_PAYLOAD);
            RdmaSlot::in_heap(generation, vec![0; bytes].into_boxed_slice())
        };
        Self {
            plan,
            free: slots,
            is_registered,
            first: (!is_registered).then(first),
        }
    }

    /// Takes the slots of the pool, which are registered now.
    fn register(&mut self, slots: Vec<RdmaSlot>) {
        (self.free, self.is_registered, self.first) = (slots, true, None);
    }

    fn acquire(&mut self) -> Option<RdmaSlot> {
        self.free.pop().or_else(|| self.first.take())
    }

    fn release(&mut self, slot: RdmaSlot) {
        if slot.is_registered() {
            self.free.push(slot);
        } else if !self.is_registered {
            self.first = Some(slot);
        }
    }
}

/// The parts of a link that a write needs. Writes in flight own their memory, and are dropped with the link.
pub(super) struct SendLink {
    in_flight: VecDeque<InFlightWrite>,
    link: Link,
    pool: SendPool,
    peer: PeerPool,
    /// The pools that were not registered with the link have been asked for.
    has_asked: bool,
    /// A write has failed. No write is posted after that.
    broken: bool,
    /// The express path for small frames, if the link has one.
    express: Option<Arc<ExpressPath>>,
    /// The stream has no other direction, whose frames would show that the express path has failed.
    is_one_way: bool,
    /// The most bytes that are sent in small frames.
    most_small: usize,
    /// The bytes of small frames that do not count as sent, because a write before them is in flight.
    small_uncounted: u64,
    writes: u64,
    faults: Faults,
}

/// A write that was posted.
struct InFlightWrite {
    write: WorkRequest<WriteCompletion>,
    index: u32,
    bytes: usize,
    frame_bytes: usize,
    /// The number of payload bytes that count as sent when the write completes.
    uncounted: u64,
}

/// A frame in heap memory, and the slot of the peer that it is for, if it has one already.
struct Frame {
    bytes: Vec<u8>,
    target: Option<u32>,
    /// The number of payload bytes that do not count as sent: all of them, or none if the express path has had the frame.
    uncounted: u64,
}

impl SendLink {
    /// Writes over `link` from the slots of `pool` into the peer's slots, and small frames over `express`.
    pub(super) fn new(
        link: Link,
        pool: SendPool,
        peer: PeerPool,
        express: Option<Arc<ExpressPath>>,
        is_one_way: bool,
        faults: Faults,
    ) -> Self {
        Self {
            in_flight: VecDeque::with_capacity(pool.plan.depth as usize),
            link,
            most_small: most_small(pool.plan, express.as_deref()),
            pool,
            peer,
            has_asked: false,
            broken: false,
            express,
            is_one_way,
            small_uncounted: 0,
            writes: 0,
            faults,
        }
    }

    /// Returns the receive pool of the peer.
    pub(super) fn peer(&self) -> &PeerPool {
        &self.peer
    }

    /// Requests the pools, of either end, that are not registered yet: a frame needs them.
    fn need_pools(&mut self, renewal: &RenewalShared) {
        let is_missing = !self.pool.is_registered || self.peer.slots.is_empty();
        if is_missing && !self.has_asked {
            renewal.request_pools();
        }
    }

    /// Returns how `length` bytes of payload are carried now.
    fn small_frame(&self, length: usize) -> SmallFrame {
        match &self.express {
            Some(express) if length <= self.most_small && !self.broken => {
                if express.has_room() {
                    SmallFrame::WithoutCredit {
                        max_bytes: EXPRESS_PAYLOAD_BYTES,
                    }
                } else {
                    SmallFrame::Later
                }
            }
            _ => SmallFrame::NeedsCredit,
        }
    }

    /// Counts the small frames as sent, unless a write before them is in flight: a lost completion must be noticed.
    fn count_small(&mut self, renewal: &RenewalShared) {
        if self.in_flight.is_empty() {
            renewal.count_sent(mem::take(&mut self.small_uncounted));
        }
    }

    /// Sends a frame over the express path, which keeps it until the peer has consumed it, even if it fails. `uncounted`
    /// of its bytes do not count as sent yet.
    fn send_small(
        &mut self,
        header: &Header,
        payload: &[u8],
        uncounted: u64,
        renewal: &RenewalShared,
    ) {
        let Some(express) = &self.express else { return };
        renewal.note_express_result(express.send(header, payload));
        self.small_uncounted += uncounted;
        self.count_small(renewal);
    }

    /// Writes a frame into the peer's slot `target`. When the write completes, `uncounted` more bytes count as sent.
    fn write(
        &mut self,
        slot: RdmaSlot,
        frame_bytes: usize,
        target: u32,
        uncounted: u64,
    ) -> io::Result<()> {
        let target = self.peer.slots.get(target as usize);
        let target = *target.ok_or_else(|| invalid("a credit for a slot that does not exist"))?;
        self.writes += 1;
        let target = if self.faults.loses_link_at(self.writes) {
            target.forged()
        } else {
            target
        };
        let (index, bytes) = (slot.index, slot.bytes().len());
        let region = slot.into_region();
        let region = region.ok_or_else(|| io::Error::other("a slot without memory"))?;
        self.in_flight.push_back(InFlightWrite {
            write: self.link.write(region, frame_bytes, target),
            index,
            bytes,
            frame_bytes,
            uncounted,
        });
        Ok(())
    }
}

impl RdmaSend {
    /// Sends over the first link of the stream.
    pub(super) fn new(live: SendLink, renewal: Arc<RenewalShared>) -> Self {
        Self {
            live: Some(live),
            waiting: VecDeque::new(),
            generation: 0,
            written: 0,
            small_in_doubt: None,
            dead_express_paths: 0,
            renewal,
        }
    }

    /// Returns the number of writes that have completed on this link: the peer's device has acknowledged them.
    pub(super) fn written(&self) -> u64 {
        self.written
    }

    /// Returns the link, and which pools it lacks: that of this end, and that of the peer. `None` if they have been
    /// asked for.
    pub(super) fn ask_for_pools(&mut self) -> Option<(Link, [bool; 2])> {
        let live = self.live.as_mut().filter(|live| !live.has_asked)?;
        live.has_asked = true;
        let missing = [!live.pool.is_registered, live.peer.slots.is_empty()];
        Some((live.link.clone(), missing))
    }

    /// Writes from the slots of this pool from now on.
    pub(super) fn add_pool(&mut self, slots: Vec<RdmaSlot>) {
        if let Some(live) = &mut self.live {
            live.pool.register(slots);
        }
    }

    /// Writes into these slots of the peer from now on. Returns false if they are not its whole pool, or not awaited.
    pub(super) fn add_peer_slots(&mut self, slots: Vec<SlotToken>) -> bool {
        let Some(live) = &mut self.live else {
            return false;
        };
        let is_awaited = live.has_asked && live.peer.slots.is_empty();
        if !is_awaited || slots.len() != live.peer.depth {
            return false;
        }
        live.peer.slots = slots;
        true
    }

    /// Ready when no write is in flight any more.
    pub(super) fn poll_quiet(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.poll_in_flight(cx);
        let in_flight = self.live.as_ref().map_or(0, |live| live.in_flight.len());
        if in_flight == 0 {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    }

    /// Destroys the link and its pool. Frames that were not written stay queued, and so do small frames that the peer
    /// may not have verified.
    pub(super) fn take_down(&mut self) {
        let express = self.live.take().and_then(|live| live.express);
        let has_carried = express
            .as_ref()
            .is_some_and(|express| express.has_carried());
        if has_carried {
            self.dead_express_paths = 0;
        }
        let unconsumed = express.map_or_else(Vec::new, |express| express.unconsumed());
        let oldest = unconsumed.first().map(|(header, _)| header.offset);
        self.small_in_doubt = oldest.filter(|_| !has_carried);
        let frame = |(header, payload): (Header, Vec<u8>)| Frame {
            bytes: [&header.encode()[..], &payload].concat(),
            target: None,
            uncounted: 0,
        };
        self.waiting.extend(unconsumed.into_iter().map(frame));
        let offset = |frame: &Frame| header(&frame.bytes).map_or(0, |header| header.offset);
        self.waiting.make_contiguous().sort_by_key(offset);
    }

    /// Continues over a new link, with a pool of this `generation`. The peer has `verified` this number of bytes, so
    /// queued frames before that offset have arrived, and are dropped.
    pub(super) fn install(&mut self, live: SendLink, generation: u32, verified: u64) {
        (self.live, self.generation, self.written) = (Some(live), generation, 0);
        match self.small_in_doubt.take() {
            Some(offset) if offset >= verified => self.dead_express_paths += 1,
            Some(_) => self.dead_express_paths = 0,
            None => {}
        }
        self.renewal
            .count_sent(drop_arrived(&mut self.waiting, verified));
        // The slots of the lost link are gone, so every frame needs a new credit.
        self.waiting
            .iter_mut()
            .for_each(|frame| frame.target = None);
    }

    /// Returns true if the express path has failed.
    pub(super) fn has_lost_express(&self) -> bool {
        let express = self.live.as_ref().and_then(|live| live.express.as_ref());
        express.is_some_and(|express| express.is_lost())
    }

    /// Returns true unless one express path after the other carried no frame.
    pub(super) fn trusts_express(&self) -> bool {
        self.dead_express_paths < MAX_DEAD_EXPRESS_PATHS
    }

    /// Takes the completed writes off the front of the queue. Frames whose write failed wait for a new link.
    fn poll_in_flight(&mut self, cx: &mut Context<'_>) {
        let Some(live) = &mut self.live else { return };
        let mut failed = Vec::new();
        let written = live.in_flight.len();
        while let Some(front) = live.in_flight.front_mut() {
            let Poll::Ready(WriteCompletion { result, region }) = front.write.poll(cx) else {
                break;
            };
            let Some(done) = live.in_flight.pop_front() else {
                break;
            };
            match result {
                Ok(()) => {
                    self.written += 1;
                    self.renewal.count();
                    self.renewal.count_sent(done.uncounted);
                }
                Err(error) => {
                    live.broken = true;
                    self.renewal.nudges.count();
                    self.renewal.request(Some(error));
                    failed.push(Frame {
                        bytes: region.bytes()[..done.frame_bytes].to_vec(),
                        target: None,
                        uncounted: done.uncounted,
                    });
                }
            }
            let slot = RdmaSlot::new(done.index, self.generation, region, done.bytes);
            live.pool.release(slot);
            live.count_small(&self.renewal);
        }
        if live.in_flight.len() < written {
            self.renewal.notify();
        }
        // They were posted before every frame that waits already.
        let later = mem::take(&mut self.waiting);
        self.waiting.extend(failed);
        self.waiting.extend(later);
    }

    /// Writes the frames that wait, in order, as far as there are free slots and credits, or room in the express path.
    fn post_waiting(&mut self, mut next_credit: impl FnMut() -> Option<u32>) -> io::Result<()> {
        let Some(live) = &mut self.live else {
            return Ok(());
        };
        if live.broken || self.renewal.is_underway() {
            return Ok(());
        }
        while let Some(frame) = self.waiting.front_mut() {
            if frame.target.is_none() {
                let payload = &frame.bytes[HEADER_BYTES..];
                let is_small = payload.len() <= EXPRESS_PAYLOAD_BYTES;
                let small_frame = live.small_frame(payload.len());
                if let (true, SmallFrame::WithoutCredit { .. }, Some(header)) =
                    (is_small, small_frame, header(&frame.bytes))
                {
                    live.send_small(&header, payload, frame.uncounted, &self.renewal);
                    self.waiting.pop_front();
                    continue;
                }
            }
            live.need_pools(&self.renewal);
            if live.pool.free.is_empty() {
                return Ok(());
            }
            let Some(target) = frame.target.or_else(&mut next_credit) else {
                return Ok(());
            };
            let (Some(mut slot), Some(mut frame)) =
                (live.pool.free.pop(), self.waiting.pop_front())
            else {
                return Ok(());
            };
            readdress(&mut frame.bytes, target);
            slot.bytes_mut()[..frame.bytes.len()].copy_from_slice(&frame.bytes);
            live.write(slot, frame.bytes.len(), target, frame.uncounted)?;
        }
        Ok(())
    }
}

/// Drops the frames before the offset `verified`, and returns how many of their bytes do not count as sent.
fn drop_arrived(waiting: &mut VecDeque<Frame>, verified: u64) -> u64 {
    let has_arrived = |frame: &&Frame| header(&frame.bytes).is_some_and(|h| h.offset < verified);
    let arrived = waiting.iter().take_while(has_arrived).count();
    waiting.drain(..arrived).map(|frame| frame.uncounted).sum()
}

fn header(frame: &[u8]) -> Option<Header> {
    Header::decode(frame.first_chunk::<HEADER_BYTES>()?).ok()
}

/// Changes the slot in the header of a frame.
fn readdress(frame: &mut [u8], slot: u32) {
    if let Some(header) = header(frame) {
        let header = Header { slot, ..header };
        frame[..HEADER_BYTES].copy_from_slice(&header.encode());
    }
}

impl SendPath for RdmaSend {
    type Slot = RdmaSlot;

    fn acquire(&mut self) -> Option<RdmaSlot> {
        // Frames that wait get the free slots first.
        if self.waiting.is_empty() {
            self.live.as_mut()?.pool.acquire()
        } else {
            None
        }
    }

    /// One slot stays: chunks of a pool that has been replaced are sent from it, while the user holds all others.
    fn acquire_ahead(&mut self) -> Option<RdmaSlot> {
        let live = self.live.as_mut()?;
        live.need_pools(&self.renewal);
        let has_spare = live.pool.free.len() > 1;
        if has_spare { self.acquire() } else { None }
    }

    /// A slot of the pool: the user has been promised the room of a chunk.
    fn acquire_to_lend(&mut self) -> Option<RdmaSlot> {
        let live = self.live.as_mut()?;
        live.need_pools(&self.renewal);
        if live.pool.is_registered {
            self.acquire()
        } else {
            None
        }
    }

    fn small_frame(&mut self, length: usize) -> SmallFrame {
        match &mut self.live {
            Some(live) if self.waiting.is_empty() && !self.renewal.is_underway() => {
                let carried = live.small_frame(length);
                if carried == SmallFrame::NeedsCredit {
                    live.need_pools(&self.renewal);
                }
                carried
            }
            _ => SmallFrame::NeedsCredit,
        }
    }

    fn is_busy(&self) -> bool {
        let express = self.live.as_ref().and_then(|live| live.express.as_ref());
        self.in_flight() > 0 || express.is_some_and(|express| express.is_busy())
    }

    fn max_slots(&self) -> usize {
        let depth = |live: &SendLink| live.pool.plan.depth as usize;
        self.live.as_ref().map_or(0, depth)
    }

    fn release(&mut self, slot: RdmaSlot) {
        match &mut self.live {
            Some(live) if slot.generation == self.generation => live.pool.release(slot),
            _ => {}
        }
    }

    fn post(&mut self, slot: RdmaSlot, frame_bytes: usize, target: u32) {
        let uncounted = (frame_bytes - HEADER_BYTES) as u64;
        let is_current = slot.generation == self.generation && slot.is_registered();
        match &mut self.live {
            Some(live) if is_current && self.waiting.is_empty() && !live.broken => {
                if let Err(error) = live.write(slot, frame_bytes, target, uncounted) {
                    live.broken = true;
                    self.renewal.fail(error);
                }
            }
            _ => {
                self.waiting.push_back(Frame {
                    bytes: slot.bytes()[..frame_bytes].to_vec(),
                    target: None,
                    uncounted,
                });
                // Slots are used in the order in which they were granted, so the first frame without one gets it.
                let mut waiting = self.waiting.iter_mut();
                if let Some(first) = waiting.find(|frame| frame.target.is_none()) {
                    first.target = Some(target);
                }
                self.release(slot);
            }
        }
    }

    fn post_small(&mut self, header: &Header, payload: &[u8]) {
        let uncounted = payload.len() as u64;
        match &mut self.live {
            Some(live) if self.waiting.is_empty() && live.express.is_some() => {
                live.send_small(header, payload, uncounted, &self.renewal);
            }
            _ => self.waiting.push_back(Frame {
                bytes: [&header.encode()[..], payload].concat(),
                target: None,
                uncounted,
            }),
        }
    }

    fn in_flight(&self) -> usize {
        self.waiting.len() + self.live.as_ref().map_or(0, |live| live.in_flight.len())
    }

    /// A failed write is not an error here: it requests a new link, and the renewal wakes the writer.
    fn poll_complete(
        &mut self,
        cx: &mut Context<'_>,
        next_credit: impl FnMut() -> Option<u32>,
    ) -> Poll<io::Result<()>> {
        self.poll_in_flight(cx);
        if !self.waiting.is_empty() {
            self.post_waiting(next_credit)?;
            self.poll_in_flight(cx);
        }
        if let Some(live) = &self.live {
            if let Some(express) = &live.express {
                // Otherwise the receiving side waits for the express path.
                let waits = live.is_one_way || !self.renewal.receives();
                self.renewal
                    .note_express_result(express.poll_reports(cx, waits));
            }
        }
        if self.in_flight() == 0 {
            Poll::Ready(Ok(()))
        } else {
            Poll::Pending
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::{
        control::{
            noise::Role,
            seal::{Cipher, StreamSeal, Way},
        },
        data::frame::Chain,
    };

    /// A chunk that was sealed is sent again as it is. Two tags under one nonce would reveal the key of the
    /// authentication.
    #[test]
    fn a_frame_that_is_sent_again_differs_in_its_slot_and_its_check_only() {
        for cipher in [
            None,
            Some(Cipher::Aes256Gcm),
            Some(Cipher::ChaCha20Poly1305),
        ] {
            let seal = |role| StreamSeal::of_seed(7, role, cipher);
            let mut chain = Chain::new(seal(Role::Dialer).guard(Way::Out));
            let mut payload = *b"bytes of a chunk";
            let header = chain.seal(3, &mut payload).encode();
            let first = [&header[..], &payload].concat();
            let mut again = first.clone();
            readdress(&mut again, 0x0506_0708);
            assert_eq!(again[4..8], 0x0506_0708_u32.to_le_bytes());
            let changed = (0..first.len()).filter(|&at| first[at] != again[at]);
            let allowed =
                |at| (4..8).contains(&at) || (HEADER_BYTES - 8..HEADER_BYTES).contains(&at);
            assert!(changed.into_iter().all(allowed));
            let mut there = Chain::new(seal(Role::Acceptor).guard(Way::In));
            let moved = super::header(&again).expect("a whole header");
            assert_eq!(there.open(&moved, &mut again[HEADER_BYTES..]), Ok(()));
            assert_eq!(&again[HEADER_BYTES..], b"bytes of a chunk");
        }
    }

    /// The watch over the data path needs the bytes of each frame once.
    #[test]
    fn frames_that_have_arrived_count_unless_they_did_before() {
        let mut chain =
            Chain::with_gaps(StreamSeal::of_seed(7, Role::Dialer, None).guard(Way::Out));
        let mut frame = |offset, uncounted| {
            let mut payload = *b"0123456789";
            let header = chain.seal_at(offset, 0, &mut payload);
            Frame {
                bytes: [&header.encode()[..], &payload].concat(),
                target: None,
                uncounted,
            }
        };
        let frames = [(0, 10), (500, 0), (700, 10), (710, 10), (900, 0)];
        let frames = frames.map(|(offset, uncounted)| frame(offset, uncounted));
        let mut waiting = VecDeque::from(frames);
        assert_eq!(drop_arrived(&mut waiting, 510), 10);
        assert_eq!(waiting.len(), 3);
        assert_eq!(drop_arrived(&mut waiting, 720), 20);
        assert_eq!(waiting.len(), 1);
    }
}
