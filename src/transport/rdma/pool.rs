//! The slots of a pool in registered memory.

use std::io;

use super::link::{MemoryAccess, QueuePairOwner, Region, SlotToken};
use crate::transport::data::{
    frame::HEADER_BYTES,
    slots::{NO_SLOT, Slot},
};

/// A slot in registered memory, or a copy of its bytes after its link was destroyed.
pub(crate) struct RdmaSlot {
    /// The number of the slot in its pool.
    pub(super) index: u32,
    /// The number of the pool: 0 for the first pool of the stream.
    pub(super) generation: u32,
    memory: SlotMemory,
    bytes: usize,
    /// The memory from which this end reads a frame that the peer has written, if it does not read the slot itself.
    copy: Option<Box<[u8]>>,
}

enum SlotMemory {
    Registered(Region),
    Heap(Box<[u8]>),
}

impl RdmaSlot {
    pub(super) fn new(index: u32, generation: u32, region: Region, bytes: usize) -> Self {
        Self {
            index,
            generation,
            memory: SlotMemory::Registered(region),
            bytes,
            copy: None,
        }
    }

    /// Memory that is not registered, for a frame of the express path.
    pub(super) fn in_heap(generation: u32, bytes: Box<[u8]>) -> Self {
        Self {
            index: NO_SLOT,
            generation,
            bytes: bytes.len(),
            memory: SlotMemory::Heap(bytes),
            copy: None,
        }
    }

    /// Returns true if the memory is registered: only that can be written to the peer.
    pub(super) fn is_registered(&self) -> bool {
        matches!(self.memory, SlotMemory::Registered(_))
    }

    /// Returns the memory, if it is not registered.
    pub(super) fn into_heap(self) -> Option<Box<[u8]>> {
        match self.memory {
            SlotMemory::Registered(_) => None,
            SlotMemory::Heap(bytes) => Some(bytes),
        }
    }

    /// Moves a frame that has arrived to memory of its own, outside the pool.
    pub(super) fn leave_pool(&mut self) {
        self.unpin();
        self.index = NO_SLOT;
    }

    /// Gives the slot memory that the peer cannot write, from which this end reads all frames.
    fn with_copy(mut self) -> Self {
        self.copy = Some(vec![0; self.bytes].into_boxed_slice());
        self
    }

    /// Returns the memory region, for a work request to own; `None` for a copy.
    pub(super) fn into_region(self) -> Option<Region> {
        match self.memory {
            SlotMemory::Registered(region) => Some(region),
            SlotMemory::Heap(_) => None,
        }
    }

    /// Copies the bytes to the heap, and frees the registered memory.
    pub(super) fn unpin(&mut self) {
        if let SlotMemory::Registered(region) = &self.memory {
            let copy = self.copy.take();
            let copy = copy.unwrap_or_else(|| region.bytes()[..self.bytes].into());
            self.memory = SlotMemory::Heap(copy);
        }
    }

    /// Returns a copy of the header, for which each byte of the slot is read once. The peer may change the bytes in the
    /// slot at any time, so only a copy stays as it was checked.
    pub(super) fn header(&self) -> Option<[u8; HEADER_BYTES]> {
        match &self.memory {
            SlotMemory::Registered(region) => region.first(),
            SlotMemory::Heap(bytes) => bytes.first_chunk().copied(),
        }
    }

    /// Copies a frame that has arrived to memory that the peer cannot write, if the slot has such memory.
    pub(super) fn copy_frame(&mut self, frame_bytes: usize) {
        if let (Some(copy), SlotMemory::Registered(region)) = (&mut self.copy, &self.memory) {
            region.copy_to(&mut copy[..frame_bytes]);
        }
    }

    /// Returns the address and the key of the slot, for the peer to write it.
    pub(super) fn token(&self) -> Option<SlotToken> {
        match &self.memory {
            SlotMemory::Registered(region) => Some(region.token()),
            SlotMemory::Heap(_) => None,
        }
    }
}

impl Slot for RdmaSlot {
    fn index(&self) -> u32 {
        self.index
    }

    fn bytes(&self) -> &[u8] {
        match (&self.copy, &self.memory) {
            (Some(bytes), _) | (None, SlotMemory::Heap(bytes)) => bytes,
            (None, SlotMemory::Registered(region)) => &region.bytes()[..self.bytes],
        }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        match (&mut self.copy, &mut self.memory) {
            (Some(bytes), _) | (None, SlotMemory::Heap(bytes)) => bytes,
            (None, SlotMemory::Registered(region)) => &mut region.bytes_mut()[..self.bytes],
        }
    }
}

/// What the pools of a rail are made of.
#[derive(Debug, Clone, Copy)]
pub(super) struct PoolPlan {
    /// The payload of a chunk, in bytes.
    pub(super) chunk_bytes: usize,
    /// The number of slots.
    pub(super) depth: u32,
    /// Received chunks are copied to memory that the peer cannot write.
    pub(super) copies: bool,
}

impl PoolPlan {
    /// Registers a pool with this queue pair.
    /// Fails when the memory cannot be pinned.
    pub(super) fn register(
        self,
        pair: &QueuePairOwner,
        reach: MemoryAccess,
        generation: u32,
    ) -> io::Result<Vec<RdmaSlot>> {
        let bytes = HEADER_BYTES + self.chunk_bytes;
        let copies = self.copies && reach == MemoryAccess::Remote;
        let slot = |index| {
            let region = pair.register(bytes, reach)?;
            let slot = RdmaSlot::new(index, generation, region, bytes);
            Ok(if copies { slot.with_copy() } else { slot })
        };
        (0..self.depth).map(slot).collect()
    }
}
