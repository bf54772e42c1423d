//! The receiving side: frames of the peer, in the order in which their slots were granted.

use std::{
    collections::VecDeque,
    io,
    sync::Arc,
    task::{Context, Poll, ready},
};

use super::{
    express::{order::FrameOrder, path::ExpressPath},
    link::{Link, WorkRequest},
    pool::RdmaSlot,
    renewal::RenewalShared,
};
use crate::transport::data::{
    frame::Header,
    slots::{NO_SLOT, ReceivePath, Slot, invalid},
};

/// The receiving side of the RDMA data path.
pub(crate) struct RdmaReceive {
    /// The queue pair and its pool; `None` while they are being replaced.
    live: Option<ReceiveLink>,
    generation: u32,
    /// The number of frames that arrived over this link.
    arrived: u64,
    /// The link has an express path, or the last link had one.
    has_express: bool,
    order: FrameOrder<RdmaSlot>,
    renewal: Arc<RenewalShared>,
}

/// The parts of a link that a receive needs, in the order in which they are dropped: work requests, queue pair, memory.
/// The queue pair keeps the memory of a slot that is dropped before it.
pub(super) struct ReceiveLink {
    /// The granted slots, each with the receive that its frame completes.
    expected: VecDeque<(u32, WorkRequest<io::Result<()>>)>,
    link: Link,
    /// By number: the slots that the reader does not hold.
    slots: Vec<Option<RdmaSlot>>,
    broken: bool,
    /// The express path for small frames, if the link has one.
    express: Option<Arc<ExpressPath>>,
}

impl ReceiveLink {
    /// Receives over `link` into `slots`, and small frames over `express`.
    pub(super) fn new(link: Link, slots: Vec<RdmaSlot>, express: Option<Arc<ExpressPath>>) -> Self {
        Self {
            expected: VecDeque::with_capacity(slots.len()),
            link,
            slots: slots.into_iter().map(Some).collect(),
            broken: false,
            express,
        }
    }
}

impl ReceiveLink {
    fn has_pool(&self) -> bool {
        !self.slots.is_empty()
    }
}

impl RdmaReceive {
    /// Receives over the first link of the stream.
    pub(super) fn new(live: ReceiveLink, renewal: Arc<RenewalShared>) -> Self {
        Self {
            has_express: live.express.is_some(),
            live: Some(live),
            generation: 0,
            arrived: 0,
            order: FrameOrder::new(),
            renewal,
        }
    }

    /// Returns the link if it has no pool yet.
    pub(super) fn without_pool(&self) -> Option<Link> {
        let live = self.live.as_ref()?;
        (!live.has_pool()).then(|| live.link.clone())
    }

    /// Receives into this pool from now on.
    pub(super) fn add_pool(&mut self, slots: Vec<RdmaSlot>) {
        if let Some(live) = &mut self.live {
            live.slots = slots.into_iter().map(Some).collect();
        }
    }

    /// Returns the number of frames that arrived over this link.
    pub(super) fn arrived(&self) -> u64 {
        self.arrived
    }

    /// Returns true if no frame can arrive over this link any more.
    pub(super) fn is_broken(&self) -> bool {
        self.live.as_ref().is_none_or(|live| live.broken)
    }

    /// Counts frames up to the number `frames` as arrived, although this end's device has not reported them: the peer's
    /// device says that they were delivered. They are verified as every other frame is.
    pub(super) fn assume_arrived(&mut self, frames: u64) {
        let Some(live) = &mut self.live else { return };
        let missing = frames.saturating_sub(self.arrived);
        let missing = usize::try_from(missing).unwrap_or(usize::MAX);
        for (_, receive) in live.expected.iter_mut().take(missing) {
            *receive = WorkRequest::done(Ok(()));
        }
    }

    /// Destroys the link and its pool. The peer knows that `frames` frames have arrived, and sends none of them again:
    /// of those that have come early this end keeps a copy. Every other frame is sent again.
    pub(super) fn take_down(&mut self, frames: u64) {
        self.live = None;
        for (slot, header) in self.order.leave_link(frames) {
            slot.leave_pool();
            header.slot = NO_SLOT;
        }
    }

    /// Continues over a new link, with a pool of this `generation`. Returns true if the link has no express path any
    /// more.
    pub(super) fn install(&mut self, live: ReceiveLink, generation: u32) -> bool {
        let is_express_lost = self.has_express && live.express.is_none();
        self.has_express = live.express.is_some();
        (self.live, self.generation, self.arrived) = (Some(live), generation, 0);
        is_express_lost
    }
}

impl ReceivePath for RdmaReceive {
    type Slot = RdmaSlot;

