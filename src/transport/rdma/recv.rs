//! Frames from the peer, in the order in which their slots were granted.

use std::{
    collections::VecDeque,
    io,
    task::{Context, Poll, ready},
};

use super::{
    link::{Link, Posted},
    pool::RdmaSlot,
};
use crate::transport::{
    path::{ReceivePath, Slot, invalid},
    wire::{HEADER_BYTES, Header},
};

/// The receiving side.
pub(crate) struct RdmaReceive {
    // In the order in which they must go: operations, queue pair, memory.
    /// The slots that were granted, each with the receive that its frame completes.
    expected: VecDeque<(u32, Posted<io::Result<()>>)>,
    link: Link,
    /// By number: the slots that no reader holds.
    slots: Vec<Option<RdmaSlot>>,
}

impl RdmaReceive {
    /// A receiver into `slots`.
    pub(crate) fn new(link: Link, slots: Vec<RdmaSlot>) -> Self {
        Self {
            expected: VecDeque::with_capacity(slots.len()),
            link,
            slots: slots.into_iter().map(Some).collect(),
        }
    }
}

impl ReceivePath for RdmaReceive {
    type Slot = RdmaSlot;

    fn poll_arrival(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<RdmaSlot>> {
        let Some((index, receive)) = self.expected.front_mut() else {
            // Nothing was granted: the grant that changes this is made by whoever polls next.
            return Poll::Pending;
        };
        let (index, arrived) = (*index, ready!(receive.poll(cx)));
        self.expected.pop_front();
        arrived?;
        let place = self.slots.get_mut(index as usize);
        let slot = place
            .and_then(Option::take)
            .ok_or_else(|| invalid("a chunk for a slot that is still being read"))?;
        let header = slot.bytes().first_chunk::<HEADER_BYTES>();
        let header = header.ok_or_else(|| invalid("a slot too small for a header"))?;
        let header = Header::decode(header).map_err(|damage| invalid(damage.text()))?;
        if header.length == 0 || header.frame_bytes() > slot.bytes().len() {
            return Poll::Ready(Err(invalid("a chunk of a size that was not agreed on")));
        }
        Poll::Ready(Ok(slot))
    }

    fn release(&mut self, slot: RdmaSlot) {
        let place = slot.index() as usize;
        self.slots[place] = Some(slot);
    }

    fn expect(&mut self, index: u32) {
        self.expected.push_back((index, self.link.receive()));
    }
}
