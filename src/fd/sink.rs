//! A file descriptor to write to.

use std::{
    fmt, io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    pin::Pin,
    task::{Context, Poll, ready},
};

use rustix::{
    event::PollFlags,
    fs::{CWD, FileType, Mode, OFlags, fstat, major, minor, openat},
    io::{Errno, retry_on_intr},
    net::{SendFlags, send},
    termios::isatty,
};
use tokio::io::{AsyncWrite, Interest, unix::AsyncFd};

use super::{
    Registered, blocking, close, duplicate, enlarge_pipe, file_type, is_ready, register,
    register_anew, sync,
};

/// Most bytes of one write(2) to a pipe that is shared, and so may block: `PIPE_BUF`, for which
/// a pipe that is ready for writing has room.
const SHARED_WRITE_BYTES: usize = 4096;

/// What a program writes to: standard output, a file, or any descriptor.
///
/// Regular files and devices that epoll refuses are written on the calling thread. A pipe or a
/// terminal is opened once more, so that `O_NONBLOCK` can be set on an open file description of
/// our own; the one that is shared with other processes stays as it is.
pub(crate) struct Sink {
    name: String,
    kind: SinkKind,
}

enum SinkKind {
    /// Written at once, on the calling thread.
    Inline(OwnedFd),
    /// A pipe or terminal, non-blocking through a file description of our own.
    Reopened(AsyncFd<OwnedFd>),
    /// A file description that may be shared: small writes, when poll(2) says there is room.
    Shared(AsyncFd<OwnedFd>),
    /// A socket, where each call says for itself that it must not block.
    Socket(AsyncFd<OwnedFd>),
}

impl Sink {
    /// Standard output, through a descriptor of our own.
    ///
    /// # Errors
    ///
    /// When standard output is closed, or not open for writing. (std opens `/dev/null` in the
    /// place of a standard stream that is closed when the program starts.)
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime.
    pub(crate) fn stdout() -> io::Result<Self> {
        let name = "standard output";
        // RDONLY is the number 0.
        let fd = duplicate(io::stdout().as_fd(), name, OFlags::RDONLY)?;
        Self::new(fd, name)
    }

    /// Any open descriptor; `name` is what messages call it.
    ///
    /// # Errors
    ///
    /// When the runtime cannot wait for it.
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime.
    pub(crate) fn new(fd: OwnedFd, name: impl Into<String>) -> io::Result<Self> {
        enlarge_pipe(fd.as_fd());
        let file_type = file_type(fd.as_fd())?;
        let reopened = reopen(fd.as_fd(), file_type)?;
        let own = reopened.is_some();
        let kind = match register(reopened.unwrap_or(fd), Interest::WRITABLE)? {
            Registered::Always(fd) => SinkKind::Inline(fd),
            Registered::Polled(fd) if own => SinkKind::Reopened(fd),
            Registered::Polled(fd) if file_type == FileType::Socket => SinkKind::Socket(fd),
            Registered::Polled(fd) => SinkKind::Shared(fd),
        };
        Ok(Self {
            name: name.into(),
            kind,
        })
    }

    /// What it is, for messages: `standard output`, or the path.
    pub(crate) fn describe(&self) -> &str {
        &self.name
    }

    /// Closes the descriptor, after an fsync(2) if `fsync` asks for it and the file knows it.
    /// Standard output itself stays open: what is closed is our duplicate, which makes the file
    /// system report what it held back.
    ///
    /// # Errors
    ///
    /// Those of fsync(2) and close(2). The descriptor is closed in any case.
    ///
    /// # Cancel safety
    ///
    /// Not cancel safe: the descriptor is closed nevertheless, and the result is lost.
    pub(crate) async fn close(self, fsync: bool) -> io::Result<()> {
        let fd = self.into_fd();
        blocking(move || {
            if fsync {
                sync(fd.as_fd())?;
            }
            close(fd)
        })
        .await
    }

    /// The descriptor, no longer registered with the runtime.
    pub(super) fn into_fd(self) -> OwnedFd {
        match self.kind {
            SinkKind::Inline(fd) => fd,
            SinkKind::Reopened(fd) | SinkKind::Shared(fd) | SinkKind::Socket(fd) => fd.into_inner(),
        }
    }

