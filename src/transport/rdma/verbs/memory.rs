//! A registered memory region, and a region that a peer may write and read.

use std::{
    io,
    ops::Range,
    ptr,
    sync::{
        Arc,
        atomic::{Ordering, fence},
    },
};

use rdma_sys as ffi;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use serde::{Deserialize, Serialize};

use super::{device::ProtectionDomain, not_null};

/// The most bytes of a work request. Verbs allow 2^31, but devices use that bit of a length: mlx4 for no bytes at all,
/// mlx5 for bytes that are inline.
const MOST_BYTES: u32 = (1 << 31) - 1;

/// Zeroed memory that is registered for this end, and for a peer only if the region is made for that.
///
/// A device may write it at any time: for a receive, a READ, or a WRITE of the peer. So no reference to its bytes is
/// ever made: they are copied in and out. A copy of bytes that are written meanwhile has some old and some new bytes.
pub struct MemoryRegion {
    pub(super) region: *mut ffi::ibv_mr,
    pub(super) start: *mut u8,
    /// The size, in whole pages.
    pub(super) bytes: usize,
    /// What a peer with the key may do.
    remote_access: ffi::ibv_access_flags,
    /// Last: the region is deregistered before its domain may be.
    pub(super) domain: Arc<ProtectionDomain>,
}

// SAFETY: the memory belongs to this value, and is reached through raw pointers only.
#[allow(unsafe_code)]
unsafe impl Send for MemoryRegion {}

impl MemoryRegion {
    /// Allocates and registers `bytes` of memory, rounded up to whole pages, for this end only: no peer has a key for
    /// it.
    ///
    /// # Errors
    ///
    /// There is not as much memory, or it cannot be pinned: `ulimit -l` limits that.
    pub fn register(domain: &Arc<ProtectionDomain>, bytes: usize) -> io::Result<Self> {
        Self::register_for(domain, bytes, ffi::ibv_access_flags(0))
    }

    /// Allocates and registers `bytes` of memory, for this end and what `remote_access` allows a peer.
    #[allow(unsafe_code)]
    pub(super) fn register_for(
        domain: &Arc<ProtectionDomain>,
        bytes: usize,
        remote_access: ffi::ibv_access_flags,
    ) -> io::Result<Self> {
        // Whole pages: pinned memory must share none with other memory, which a fork would copy.
        let pages = bytes
            .max(1)
            .checked_next_multiple_of(rustix::param::page_size());
        let bytes = pages.ok_or(io::ErrorKind::OutOfMemory)?;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel chooses a place where nothing is.
        let start = unsafe { mmap_anonymous(ptr::null_mut(), bytes, access, MapFlags::PRIVATE)? };
        let start = start.cast::<u8>();
        // It is registered before its first byte is used: the kernel makes all pages at once, and not one for each fault.
        let access = ffi::ibv_access_flags::IBV_ACCESS_LOCAL_WRITE | remote_access;
        let access = i32::try_from(access.0).unwrap_or_default();
        // SAFETY: the memory is mapped, and is unmapped after it was deregistered.
        let region = unsafe { ffi::ibv_reg_mr(domain.domain, start.cast(), bytes, access) };
        let region = not_null(region).inspect_err(|_| {
            // SAFETY: it was mapped with this size, and no device knows it.
            let _ = unsafe { munmap(start.cast(), bytes) };
        })?;
        Ok(Self {
            region,
            start,
            bytes,
            remote_access,
            domain: Arc::clone(domain),
        })
    }

    /// Returns the rights of a peer, for the queue pair that uses the memory.
    pub(super) fn remote_access(&self) -> u32 {
        self.remote_access.0
    }

    /// Copies the bytes from `at` on into `copy`.
    ///
    /// # Panics
    ///
    /// If they are not inside the region.
    #[allow(unsafe_code)]
    pub fn read(&self, at: usize, copy: &mut [u8]) {
        self.check(&(at..at + copy.len()));
        // SAFETY: the range is inside the region, which is initialised, and `copy` is other memory. A device that
        // writes the same bytes changes their values, all of which are valid; no reference to them is made.
        unsafe {
            self.start
                .add(at)
                .copy_to_nonoverlapping(copy.as_mut_ptr(), copy.len());
        };
    }

    /// Copies `bytes` into the region, from `at` on.
    ///
    /// # Panics
    ///
    /// If there is no room for them.
    #[allow(unsafe_code)]
    pub fn write(&mut self, at: usize, bytes: &[u8]) {
        self.check(&(at..at + bytes.len()));
        // SAFETY: the range is inside the region, `bytes` is other memory, and no reference to the region exists.
        unsafe {
            self.start
                .add(at)
                .copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
        };
    }

    /// Returns an entry of the scatter/gather list of a work request.
    /// Fails if a work request cannot have so many bytes.
    pub(super) fn entry(&self, range: &Range<usize>) -> io::Result<ffi::ibv_sge> {
        self.check(range);
        let length = u32::try_from(range.len()).ok();
        Ok(ffi::ibv_sge {
            addr: (self.start as u64) + range.start as u64,
            length: length
                .filter(|length| *length <= MOST_BYTES)
                .ok_or(io::ErrorKind::InvalidInput)?,
            lkey: self.local_key(),
        })
    }

    #[allow(unsafe_code)]
    fn local_key(&self) -> u32 {
        // SAFETY: the region lives as long as this value.
        unsafe { (*self.region).lkey }
    }

    pub(super) fn check(&self, range: &Range<usize>) {
        assert!(
            range.start <= range.end && range.end <= self.bytes,
            "{range:?} is outside the region"
        );
    }
}

impl Drop for MemoryRegion {
    #[allow(unsafe_code)]
    fn drop(&mut self) {
        // SAFETY: the queue pair whose work requests use the memory owns it, and is destroyed before it.
        let result = unsafe { ffi::ibv_dereg_mr(self.region) };
        if result == 0 {
            // SAFETY: no device uses the memory any more. It was mapped with this size.
            let _ = unsafe { munmap(self.start.cast(), self.bytes) };
        }
    }
}

/// The address and the key with which a peer writes and reads a region, for as long as the region lives. The key works
/// on every queue pair of the region's protection domain, so send it only to a peer that has authenticated.
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
    /// Allocates and registers `bytes` of memory, rounded up to whole pages, that a peer with the key may write and
    /// read.
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
            bytes: self.bytes as u64,
            // SAFETY: the region lives as long as this value.
            key: unsafe { (*self.region).rkey },
        }
    }

    /// Returns the byte at `at` as it is now: a peer may write it at any time. What the peer wrote before that byte is
    /// read correctly afterwards.
    /// Panics if it is not inside the region.
    #[allow(unsafe_code)]
    pub(super) fn poll_byte(&self, at: usize) -> u8 {
        self.check(&(at..at + 1));
        // SAFETY: the byte is inside the region, which is initialised, and no reference to it is ever made. A device
        // that writes it changes its value, and every value is valid. The read is volatile, so that the compiler
        // repeats it.
        let byte = unsafe { self.start.add(at).read_volatile() };
        fence(Ordering::Acquire);
        byte
    }

    /// Writes one byte, before any work request that is posted later.
    /// Panics if it is not inside the region.
    #[allow(unsafe_code)]
    pub(super) fn set_byte(&mut self, at: usize, byte: u8) {
        self.check(&(at..at + 1));
        // SAFETY: the byte is inside the region, and no reference to it is ever made. The write is volatile, so that it
        // is made before the device is told of a work request.
        unsafe { self.start.add(at).write_volatile(byte) };
        fence(Ordering::Release);
    }
}
