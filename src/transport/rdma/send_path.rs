//! The sending side: frames to the peer's slots, one write each.

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

/// The sending side of the RDMA data path.
pub(crate) struct RdmaSend {
    /// The queue pair and its pool; `None` while they are being replaced.
    live: Option<SendLink>,
    /// Frames that a lost link did not deliver, or that were posted while it was being replaced, in order.
    waiting: VecDeque<Frame>,
    generation: u32,
    /// The number of writes that have completed on this link.
    written: u64,
    renewal: Arc<Renewal>,
}

/// The parts of a link that a write needs. Writes in flight own their memory, and are dropped with the link.
pub(super) struct SendLink {
    flying: VecDeque<InFlightWrite>,
    link: Link,
    free: Vec<RdmaSlot>,
    slots: usize,
    /// The slots of the peer, by number.
    peer: Vec<SlotToken>,
    /// A write has failed. No write is posted after that.
    broken: bool,
}

/// A write that was posted.
struct InFlightWrite {
    write: WorkRequest<WriteCompletion>,
    index: u32,
    bytes: usize,
    frame_bytes: usize,
    /// The number of bytes of this direction up to the end of the frame.
    end: u64,
}

/// A frame in heap memory, and the slot of the peer that it is for, if it has one already.
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
        let end = header(slot.bytes()).map_or(0, |header| header.end());
        let region = slot.into_region();
        let region = region.ok_or_else(|| io::Error::other("a slot without memory"))?;
        self.flying.push_back(InFlightWrite {
            write: self.link.write(region, frame_bytes, target),
            index,
            bytes,
            frame_bytes,
            end,
        });
        Ok(())
    }
}

impl RdmaSend {
    /// Sends over the first link of the stream.
    pub(super) fn new(live: SendLink, renewal: Arc<Renewal>) -> Self {
        Self {
            live: Some(live),
            waiting: VecDeque::new(),
            generation: 0,
            written: 0,
            renewal,
        }
    }

    /// Returns the number of writes that have completed on this link: the peer's device has acknowledged them.
    pub(super) fn written(&self) -> u64 {
        self.written
    }

    /// Ready when no write is in flight any more.
    pub(super) fn poll_quiet(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.poll_flying(cx);
        let flying = self.live.as_ref().map_or(0, |live| live.flying.len());
        if flying == 0 {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    }

    /// Destroys the link and its pool. Frames that were not written stay queued.
    pub(super) fn take_down(&mut self) {
        self.live = None;
    }

    /// Continues over a new link, with a pool of this `generation`. The peer has `verified` this number of bytes, so
    /// queued frames before that offset have arrived, and are dropped.
    pub(super) fn install(&mut self, live: SendLink, generation: u32, verified: u64) {
        (self.live, self.generation, self.written) = (Some(live), generation, 0);
        let data = self.renewal.data();
        data.set_sent(data.sent().max(verified));
        let arrived = |frame: &Frame| header(&frame.bytes).is_some_and(|h| h.offset < verified);
        while self.waiting.front().is_some_and(arrived) {
            self.waiting.pop_front();
        }
        // The slots of the lost link are gone, so every frame needs a new credit.
        self.waiting
            .iter_mut()
            .for_each(|frame| frame.target = None);
    }

    /// Takes the completed writes off the front of the queue. Frames whose write failed wait for a new link.
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
                    self.renewal.data().set_sent(done.end);
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
        // They were posted before every frame that waits already.
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

/// Decodes the header of a frame.
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
                // Slots are used in the order in which they were granted, so the first frame without one gets it.
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

    /// A failed write is not an error here: it requests a new link, and the renewal wakes the writer.
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
