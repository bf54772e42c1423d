//! An allocator that counts what is as large as a chunk.
#![allow(unsafe_code, reason = "an allocator cannot be written without")]

use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::atomic::{AtomicUsize, Ordering},
};

use super::pools::CHUNK;

/// The system's allocator, counted. For a test binary of its own, as `#[global_allocator]`.
pub(crate) struct Counted;

/// Live allocations of a [`CHUNK`] or more.
static LIVE: AtomicUsize = AtomicUsize::new(0);

/// Live allocations of a [`CHUNK`] or more.
pub(crate) fn live() -> usize {
    LIVE.load(Ordering::SeqCst)
}

fn is_large(bytes: usize) -> bool {
    bytes as u64 >= CHUNK
}

fn born(bytes: usize) {
    if is_large(bytes) {
        LIVE.fetch_add(1, Ordering::SeqCst);
    }
}

fn died(bytes: usize) {
    if is_large(bytes) {
        LIVE.fetch_sub(1, Ordering::SeqCst);
    }
}

// SAFETY: every call goes on to the system's allocator as it came, so that its promises are ours;
// counting is an operation on an atomic number, which neither allocates nor panics.
unsafe impl GlobalAlloc for Counted {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        born(layout.size());
        // SAFETY: what the caller promises of `layout` is what is asked for here.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        born(layout.size());
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        died(layout.size());
        // SAFETY: the caller has `memory` from here, so from the system's allocator, with this layout.
        unsafe { System.dealloc(memory, layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        died(layout.size());
        born(bytes);
        // SAFETY: as above, and the caller promises of `bytes` what is asked for here.
        unsafe { System.realloc(memory, layout, bytes) }
    }
}
