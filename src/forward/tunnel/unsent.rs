//! How many bytes of a TCP socket are under way: the system call for which there is no safe function.
#![allow(unsafe_code)]

use std::os::fd::AsFd;

use rustix::ioctl::{Getter, Opcode, ioctl};

/// `SIOCOUTQ`, which has the number of `TIOCOUTQ`.
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the type of the constant depends on the C library"
)]
const UNSENT: Opcode = libc::TIOCOUTQ as Opcode;

/// Returns the number of bytes that were written to a TCP socket and that its other end has not acknowledged.
pub(super) fn unsent(socket: impl AsFd) -> usize {
    // SAFETY: the opcode is that of `SIOCOUTQ`, for which the kernel writes one `int`.
    let unsent = unsafe { ioctl(socket, Getter::<UNSENT, libc::c_int>::new()) };
    unsent.map_or(0, |unsent| usize::try_from(unsent).unwrap_or(0))
}