    /// A failed receive is not an error here: it requests a new link, and the renewal wakes the reader.
    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<(RdmaSlot, Header)>> {
        loop {
            if let Some(frame) = self.small_or_early(cx) {
                return self.deliver(frame);
            }
            self.check_order()?;
            let (slot, header) = ready!(self.poll_link(cx))?;
            let is_early = self.order.is_early(&header) && self.may_come_early();
            if !is_early {
                return self.deliver((slot, header));
            }
            if self.order.early() >= MOST_EARLY_POOLS * self.slots() {
                return Poll::Ready(Err(invalid("too many chunks before a small frame")));
            }
            self.order.keep(self.arrived, slot, header);
        }
    }

    fn spin(&mut self, awaited: impl FnOnce() -> bool) {
        let Some(express) = self.live.as_ref().and_then(|live| live.express.as_ref()) else {
            return;
        };
        if self.order.early() == 0 && awaited() {
            express.spin();
        }
    }

    fn release(&mut self, slot: RdmaSlot) -> bool {
        let Some(live) = &mut self.live else {
            return false;
        };
        if slot.generation != self.generation {
            return false;
        }
        if slot.index == NO_SLOT {
            if let Some(express) = &live.express {
                self.renewal.note_express_result(express.release(slot));
            }
            return true;
        }
        let place = slot.index as usize;
        live.slots[place] = Some(slot);
        true
    }

    /// Slots that are released while the pool is being replaced are granted with the new pool.
    fn can_grant(&self) -> bool {
        self.has_pool() && !self.renewal.is_underway()
    }

    fn has_pool(&self) -> bool {
        self.live.as_ref().is_some_and(ReceiveLink::has_pool)
    }

    fn post_receive(&mut self, index: u32) {
        if let Some(live) = &mut self.live {
            live.expected.push_back((index, live.link.receive()));
        }
    }
}

/// The most frames that wait for small frames before them, in pools. A renewal keeps those that have arrived, and fills
/// the pool again; an honest peer then sends the missing frames first.
const MOST_EARLY_POOLS: usize = 4;

impl RdmaReceive {
    fn slots(&self) -> usize {
        self.live.as_ref().map_or(0, |live| live.slots.len())
    }

    /// Takes the next frame, if it is a small one, or one of the link that came before it was due.
    fn small_or_early(&mut self, cx: &mut Context<'_>) -> Option<(RdmaSlot, Header)> {
        let live = self.live.as_ref().filter(|live| !live.broken);
        if let Some(express) = live.and_then(|live| live.express.as_ref()) {
            match express.poll_frame(cx, self.order.end()) {
                Ok(Poll::Ready(frame)) => return Some(frame),
                Ok(Poll::Pending) => {}
                Err(error) => self.renewal.note_express_result(Err(error)),
            }
        }
        self.order.take_next()
    }

    /// Returns true if frames of the link can come before small frames that precede them.
    fn may_come_early(&self) -> bool {
        self.live
            .as_ref()
            .is_some_and(|live| live.express.is_some())
    }

    /// Checks that the oldest frame of the express path or of the link can still become the next one.
    fn check_order(&self) -> io::Result<()> {
        let express = self.live.as_ref().and_then(|live| live.express.as_ref());
        let small = express.and_then(|express| express.next_follows());
        small.map_or(Ok(()), |small| self.order.check(small))
    }

    /// Returns a frame as the next one.
    fn deliver(
        &mut self,
        (slot, header): (RdmaSlot, Header),
    ) -> Poll<io::Result<(RdmaSlot, Header)>> {
        self.order.deliver(&header);
        self.renewal.count_received(header.length.into());
        Poll::Ready(Ok((slot, header)))
    }

    /// Takes the next frame of the link.
    fn poll_link(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<(RdmaSlot, Header)>> {
        let Some(live) = self.live.as_mut().filter(|live| !live.broken) else {
            return Poll::Pending;
        };
        let Some((index, receive)) = live.expected.front_mut() else {
            // No slot is granted. The express path polls again after a grant.
            return Poll::Pending;
        };
        let (index, result) = (*index, ready!(receive.poll(cx)));
        live.expected.pop_front();
        self.renewal.notify();
        if let Err(error) = result {
            live.broken = true;
            self.renewal.nudges.count();
            self.renewal.request(Some(error));
            return Poll::Pending;
        }
        self.arrived += 1;
        self.renewal.count();
        let slot = live.slots.get_mut(index as usize).and_then(Option::take);
        let mut slot =
            slot.ok_or_else(|| invalid("a chunk for a slot that is still being read"))?;
        let header = slot.header();
        let header = header.ok_or_else(|| invalid("a slot too small for a header"))?;
        let header = Header::decode(&header).map_err(|damage| invalid(damage.text()))?;
        if header.length == 0 || header.frame_bytes() > slot.bytes().len() {
            return Poll::Ready(Err(invalid("a chunk of a size that was not agreed on")));
        }
        slot.copy_frame(header.frame_bytes());
        Poll::Ready(Ok((slot, header)))
    }
}
