//! A registered memory region.

use std::{
    alloc::{Layout, alloc_zeroed, dealloc},
    io,
    ops::Range,
    sync::Arc,
};

use rdma_sys as ffi;

use super::{device::ProtectionDomain, not_null};

/// The most bytes of a work request. Verbs allow 2^31, but devices use that bit of a length: mlx4 for no bytes at all, mlx5 for
/// bytes that are inline.
const MOST_BYTES: u32 = (1 << 31) - 1;

/// Zeroed memory that is registered for this end, and for a peer only if the region is made for that.
///
/// A device may write it at any time: for a receive, a READ, or a WRITE of the peer. So no reference to its bytes is ever made:
/// they are copied in and out. A copy of bytes that are written meanwhile has some old and some new bytes.
pub struct MemoryRegion {
    pub(super) region: *mut ffi::ibv_mr,
    pub(super) start: *mut u8,
    pub(super) layout: Layout,
    /// What a peer with the key may do.
    remote_access: ffi::ibv_access_flags,
    /// Last: the region is deregistered before its domain may be.
    pub(super) domain: Arc<ProtectionDomain>,
}

// SAFETY: the memory belongs to this value, and is reached through raw pointers only.
#[allow(unsafe_code)]
unsafe impl Send for MemoryRegion {}

impl MemoryRegion {
    /// Allocates and registers `bytes` of memory, rounded up to whole pages, for this end only: no peer has a key for it.
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
        let layout = Layout::from_size_align(bytes.max(1), rustix::param::page_size());
        let layout = layout.map_err(io::Error::other)?.pad_to_align();
        // SAFETY: the size is not zero.
        let start = unsafe { alloc_zeroed(layout) };
        if start.is_null() {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        let access = ffi::ibv_access_flags::IBV_ACCESS_LOCAL_WRITE | remote_access;
        let access = i32::try_from(access.0).unwrap_or_default();
        // SAFETY: the memory is allocated, and is freed after it was deregistered.
        let region = unsafe { ffi::ibv_reg_mr(domain.domain, start.cast(), layout.size(), access) };
        let region = not_null(region).inspect_err(|_| {
            // SAFETY: it was allocated with this layout, and no device knows it.
            unsafe { dealloc(start, layout) };
        })?;
        Ok(Self {
            region,
            start,
            layout,
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
        // SAFETY: the range is inside the region, which is initialised, and `copy` is other memory. A device that writes the
        // same bytes changes their values, all of which are valid; no reference to them is made.
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
    ///
    /// # Errors
    ///
    /// A work request cannot have so many bytes.
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
            range.start <= range.end && range.end <= self.layout.size(),
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
            // SAFETY: no device uses the memory any more. It was allocated with this layout.
            unsafe { dealloc(self.start, self.layout) };
        }
    }
}
