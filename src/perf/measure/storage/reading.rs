//! Reads a file as fast as possible.

use std::{
    fs::File,
    io::{self, Read, Seek},
    path::Path,
    sync::atomic::AtomicBool,
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::{Advice, Mode, OFlags, fadvise, open},
    io::Errno,
};

use super::{BUFFER_BYTES, StorageAmount, StorageClock, check_stop};

/// How often a reader that waits for bytes looks whether it was stopped.
const STOP_INTERVAL: Duration = Duration::from_millis(50);

/// Reads a file for at most `limit`. Starts a regular file again at its end. The time begins when the first bytes can be
/// read, for which it waits `limit` too.
pub(super) fn measure(
    path: &Path,
    limit: Duration,
    is_stopped: &AtomicBool,
) -> io::Result<StorageAmount> {
    // A FIFO without a writer must not block: the measurement could not be stopped.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let mut file = File::from(open(path, flags, Mode::empty())?);
    let is_regular = file.metadata()?.is_file();
    if is_regular {
        // Only clean pages can be dropped from the page cache.
        let _ = file.sync_data();
    }
    forget(&file);
    let mut buffer = vec![0; BUFFER_BYTES];
    let opened = Instant::now();
    while !is_readable(&file)? {
        check_stop(is_stopped)?;
        if opened.elapsed() >= limit {
            let text = format!("nothing could be read within {limit:?}");
            return Err(io::Error::other(text));
        }
    }
    let clock = StorageClock::start();
    let (mut total, mut bytes_of_pass) = (0_u64, 0_u64);
    while clock.began.elapsed() < limit {
        check_stop(is_stopped)?;
        match file.read(&mut buffer) {
            Ok(0) if is_regular && bytes_of_pass > 0 => {
                file.rewind()?;
                forget(&file);
                bytes_of_pass = 0;
            }
            Ok(0) => break,
            Ok(count) => {
                total += count as u64;
                bytes_of_pass += count as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                is_readable(&file)?;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    if total == 0 {
        return Err(io::Error::other("it has no bytes"));
    }
    Ok(clock.stop(total))
}

/// Drops the file from the page cache, so that its bytes come from the disk. A FIFO has none, and the kernel refuses.
fn forget(file: &File) {
    let _ = fadvise(file, 0, None, Advice::DontNeed);
}

/// Waits at most [`STOP_INTERVAL`]. Returns true if bytes, an end or an error can be read.
fn is_readable(file: &File) -> io::Result<bool> {
    let timeout = Timespec::try_from(STOP_INTERVAL).map_err(io::Error::other)?;
    let mut fds = [PollFd::new(file, PollFlags::IN)];
    match poll(&mut fds, Some(&timeout)) {
        Ok(count) => Ok(count > 0),
        Err(Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}
