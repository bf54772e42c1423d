//! The local ends of a stream: file descriptors as sources and sinks, and the file of `>`.
//!
//! Regular files are read and written right on the runtime's thread: a hop to a helper thread and
//! back costs more than the copy of one chunk. All that can make a thread wait for somebody else
//! (pipes, terminals, sockets, the opening of a FIFO, `fsync`, `close`) waits asynchronously.

mod sink;
mod source;
mod target;
mod temporary;
#[cfg(test)]
mod tests;

pub(crate) use sink::Sink;
pub(crate) use source::Source;
pub(crate) use target::OutputTarget;

use std::{
    ffi::c_int,
    io,
    os::fd::{AsFd, BorrowedFd, IntoRawFd, OwnedFd},
    panic::resume_unwind,
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::{FileType, OFlags, fcntl_getfl, fstat},
    io::{Errno, retry_on_intr},
    pipe::{fcntl_getpipe_size, fcntl_setpipe_size},
};
use tokio::io::{
    Interest,
    unix::{AsyncFd, AsyncFdRegisterError},
};

/// What a pipe is enlarged to, in bytes: the most that `/proc/sys/fs/pipe-max-size` grants an
/// ordinary user by default, and four chunks of the default size.
const PIPE_BYTES: usize = 1 << 20;

/// A descriptor, sorted by how one waits for it.
enum Registered {
    /// epoll refuses it (regular files, block devices, `/dev/null`): it is always ready.
    Always(OwnedFd),
    /// epoll tells when it is ready.
    Polled(AsyncFd<OwnedFd>),
}

/// Registers `fd` with the runtime, if it is of a kind that can be waited for.
///
/// Regular files are not even tried: those of `/proc` can be polled, and mean nothing by it.
///
/// # Errors
///
/// When the runtime cannot take the descriptor, other than because of its kind.
///
/// # Panics
///
/// Outside a tokio runtime with I/O enabled.
fn register(fd: OwnedFd, interest: Interest) -> io::Result<Registered> {
    if file_type(fd.as_fd())? == FileType::RegularFile {
        return Ok(Registered::Always(fd));
    }
    match poll_with(fd, interest) {
        Ok(fd) => Ok(Registered::Polled(fd)),
        Err((fd, error)) if Errno::from_io_error(&error) == Some(Errno::PERM) => {
            Ok(Registered::Always(fd))
        }
        Err((_, error)) => Err(error),
    }
}

/// Registers the descriptor anew, so that it forgets a hang-up that tokio takes for final.
///
/// On a FIFO it is not: after the last peer left, the next may come. A duplicate is registered,
/// because epoll does not take the same descriptor twice.
fn register_anew(fd: &mut AsyncFd<OwnedFd>, interest: Interest) -> io::Result<()> {
    let again = fd.get_ref().try_clone()?;
    *fd = poll_with(again, interest).map_err(|(_, error)| error)?;
    Ok(())
}

#[allow(unsafe_code)]
fn poll_with(fd: OwnedFd, interest: Interest) -> Result<AsyncFd<OwnedFd>, (OwnedFd, io::Error)> {
    // SAFETY: an `OwnedFd` is open as long as it lives and always has the same number, and the
    // `AsyncFd` owns it. Nobody gets it out mutably: we only ever use `get_ref`, and `into_inner`,
    // which ends the registration first.
    let registered = unsafe { AsyncFd::register_with_interest(fd, interest) };
    registered.map_err(AsyncFdRegisterError::into_parts)
}

fn file_type(fd: BorrowedFd<'_>) -> io::Result<FileType> {
    Ok(FileType::from_raw_mode(fstat(fd)?.st_mode))
}

/// Whether one of `events`, a hang-up or an error is there right now. Never waits.
fn is_ready(fd: BorrowedFd<'_>, events: PollFlags) -> rustix::io::Result<bool> {
    let mut fds = [PollFd::from_borrowed_fd(fd, events)];
    let ready = retry_on_intr(|| poll(&mut fds, Some(&Timespec::default())))?;
    Ok(ready > 0)
}

/// A descriptor of our own for one of the standard streams.
///
/// # Errors
///
/// A message that says so when the stream is closed, or open only for `wrong`.
fn duplicate(fd: BorrowedFd<'_>, name: &str, wrong: OFlags) -> io::Result<OwnedFd> {
    let own = fd.try_clone_to_owned().map_err(|error| {
        if Errno::from_io_error(&error) == Some(Errno::BADF) {
            io::Error::new(io::ErrorKind::NotConnected, format!("{name} is closed"))
        } else {
            error
        }
    })?;
    if fcntl_getfl(&own)? & OFlags::ACCMODE == wrong {
        let message = format!("{name} is not open in the direction it is used");
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, message));
    }
    Ok(own)
}

/// Gives a pipe room for [`PIPE_BYTES`]. Does nothing to whatever is not a pipe, and nothing
/// where the system's limits forbid it: a small pipe is slower, not wrong.
fn enlarge_pipe(fd: BorrowedFd<'_>) {
    if fcntl_getpipe_size(fd).is_ok_and(|bytes| bytes < PIPE_BYTES) {
        let _ = fcntl_setpipe_size(fd, PIPE_BYTES);
    }
}

/// Runs `work` where it may block.
///
/// # Errors
///
/// Those of `work`, and one when the runtime is shutting down.
///
/// # Cancel safety
///
/// Not cancel safe: `work` goes on when the future is dropped, and its result is lost.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => resume_unwind(panic),
            Err(_) => Err(io::Error::other("the runtime is shutting down")),
        },
    }
}

/// `fsync(2)`, except of things that know no such operation.
fn sync(fd: BorrowedFd<'_>) -> io::Result<()> {
    match retry_on_intr(|| rustix::fs::fsync(fd)) {
        // fsync(2): "bound to a special file which does not support synchronization".
        Err(Errno::INVAL | Errno::ROFS) => Ok(()),
        result => Ok(result?),
    }
}

/// Closes `fd` and reports what close(2) says: on NFS and FUSE it is the first to tell that
/// written data did not reach the disk. May block.
///
/// EINTR is an error as well, and not retried: the descriptor is gone then, and whether the data
/// arrived is not known.
#[allow(unsafe_code)]
fn close(fd: OwnedFd) -> io::Result<()> {
    // Neither std nor rustix, as it is configured, reports the result of close(2).
    unsafe extern "C" {
        #[link_name = "close"]
        fn close_raw(fd: c_int) -> c_int;
    }
    // SAFETY: this is POSIX's `int close(int)`, which std links already and which touches no
    // memory of ours. `into_raw_fd` has just released the descriptor, so its number is ours to
    // close; it is not used again, whatever the answer is.
    let result = unsafe { close_raw(fd.into_raw_fd()) };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}
