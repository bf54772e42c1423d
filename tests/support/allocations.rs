//! An allocator that counts the allocations of the size of a chunk or more.
#![allow(unsafe_code, reason = "an allocator cannot be written without")]

use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::atomic::{AtomicUsize, Ordering},
};

use super::data_path::CHUNK;

/// The allocator of the system, with a count of large allocations. Only for a test that is alone in its binary, as
/// `#[global_allocator]`.
pub(crate) struct Counted;

/// The number of live allocations of [`CHUNK`] bytes or more.
static LIVE: AtomicUsize = AtomicUsize::new(0);

/// Returns the number of live allocations of [`CHUNK`] bytes or more.
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

// SAFETY: every call is passed unchanged to the allocator of the system, which keeps the promises of `GlobalAlloc`.
// Counting is an operation on an atomic number, which neither allocates nor panics.
unsafe impl GlobalAlloc for Counted {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        born(layout.size());
        // SAFETY: `System.alloc` requires of `layout` exactly what the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        born(layout.size());
        // SAFETY: `System.alloc_zeroed` requires of `layout` exactly what the caller promises.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        died(layout.size());
        // SAFETY: `memory` comes from this allocator, so from `System`, with this layout.
        unsafe { System.dealloc(memory, layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        died(layout.size());
        born(bytes);
        // SAFETY: `memory` comes from `System` with this layout, and the caller promises of `bytes` what
        // `System.realloc` requires.
        unsafe { System.realloc(memory, layout, bytes) }
    }
}
