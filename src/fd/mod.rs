//! The local ends of a stream: file descriptors as sources and sinks, and the file of `>`.
//!
//! Regular files are read and written on the runtime's thread: a hop to a helper thread and back
//! costs more than the copy of one chunk. Operations that depend on another process (pipes,
//! terminals, sockets, the opening of a FIFO) and slow system calls (`fsync`, `close`) do not block
//! that thread.
//!
//! | file | what it has |
//! |---|---|
//! | `source` | a file descriptor to read from |
//! | `sink` | a file descriptor to write to |
//! | `positions` | a regular file that several threads read or write at once |
//! | `target` | the output file of `>`: all of it or nothing, where the file system allows that |
//! | `temporary` | a file with no name or a temporary one, until it replaces its target |

mod descriptor;
mod positions;
mod target;
mod temporary;
#[cfg(test)]
mod tests;

pub(crate) use self::descriptor::Sink;
pub(crate) use self::descriptor::Source;
pub(crate) use self::positions::{PositionedReader, PositionedWriter};
pub(crate) use self::target::open_in_place;
pub(crate) use self::temporary::replace_file;
pub(crate) use target::{OutputTarget, is_emptied, special_path};
#[cfg(test)]
pub(crate) use temporary::temporary_name;
pub(crate) use temporary::umask;

use std::{
    ffi::c_int,
    fs, io,
    os::fd::{AsFd, BorrowedFd, IntoRawFd, OwnedFd},
    path::Path,
    sync::OnceLock,
};

use aws_lc_rs::digest::{Context, SHA256};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::{FileType, OFlags, SeekFrom, Stat, fcntl_getfl, fstat, seek, stat},
    io::{Errno, retry_on_intr},
    net::{
        AddressFamily,
        sockopt::{
            set_socket_send_buffer_size, set_socket_send_buffer_size_force, socket_domain,
            socket_send_buffer_size,
        },
    },
    pipe::{fcntl_getpipe_size, fcntl_setpipe_size},
};
use serde::{Deserialize, Serialize};
use tokio::io::{
    Interest,
    unix::{AsyncFd, AsyncFdRegisterError},
};

use crate::threads;

/// The capacity in bytes that pipes are enlarged to: the most that `/proc/sys/fs/pipe-max-size`
/// grants an ordinary user by default, and two chunks of the default size over TCP.
const PIPE_BYTES: usize = 1 << 20;

/// A descriptor, by the way to wait until it is ready.
enum Registered {
    /// epoll refuses the descriptor (regular files, block devices, `/dev/null`): it is always ready.
    Always(OwnedFd),
    /// epoll reports when the descriptor is ready.
    Polled(AsyncFd<OwnedFd>),
}

/// Registers `fd` with the runtime, if epoll accepts its file type.
///
/// Regular files are never registered: epoll accepts some files of `/proc`, but its events for them
/// do not tell whether a read would block.
/// Fails if the runtime refuses the descriptor for a reason other than its file type.
/// Panics outside a tokio runtime with I/O enabled.
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

/// Registers the descriptor again, to clear a hang-up that tokio considers final.
///
/// On a FIFO a hang-up is not final: after the last peer has closed it, another may open it. A
/// duplicate is registered, because epoll does not accept the same descriptor twice.
fn register_anew(fd: &mut AsyncFd<OwnedFd>, interest: Interest) -> io::Result<()> {
    let again = fd.get_ref().try_clone()?;
    *fd = poll_with(again, interest).map_err(|(_, error)| error)?;
    Ok(())
}

#[allow(unsafe_code)]
fn poll_with(fd: OwnedFd, interest: Interest) -> Result<AsyncFd<OwnedFd>, (OwnedFd, io::Error)> {
    // SAFETY: an `OwnedFd` is open as long as it lives and always has the same number, and the
    // `AsyncFd` owns it. No code here reaches it mutably: only `get_ref` is used, and `into_inner`,
    // which ends the registration first.
    let registered = unsafe { AsyncFd::register_with_interest(fd, interest) };
    registered.map_err(AsyncFdRegisterError::into_parts)
}

fn file_type(fd: BorrowedFd<'_>) -> io::Result<FileType> {
    Ok(FileType::from_raw_mode(fstat(fd)?.st_mode))
}

/// Returns the number of bytes from the position of a regular file to its end; none if there are none, or if it is
/// another file.
pub(crate) fn bytes_left(fd: BorrowedFd<'_>) -> Option<u64> {
    let stat = fstat(fd).ok()?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return None;
    }
    let position = seek(fd, SeekFrom::Current(0)).ok()?;
    let size = u64::try_from(stat.st_size).ok()?;
    size.checked_sub(position).filter(|left| *left > 0)
}

/// Returns true if one of `events`, a hang-up or an error is present now. Never waits.
fn is_ready(fd: BorrowedFd<'_>, events: PollFlags) -> rustix::io::Result<bool> {
    let mut fds = [PollFd::from_borrowed_fd(fd, events)];
    let ready = retry_on_intr(|| poll(&mut fds, Some(&Timespec::default())))?;
    Ok(ready > 0)
}

