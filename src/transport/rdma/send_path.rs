//! Frames to the peer's slots, one write each.

use std::{
    collections::VecDeque,
    io, mem,
    sync::Arc,
    task::{Context, Poll},
};

use super::{
    link::{Link, SlotToken, WorkRequest, WriteCompletion},
    pool::RdmaSlot,
    renewal::request::Renewal,
};
use crate::transport::data::{
    frame::{HEADER_BYTES, Header},
    path::{SendPath, Slot, invalid},
};

/// The sending side.
pub(crate) struct RdmaSend {
    /// The queue pair and its pool; none while they are being replaced.
    live: Option<SendLink>,
    /// Frames that a lost link left behind, or that came while it was being replaced, in order.
    waiting: VecDeque<Frame>,
    generation: u32,
    /// Writes of this link that have completed.
    written: u64,
    renewal: Arc<Renewal>,
}

/// What a write needs. The memory of those in flight is with the link, and goes with it.
pub(super) struct SendLink {
    flying: VecDeque<InFlightWrite>,
    link: Link,
    free: Vec<RdmaSlot>,
    slots: usize,
    /// The peer's slots, by number.
    peer: Vec<SlotToken>,
    /// The first error. Nothing is written after it.
    broken: bool,
}

/// A write that was posted.
struct InFlightWrite {
    write: WorkRequest<WriteCompletion>,
    index: u32,
    bytes: usize,
    frame_bytes: usize,
}

/// A frame in ordinary memory, and the slot that it is for if it has one already.
struct Frame {
    bytes: Vec<u8>,
    target: Option<u32>,
}

impl SendLink {
    /// Writes over `link` from the slots of `free` into the peer's slots.
    pub(super) fn new(link: Link, free: Vec<RdmaSlot>, peer: Vec<SlotToken>) -> Self {
        Self {
            flying: VecDeque::with_capacity(free.len()),
            link,
            slots: free.len(),
            free,
            peer,
            broken: false,
        }
    }

    fn write(&mut self, slot: RdmaSlot, frame_bytes: usize, target: u32) -> io::Result<()> {
        let target = self.peer.get(target as usize);
        let target = *target.ok_or_else(|| invalid("a credit for a slot that does not exist"))?;
        let (index, bytes) = (slot.index, slot.bytes().len());
        let region = slot.into_region();
        let region = region.ok_or_else(|| io::Error::other("a slot without memory"))?;
        self.flying.push_back(InFlightWrite {
            write: self.link.write(region, frame_bytes, target),
            index,
            bytes,
            frame_bytes,
        });
        Ok(())
    }
}

impl RdmaSend {
    /// A sender over the stream's first link.
    pub(super) fn new(live: SendLink, renewal: Arc<Renewal>) -> Self {
        Self {
            live: Some(live),
            waiting: VecDeque::new(),
            generation: 0,
            written: 0,
            renewal,
        }
    }

    /// Writes of this link that have completed: the peer's device has them.
    pub(super) fn written(&self) -> u64 {
        self.written
    }

