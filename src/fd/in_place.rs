//! Opens a file, a device or a FIFO that is written in place.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    path::Path,
    time::Duration,
};

use rustix::{
    fs::{CWD, FileType, Mode, OFlags, fcntl_getfl, fcntl_setfl, openat, stat},
    io::{Errno, retry_on_intr},
};

use super::{blocking, file_type};

/// The time between two attempts to open a FIFO that has no reader yet. A twentieth of a second is
/// too short for a user to see, and twenty calls a second cost nothing.
const FIFO_INTERVAL: Duration = Duration::from_millis(50);

/// Opens `path` to be written, with `flags` beside those that every such file has. For a FIFO, waits
/// until it has a reader.
///
/// A FIFO without a reader is tried again and again: an open that waits would block a thread, and
/// could not be cancelled.
///
/// # Errors
///
/// Those of open(2).
///
/// # Cancel safety
///
/// Dropping the future may leave an empty file behind, if `flags` create it.
pub(crate) async fn open_in_place(path: &Path, flags: OFlags) -> io::Result<OwnedFd> {
    loop {
        let path = path.to_owned();
        if let Some(fd) = blocking(move || try_open_in_place(&path, flags)).await? {
            return Ok(fd);
        }
        tokio::time::sleep(FIFO_INTERVAL).await;
    }
}

/// Opens the file without waiting. Returns `None` for a FIFO that has no reader.
pub(super) fn try_open_in_place(path: &Path, flags: OFlags) -> io::Result<Option<OwnedFd>> {
    let flags = flags | OFlags::WRONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let mode = Mode::from_raw_mode(0o666);
    let fd = match retry_on_intr(|| openat(CWD, path, flags, mode)) {
        Ok(fd) => fd,
        Err(Errno::NXIO) if is_fifo(path)? => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    if file_type(fd.as_fd())? != FileType::Fifo {
        // A write to a device that cannot be polled must wait, and not fail with EAGAIN.
        fcntl_setfl(&fd, fcntl_getfl(&fd)? - OFlags::NONBLOCK)?;
    }
    Ok(Some(fd))
}

fn is_fifo(path: &Path) -> io::Result<bool> {
    Ok(FileType::from_raw_mode(stat(path)?.st_mode) == FileType::Fifo)
}
