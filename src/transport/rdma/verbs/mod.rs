//! Verbs that async-rdma does not offer: inline and unsignalled sends, receives from registered memory, completions that
//! are polled. A queue pair of this module lives beside those of async-rdma on the same device.
//!
//! | file | what it has |
//! |---|---|
//! | [`device`] | an open device and its protection domain |
//! | [`memory`] | a registered memory region |
//! | [`completions`] | a completion queue and its completion channel |
//! | [`queue_pair`] | a queue pair with its memory: connect, send, receive |
//! | `remote_region` | a region that a peer may write and read, for measurements |
//! | `operation` | WRITE, READ and SEND as a measurement posts them |
//! | `event_wait` | a thread that waits for a completion |
//!
//! Each object owns those that it depends on, so none is destroyed too early: the queue pair owns its memory, and is destroyed
//! before it, so the device never uses memory that was freed.

pub(super) mod completions;
pub(super) mod device;
#[cfg(feature = "cli")]
mod event_wait;
pub(super) mod memory;
#[cfg(feature = "cli")]
pub(super) mod operation;
pub(super) mod queue_pair;
#[cfg(feature = "cli")]
pub(super) mod remote_region;
#[cfg(test)]
mod tests;

use std::io;

/// Returns the error of a call that returns an error number.
fn check(result: i32) -> io::Result<()> {
    match result {
        0 => Ok(()),
        -1 => Err(io::Error::last_os_error()),
        // Providers disagree on the sign.
        number => Err(io::Error::from_raw_os_error(number.abs())),
    }
}

/// Returns the error of a call that returns no object.
fn not_null<T>(object: *mut T) -> io::Result<*mut T> {
    if object.is_null() {
        Err(io::Error::last_os_error())
    } else {
        Ok(object)
    }
}