/// Duplicates the descriptor of a standard stream.
/// Fails if the stream is closed, or open only in the direction `wrong`. A stream that was closed when the program
/// started is open in that direction, see
/// [`keep_closed_streams_unusable`](crate::process::keep_closed_streams_unusable).
fn duplicate(fd: BorrowedFd<'_>, wrong: OFlags) -> io::Result<OwnedFd> {
    let unusable = || {
        let purpose = if wrong == OFlags::WRONLY {
            "reading"
        } else {
            "writing"
        };
        let message = format!("it is closed, or not open for {purpose}");
        io::Error::new(io::ErrorKind::NotConnected, message)
    };
    let own = match fd.try_clone_to_owned() {
        Err(error) if Errno::from_io_error(&error) == Some(Errno::BADF) => return Err(unusable()),
        own => own?,
    };
    if fcntl_getfl(&own)? & OFlags::ACCMODE == wrong {
        return Err(unusable());
    }
    Ok(own)
}

/// Enlarges a pipe to [`PIPE_BYTES`]. Does nothing if `fd` is not a pipe, or if a limit of the system
/// forbids it: a small pipe is slower, but works.
fn enlarge_pipe(fd: BorrowedFd<'_>) {
    if fcntl_getpipe_size(fd).is_ok_and(|bytes| bytes < PIPE_BYTES) {
        let _ = fcntl_setpipe_size(fd, PIPE_BYTES);
    }
}

/// Enlarges the send buffer of a UNIX socket, which programs such as rsync use as pipes, towards [`PIPE_BYTES`], as far
/// as the limits of the system allow. In the default size there is so little to read that a reader as fast as rsync
/// finds it empty before a sleeping writer runs again. The kernel sizes the buffers of TCP itself.
fn enlarge_unix_socket(fd: BorrowedFd<'_>) {
    /// The kernel reserves twice as many.
    const BYTES: usize = PIPE_BYTES / 2;
    let is_unix = socket_domain(fd).is_ok_and(|domain| domain == AddressFamily::UNIX);
    if is_unix && socket_send_buffer_size(fd).is_ok_and(|bytes| bytes < PIPE_BYTES) {
        let forced = set_socket_send_buffer_size_force(fd, BYTES);
        let _ = forced.or_else(|_| set_socket_send_buffer_size(fd, BYTES));
    }
}

/// Runs `work` on a thread that may block.
/// Fails if `work` does, or if the system cannot start a thread.
/// Not cancel safe: `work` continues if the future is dropped, and its result is lost.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    threads::blocking(work).await?
}

/// Calls fsync(2), and succeeds for files that do not support it.
pub(crate) fn sync(fd: BorrowedFd<'_>) -> io::Result<()> {
    match retry_on_intr(|| rustix::fs::fsync(fd)) {
        // fsync(2): "bound to a special file which does not support synchronization".
        Err(Errno::INVAL | Errno::ROFS) => Ok(()),
        result => Ok(result?),
    }
}

/// Closes `fd` and returns the result of close(2). May block.
///
/// On NFS and FUSE, close(2) is the first call to report that written data did not reach the disk.
/// EINTR is also an error and is not retried: the descriptor is closed by then, and the fate of the
/// data is unknown.
#[allow(unsafe_code)]
pub(crate) fn close(fd: OwnedFd) -> io::Result<()> {
    // Neither std nor rustix, as it is configured, reports the result of close(2).
    unsafe extern "C" {
        #[link_name = "close"]
        fn close_raw(fd: c_int) -> c_int;
    }
    // SAFETY: this is POSIX's `int close(int)`, which std links already and which accesses no
    // memory of this process. `into_raw_fd` has just released the descriptor, so this function owns
    // its number; the number is not used again, whatever the result is.
    let result = unsafe { close_raw(fd.into_raw_fd()) };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Which file a path or a descriptor leads to, whatever name, link or host leads to it: a digest of the start of a
/// machine, a device and an inode, equal for two entries only if they are one. It tells a peer nothing else.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct EntryIdentity([u8; 16]);

impl EntryIdentity {
    /// Returns the identity of an entry. None if the system does not show the id of its start.
    pub(crate) fn of(stat: &Stat) -> Option<Self> {
        static BOOT: OnceLock<Option<Vec<u8>>> = OnceLock::new();
        let boot = BOOT.get_or_init(|| fs::read("/proc/sys/kernel/random/boot_id").ok());
        let mut digest = Context::new(&SHA256);
        digest.update(boot.as_ref()?);
        digest.update(&stat.st_dev.to_le_bytes());
        digest.update(&stat.st_ino.to_le_bytes());
        digest.finish().as_ref().first_chunk().copied().map(Self)
    }

    /// Returns the identity of the regular file at a path; none if it is no regular file, or cannot be looked at.
    pub(crate) fn of_file(path: &Path) -> Option<Self> {
        regular(&stat(path).ok()?)
    }

    /// Returns the identity of the regular file that a descriptor is open on; none if it is no regular file.
    pub(crate) fn of_open_file(file: impl AsFd) -> Option<Self> {
        regular(&fstat(file).ok()?)
    }
}

fn regular(stat: &Stat) -> Option<EntryIdentity> {
    let is_regular = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
    is_regular.then(|| EntryIdentity::of(stat)).flatten()
}
