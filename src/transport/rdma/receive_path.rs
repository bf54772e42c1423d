//! The receiving side: frames of the peer, in the order in which their slots were granted.

use std::{
    collections::VecDeque,
    io,
    sync::Arc,
    task::{Context, Poll, ready},
};

use super::{
    link::{Link, WorkRequest},
    pool::RdmaSlot,
    renewal::request::Renewal,
};
use crate::transport::data::{
    frame::{HEADER_BYTES, Header},
    path::{ReceivePath, Slot, invalid},
};

/// The receiving side of the RDMA data path.
pub(crate) struct RdmaReceive {
    /// The queue pair and its pool; `None` while they are being replaced.
    live: Option<ReceiveLink>,
    generation: u32,
    /// The number of frames that arrived over this link.
    arrived: u64,
    renewal: Arc<Renewal>,
}

/// The parts of a link that a receive needs, in the order in which they are dropped: work requests, queue pair, memory.
pub(super) struct ReceiveLink {
    /// The granted slots, each with the receive that its frame completes.
    expected: VecDeque<(u32, WorkRequest<io::Result<()>>)>,
    link: Link,
    /// By number: the slots that the reader does not hold.
    slots: Vec<Option<RdmaSlot>>,
    broken: bool,
}

impl ReceiveLink {
    /// Receives over `link` into `slots`.
    pub(super) fn new(link: Link, slots: Vec<RdmaSlot>) -> Self {
        Self {
            expected: VecDeque::with_capacity(slots.len()),
            link,
            slots: slots.into_iter().map(Some).collect(),
            broken: false,
        }
    }
}

impl RdmaReceive {
    /// Receives over the first link of the stream.
    pub(super) fn new(live: ReceiveLink, renewal: Arc<Renewal>) -> Self {
        Self {
            live: Some(live),
            generation: 0,
            arrived: 0,
            renewal,
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

    /// Destroys the link and its pool.
    pub(super) fn take_down(&mut self) {
        self.live = None;
    }

    /// Continues over a new link, with a pool of this `generation`.
    pub(super) fn install(&mut self, live: ReceiveLink, generation: u32) {
        (self.live, self.generation, self.arrived) = (Some(live), generation, 0);
    }
}

impl ReceivePath for RdmaReceive {
    type Slot = RdmaSlot;

    /// A failed receive is not an error here: it requests a new link, and the renewal wakes the reader.
    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<RdmaSlot>> {
        let Some(live) = self.live.as_mut().filter(|live| !live.broken) else {
            return Poll::Pending;
        };
        let Some((index, receive)) = live.expected.front_mut() else {
            // No slot is granted. The lane polls again after a grant.
            return Poll::Pending;
        };
        let (index, result) = (*index, ready!(receive.poll(cx)));
        live.expected.pop_front();
        self.renewal.notify();
        if let Err(error) = result {
            live.broken = true;
            self.renewal.request(Some(error));
            return Poll::Pending;
        }
        self.arrived += 1;
        self.renewal.count();
        let slot = live.slots.get_mut(index as usize).and_then(Option::take);
        let slot = slot.ok_or_else(|| invalid("a chunk for a slot that is still being read"))?;
        let header = slot.bytes().first_chunk::<HEADER_BYTES>();
        let header = header.ok_or_else(|| invalid("a slot too small for a header"))?;
        let header = Header::decode(header).map_err(|damage| invalid(damage.text()))?;
        if header.length == 0 || header.frame_bytes() > slot.bytes().len() {
            return Poll::Ready(Err(invalid("a chunk of a size that was not agreed on")));
        }
        self.renewal.data().set_received(header.end());
        Poll::Ready(Ok(slot))
    }

    fn release(&mut self, slot: RdmaSlot) -> bool {
        let Some(live) = &mut self.live else {
            return false;
        };
        if slot.generation != self.generation {
            return false;
        }
        let place = slot.index as usize;
        live.slots[place] = Some(slot);
        true
    }

    /// Slots that are released while the pool is being replaced are granted with the new pool.
    fn can_grant(&self) -> bool {
        !self.renewal.is_underway()
    }

    fn post_receive(&mut self, index: u32) {
        if let Some(live) = &mut self.live {
            live.expected.push_back((index, live.link.receive()));
        }
    }
}
