//! Verbs that async-rdma does not offer: inline and unsignalled sends, receives from registered memory, completions
//! that are polled. A queue pair of this module lives beside those of async-rdma on the same device. The express path,
//! measurements and the public module [`crate::verbs`] use it.
//!
//! # Why every safe call is sound
//!
//! - Each object owns those that it depends on, so none is destroyed too early: the queue pair owns its memory, and is
//!   destroyed before it, so the device never uses memory that was freed. Memory whose registration does not end is
//!   leaked.
//! - A work request names memory by a range that is checked against the region of its own queue pair. The device checks
//!   it once more: the key of the region does not reach beyond it.
//! - No reference to registered memory is ever made, so a device may write it at any time, for a peer too.
//! - Domain, memory and completion queues of a queue pair are compared before a device sees them.
//! - A completion has a number and a result, and owns no memory. A completion queue that overflows loses completions,
//!   which ends its queue pairs; it cannot free memory too early. A queue pair reserves its room, so that this needs a
//!   caller who posts more than the sizes that it asked for.

pub(super) mod device;
pub(super) mod memory;
pub(super) mod operation;
pub(super) mod queue_pair;
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