    /// Makes a sink of an inherited pipe as [`new`](Self::new) does where it cannot be reopened.
    #[cfg(test)]
    pub(super) fn shared(fd: OwnedFd) -> io::Result<Self> {
        let fd = super::poll_with(fd, Interest::WRITABLE).map_err(|(_, error)| error)?;
        Ok(Self {
            name: "a shared pipe".into(),
            kind: SinkKind::Shared(fd),
        })
    }
}

impl fmt::Display for Sink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

impl AsFd for Sink {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.kind {
            SinkKind::Inline(fd) => fd.as_fd(),
            SinkKind::Reopened(fd) | SinkKind::Shared(fd) | SinkKind::Socket(fd) => {
                fd.get_ref().as_fd()
            }
        }
    }
}

impl AsyncWrite for Sink {
    /// One write(2), which may be short.
    ///
    /// # Cancel safety
    ///
    /// Nothing is kept here: the bytes that it counts were taken by the system.
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        match &mut self.get_mut().kind {
            SinkKind::Inline(fd) => Poll::Ready(write(fd.as_fd(), buf).map_err(io::Error::from)),
            SinkKind::Reopened(fd) => poll_write_polled(fd, cx, |fd| write(fd, buf)),
            SinkKind::Shared(fd) => poll_write_polled(fd, cx, |fd| write_shared(fd, buf)),
            SinkKind::Socket(fd) => poll_write_polled(fd, cx, |fd| {
                let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
                retry_on_intr(|| send(fd, buf, flags))
            }),
        }
    }

    /// Always ready: nothing is held back here.
    ///
    /// # Cancel safety
    ///
    /// Does nothing.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    /// Always ready: [`Sink::close`] is what ends a sink.
    ///
    /// # Cancel safety
    ///
    /// Does nothing.
    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

fn poll_write_polled(
    fd: &mut AsyncFd<OwnedFd>,
    cx: &mut Context<'_>,
    mut write: impl FnMut(BorrowedFd<'_>) -> rustix::io::Result<usize>,
) -> Poll<io::Result<usize>> {
    loop {
        let mut guard = ready!(fd.poll_write_ready(cx))?;
        let hung_up = guard.ready().is_write_closed();
        match write(guard.get_inner().as_fd()) {
            Err(Errno::AGAIN) => {}
            result => return Poll::Ready(result.map_err(io::Error::from)),
        }
        // Forgets only the readiness that was seen above: what came since then still wakes us.
        guard.clear_ready();
        if hung_up {
            register_anew(fd, Interest::WRITABLE)?;
        }
    }
}

fn write(fd: BorrowedFd<'_>, buf: &[u8]) -> rustix::io::Result<usize> {
    retry_on_intr(|| rustix::io::write(fd, buf))
}

/// Writes what cannot block, or says `EAGAIN`.
fn write_shared(fd: BorrowedFd<'_>, buf: &[u8]) -> rustix::io::Result<usize> {
    if !is_ready(fd, PollFlags::OUT)? {
        return Err(Errno::AGAIN);
    }
    write(fd, &buf[..buf.len().min(SHARED_WRITE_BYTES)])
}

/// Opens a pipe or terminal once more, non-blocking. `None` where that cannot be done: other
/// kinds, no `/proc`, not our file, a FIFO without a reader at this moment.
fn reopen(fd: BorrowedFd<'_>, file_type: FileType) -> io::Result<Option<OwnedFd>> {
    let terminal = file_type == FileType::CharacterDevice && isatty(fd) && !is_master(fd)?;
    if file_type != FileType::Fifo && !terminal {
        return Ok(None);
    }
    let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
    let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    Ok(retry_on_intr(|| openat(CWD, path.as_str(), flags, Mode::empty())).ok())
}

/// Whether this is the master side of a pseudo-terminal (`/dev/ptmx`, 5:2): to open that again
/// makes another terminal.
fn is_master(fd: BorrowedFd<'_>) -> io::Result<bool> {
    let device = fstat(fd)?.st_rdev;
    Ok((major(device), minor(device)) == (5, 2))
}
