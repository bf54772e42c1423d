//! A region that a peer may write and read, at both ends.

use std::{
    io,
    sync::{
        Arc,
        atomic::{Ordering, fence},
    },
};

use rdma_sys as ffi;
use serde::{Deserialize, Serialize};

use super::{device::ProtectionDomain, memory::MemoryRegion};

/// The address and the key with which a peer writes and reads a region, for as long as the region lives. The key works on every
/// queue pair of the region's protection domain, so send it only to a peer that has authenticated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemoteRegion {
    pub(super) address: u64,
    pub(super) bytes: u64,
    pub(super) key: u32,
}

impl RemoteRegion {
    /// Returns the number of bytes of the region: whole pages.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the address of the `bytes` from `at` on; none if they are not inside the region.
    pub(super) fn address_of(&self, at: usize, bytes: usize) -> Option<u64> {
        let end = (at as u64).checked_add(bytes as u64)?;
        let is_inside = end <= self.bytes;
        is_inside
            .then(|| self.address.checked_add(at as u64))
            .flatten()
    }
}

impl MemoryRegion {
    /// Allocates and registers `bytes` of memory, rounded up to whole pages, that a peer with the key may write and read.
    ///
    /// # Errors
    ///
    /// There is not as much memory, or it cannot be pinned: `ulimit -l` limits that.
    pub fn register_shared(domain: &Arc<ProtectionDomain>, bytes: usize) -> io::Result<Self> {
        use ffi::ibv_access_flags as Access;
        let access = Access::IBV_ACCESS_REMOTE_WRITE | Access::IBV_ACCESS_REMOTE_READ;
        Self::register_for(domain, bytes, access)
    }

    /// Returns the address and the key of the region, for the peer.
    #[must_use]
    #[allow(unsafe_code)]
    pub fn remote(&self) -> RemoteRegion {
        RemoteRegion {
            address: self.start as u64,
            bytes: self.layout.size() as u64,
            // SAFETY: the region lives as long as this value.
            key: unsafe { (*self.region).rkey },
        }
    }

    /// Returns the byte at `at` as it is now: a peer may write it at any time. What the peer wrote before that byte is read
    /// correctly afterwards.
    ///
    /// # Panics
    ///
    /// If it is not inside the region.
    #[allow(unsafe_code)]
    pub(super) fn poll_byte(&self, at: usize) -> u8 {
        self.check(&(at..at + 1));
        // SAFETY: the byte is inside the region, which is initialised, and no reference to it is ever made. A device that
        // writes it changes its value, and every value is valid. The read is volatile, so that the compiler repeats it.
        let byte = unsafe { self.start.add(at).read_volatile() };
        fence(Ordering::Acquire);
        byte
    }

    /// Writes one byte, before any work request that is posted later.
    ///
    /// # Panics
    ///
    /// If it is not inside the region.
    #[allow(unsafe_code)]
    pub(super) fn set_byte(&mut self, at: usize, byte: u8) {
        self.check(&(at..at + 1));
        // SAFETY: the byte is inside the region, and no reference to it is ever made. The write is volatile, so that it is made
        // before the device is told of a work request.
        unsafe { self.start.add(at).write_volatile(byte) };
        fence(Ordering::Release);
    }
}