    /// Completes when nothing is in flight any more: it has been written, or waits.
    pub(super) fn poll_quiet(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.poll_flying(cx);
        let flying = self.live.as_ref().map_or(0, |live| live.flying.len());
        if flying == 0 {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    }

    /// Takes the link down, with the pool. What was not written waits.
    pub(super) fn take_down(&mut self) {
        self.live = None;
    }

    /// Goes on over a new link, with a pool of this `generation`. The peer has `verified` so many
    /// bytes: what of them was left behind has arrived all the same.
    pub(super) fn install(&mut self, live: SendLink, generation: u32, verified: u64) {
        (self.live, self.generation, self.written) = (Some(live), generation, 0);
        let arrived = |frame: &Frame| header(&frame.bytes).is_some_and(|h| h.offset < verified);
        while self.waiting.front().is_some_and(arrived) {
            self.waiting.pop_front();
        }
        // What the lost link had promised to a slot has to find a new one.
        self.waiting
            .iter_mut()
            .for_each(|frame| frame.target = None);
    }

    /// Takes what has completed off the front of those in flight.
    fn poll_flying(&mut self, cx: &mut Context<'_>) {
        let Some(live) = &mut self.live else { return };
        let mut left_behind = Vec::new();
        while let Some(front) = live.flying.front_mut() {
            let Poll::Ready(WriteCompletion { result, region }) = front.write.poll(cx) else {
                break;
            };
            let Some(done) = live.flying.pop_front() else {
                break;
            };
            match result {
                Ok(()) => {
                    self.written += 1;
                    self.renewal.count();
                }
                Err(error) => {
                    live.broken = true;
                    self.renewal.request(Some(error));
                    left_behind.push(Frame {
                        bytes: region.bytes()[..done.frame_bytes].to_vec(),
                        target: None,
                    });
                }
            }
            let slot = RdmaSlot::new(done.index, self.generation, region, done.bytes);
            live.free.push(slot);
        }
        self.renewal.notify();
        // They were posted before anything that waits already.
        let later = mem::take(&mut self.waiting);
        self.waiting.extend(left_behind);
        self.waiting.extend(later);
    }

    /// Writes the frames that wait, in order, as far as there are free slots and credits.
    fn post_waiting(&mut self, mut next_credit: impl FnMut() -> Option<u32>) -> io::Result<()> {
        let Some(live) = &mut self.live else {
            return Ok(());
        };
        if live.broken {
            return Ok(());
        }
        while let Some(frame) = self.waiting.front_mut() {
            if live.free.is_empty() {
                return Ok(());
            }
            let Some(target) = frame.target.or_else(&mut next_credit) else {
                return Ok(());
            };
            let (Some(mut slot), Some(mut frame)) = (live.free.pop(), self.waiting.pop_front())
            else {
                return Ok(());
            };
            readdress(&mut frame.bytes, target);
            slot.bytes_mut()[..frame.bytes.len()].copy_from_slice(&frame.bytes);
            live.write(slot, frame.bytes.len(), target)?;
        }
        Ok(())
    }
}

/// The header of a frame.
fn header(frame: &[u8]) -> Option<Header> {
    Header::decode(frame.first_chunk::<HEADER_BYTES>()?).ok()
}

/// Sends a frame to another slot.
fn readdress(frame: &mut [u8], slot: u32) {
    if let Some(header) = header(frame) {
        let header = Header { slot, ..header };
        frame[..HEADER_BYTES].copy_from_slice(&header.encode());
    }
}

impl SendPath for RdmaSend {
    type Slot = RdmaSlot;

    fn acquire(&mut self) -> Option<RdmaSlot> {
        // What waits has the first right to slots.
        if self.waiting.is_empty() {
            self.live.as_mut()?.free.pop()
        } else {
            None
        }
    }

    fn acquire_to_lend(&mut self) -> Option<RdmaSlot> {
        self.acquire()
    }

    fn max_slots(&self) -> usize {
        self.live.as_ref().map_or(0, |live| live.slots)
    }

    fn release(&mut self, slot: RdmaSlot) {
        match &mut self.live {
            Some(live) if slot.generation == self.generation => live.free.push(slot),
            _ => {}
        }
    }

    fn post(&mut self, slot: RdmaSlot, frame_bytes: usize, target: u32) {
        let is_current = slot.generation == self.generation && self.waiting.is_empty();
        match &mut self.live {
            Some(live) if is_current && !live.broken => {
                if let Err(error) = live.write(slot, frame_bytes, target) {
                    live.broken = true;
                    self.renewal.fail(error);
                }
            }
            _ => {
                self.waiting.push_back(Frame {
                    bytes: slot.bytes()[..frame_bytes].to_vec(),
                    target: None,
                });
                // Slots are used in the order in which they were granted: by the first that has none.
                let mut waiting = self.waiting.iter_mut();
                if let Some(first) = waiting.find(|frame| frame.target.is_none()) {
                    first.target = Some(target);
                }
                self.release(slot);
            }
        }
    }

    fn in_flight(&self) -> usize {
        self.waiting.len() + self.live.as_ref().map_or(0, |live| live.flying.len())
    }

    /// An error is no end here: the link is renewed, and whoever waits is woken then.
    fn poll_complete(
        &mut self,
        cx: &mut Context<'_>,
        next_credit: impl FnMut() -> Option<u32>,
    ) -> Poll<io::Result<()>> {
        self.poll_flying(cx);
        if !self.waiting.is_empty() {
            self.post_waiting(next_credit)?;
            self.poll_flying(cx);
        }
        if self.in_flight() == 0 {
            Poll::Ready(Ok(()))
        } else {
            Poll::Pending
        }
    }
}
