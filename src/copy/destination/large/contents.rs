//! Reads what is written of a file.

use std::os::fd::OwnedFd;

use rustix::io::{Errno, pread, retry_on_intr};

use crate::copy::destination::{fault_text::errno_text, state::DestinationState};

/// The bytes that are read at a time.
const READ_BYTES: usize = 1 << 20;

/// Reads a range of a file.
///
/// # Errors
///
/// Fails if the file cannot be read or is shorter, or the work is cancelled.
pub(in crate::copy::destination) fn read_range(
    state: &DestinationState,
    fd: &OwnedFd,
    start: u64,
    end: u64,
    mut take: impl FnMut(&[u8]),
) -> Result<(), String> {
    let mut buffer = vec![0; READ_BYTES];
    let mut offset = start;
    while offset < end {
        if state.halt.is_cancelled() {
            return Err("the copy was ended".to_owned());
        }
        let length = usize::try_from(end - offset).map_or(READ_BYTES, |left| left.min(READ_BYTES));
        match retry_on_intr(|| pread(fd, &mut buffer[..length], offset)) {
            Ok(0) => return Err("cannot read it again: the file is shorter".to_owned()),
            Ok(count) => {
                take(&buffer[..count]);
                offset += count as u64;
            }
            Err(errno) => {
                return Err(format!(
                    "cannot read it again: {}",
                    errno_text::<Errno>(errno)
                ));
            }
        }
    }
    Ok(())
}
