//! Registered slots.

use std::io;

use super::link::{Reach, Region, SlotToken, Unconnected};
use crate::transport::{path::Slot, wire::HEADER_BYTES};

/// A slot in registered memory.
pub(crate) struct RdmaSlot {
    index: u32,
    region: Region,
    bytes: usize,
}

impl RdmaSlot {
    /// The slot that was taken apart by [`into_region`](Self::into_region).
    pub(crate) fn from_region(index: u32, region: Region, bytes: usize) -> Self {
        Self {
            index,
            region,
            bytes,
        }
    }

    /// Its memory, for an operation to own.
    pub(crate) fn into_region(self) -> Region {
        self.region
    }

    /// What the peer needs to write it.
    pub(crate) fn token(&self) -> SlotToken {
        self.region.token()
    }
}

impl Slot for RdmaSlot {
    fn index(&self) -> u32 {
        self.index
    }

    fn bytes(&self) -> &[u8] {
        &self.region.bytes()[..self.bytes]
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.region.bytes_mut()[..self.bytes]
    }
}

/// Registers `depth` slots for chunks of `chunk_bytes`.
///
/// # Errors
///
/// When so much memory cannot be pinned.
pub(crate) fn register(
    link: &Unconnected,
    reach: Reach,
    chunk_bytes: usize,
    depth: u32,
) -> io::Result<Vec<RdmaSlot>> {
    let bytes = HEADER_BYTES + chunk_bytes;
    let slot = |index| {
        let region = link.register(bytes, reach)?;
        Ok(RdmaSlot {
            index,
            region,
            bytes,
        })
    };
    (0..depth).map(slot).collect()
}
