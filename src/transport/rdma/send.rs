//! Frames to the peer's slots, one write each.

use std::{
    collections::VecDeque,
    io,
    task::{Context, Poll, ready},
};

use super::{
    link::{Link, Posted, SlotToken, Written},
    pool::RdmaSlot,
};
use crate::transport::path::{SendPath, Slot, invalid};

/// The sending side.
pub(crate) struct RdmaSend {
    // In the order in which they must go: operations, queue pair, memory.
    flying: VecDeque<Flying>,
    link: Link,
    free: Vec<RdmaSlot>,
    /// The peer's slots, by number.
    peer: Vec<SlotToken>,
    /// The peer granted a slot that it does not have.
    violated: bool,
}

/// A write that was posted.
struct Flying {
    write: Posted<Written>,
    index: u32,
    bytes: usize,
}

impl RdmaSend {
    /// A sender from the slots of `free` into the peer's slots.
    pub(crate) fn new(link: Link, free: Vec<RdmaSlot>, peer: Vec<SlotToken>) -> Self {
        let flying = VecDeque::with_capacity(free.len());
        Self {
            flying,
            link,
            free,
            peer,
            violated: false,
        }
    }
}

impl SendPath for RdmaSend {
    type Slot = RdmaSlot;

    fn acquire(&mut self) -> Option<RdmaSlot> {
        self.free.pop()
    }

    fn release(&mut self, slot: RdmaSlot) {
        self.free.push(slot);
    }

    fn post(&mut self, slot: RdmaSlot, frame_bytes: usize, target: u32) {
        let Some(target) = self.peer.get(target as usize) else {
            self.violated = true;
            return self.free.push(slot);
        };
        let (index, bytes) = (slot.index(), slot.bytes().len());
        let write = self.link.write(slot.into_region(), frame_bytes, *target);
        self.flying.push_back(Flying {
            write,
            index,
            bytes,
        });
    }

    fn in_flight(&self) -> usize {
        self.flying.len()
    }

    fn poll_complete(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.violated {
            return Poll::Ready(Err(invalid("a credit for a slot that does not exist")));
        }
        // A reliable connection completes in order: the first one is the next one.
        while let Some(front) = self.flying.front_mut() {
            let Written { result, region } = ready!(front.write.poll(cx));
            let (index, bytes) = (front.index, front.bytes);
            self.flying.pop_front();
            self.free.push(RdmaSlot::from_region(index, region, bytes));
            result?;
        }
        Poll::Ready(Ok(()))
    }
}
