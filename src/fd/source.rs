//! A file descriptor to read from.

use std::{
    fmt, io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::Path,
    pin::Pin,
    task::{Context, Poll, ready},
};

use rustix::{
    event::PollFlags,
    fs::{Advice, CWD, FileType, Mode, OFlags, fadvise, fcntl_getfl, fcntl_setfl, openat},
    io::{Errno, retry_on_intr},
};
use tokio::io::{AsyncRead, Interest, ReadBuf, unix::AsyncFd};

use super::{Registered, duplicate, enlarge_pipe, file_type, is_ready, register, register_anew};

/// The input of a program: standard input, a file, a FIFO, or any other descriptor.
///
/// A read returns `Pending` if there is nothing to read now; the pump then treats the source as
/// idle. Regular files and devices that epoll refuses never return `Pending`: they are read on the
/// calling thread.
///
/// The flags of the open file description do not change: standard input is often shared with the
/// shell, which does not expect `O_NONBLOCK` there. poll(2) is called before each read(2) instead. If
/// another process reads the same pipe, it can take the bytes between these two calls; the read then
/// blocks the thread until more bytes arrive.
pub(crate) struct Source {
    name: String,
    kind: SourceKind,
}

enum SourceKind {
    /// Read without waiting, on the calling thread.
    Inline(OwnedFd),
    /// Read when poll(2) reports that a read will not block.
    Polled(AsyncFd<OwnedFd>),
}

impl Source {
    /// Opens standard input through a duplicate of its descriptor.
    ///
    /// # Errors
    ///
    /// Fails if standard input is closed, or not open for reading.
    ///
    /// # Panics
    ///
    /// Panics outside a tokio runtime.
    pub(crate) fn stdin() -> io::Result<Self> {
        let name = "standard input";
        let fd = duplicate(io::stdin().as_fd(), OFlags::WRONLY)?;
        Self::with_name(fd, name.into())
    }

    /// Opens the file at `path`. A FIFO is opened at once, and is idle until a writer opens it.
    ///
    /// # Errors
    ///
    /// Fails as open(2) does, and with "Is a directory" for a directory.
    ///
    /// # Panics
    ///
    /// Panics outside a tokio runtime.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        // Without O_NONBLOCK the open itself would wait for a FIFO's writer.
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let fd = retry_on_intr(|| openat(CWD, path, flags, Mode::empty()))?;
        match file_type(fd.as_fd())? {
            FileType::Directory => return Err(Errno::ISDIR.into()),
            FileType::Fifo => {}
            // The read of a device that cannot be polled must wait, and not fail with EAGAIN.
            _ => fcntl_setfl(&fd, fcntl_getfl(&fd)? - OFlags::NONBLOCK)?,
        }
        Self::with_name(fd, path.display().to_string())
    }

    /// Makes a source of an open descriptor; messages call it "the input".
    ///
    /// # Errors
    ///
    /// Fails if the runtime cannot register the descriptor.
    ///
    /// # Panics
    ///
    /// Panics outside a tokio runtime.
    pub(crate) fn new(fd: OwnedFd) -> io::Result<Self> {
        Self::with_name(fd, "the input".into())
    }

    /// Returns the name of the source for messages: `standard input`, or the path.
    pub(crate) fn describe(&self) -> &str {
        &self.name
    }

    /// Returns true if the source is a regular file. The end of any other source can be the death of
    /// the process that writes it.
    pub(crate) fn is_regular_file(&self) -> bool {
        matches!(file_type(self.as_fd()), Ok(FileType::RegularFile))
    }

    fn with_name(fd: OwnedFd, name: String) -> io::Result<Self> {
        enlarge_pipe(fd.as_fd());
        let kind = match register(fd, Interest::READABLE)? {
            Registered::Always(fd) => {
                // Doubles the read-ahead. Files without read-ahead refuse, which does no harm.
                let _ = fadvise(&fd, 0, None, Advice::Sequential);
                SourceKind::Inline(fd)
            }
            Registered::Polled(fd) => SourceKind::Polled(fd),
        };
        Ok(Self { name, kind })
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

impl AsFd for Source {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.kind {
            SourceKind::Inline(fd) => fd.as_fd(),
            SourceKind::Polled(fd) => fd.get_ref().as_fd(),
        }
    }
}

impl AsyncRead for Source {
    /// Reads with one read(2), straight into `buf`.
    ///
    /// # Cancel safety
    ///
    /// Safe: bytes are either in `buf` or still in the descriptor.
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match &mut self.get_mut().kind {
            SourceKind::Inline(fd) => Poll::Ready(read(fd.as_fd(), buf).map_err(io::Error::from)),
            SourceKind::Polled(fd) => poll_read_polled(fd, cx, buf),
        }
    }
}

fn poll_read_polled(
    fd: &mut AsyncFd<OwnedFd>,
    cx: &mut Context<'_>,
    buf: &mut ReadBuf<'_>,
) -> Poll<io::Result<()>> {
    loop {
        let mut guard = ready!(fd.poll_read_ready(cx))?;
        let hung_up = guard.ready().is_read_closed();
        if is_ready(guard.get_inner().as_fd(), PollFlags::IN)? {
            match read(guard.get_inner().as_fd(), buf) {
                Err(Errno::AGAIN) => {}
                result => return Poll::Ready(result.map_err(io::Error::from)),
            }
        }
        // Clears only the readiness that was seen above: a later event still wakes the task.
        guard.clear_ready();
        if hung_up {
            register_anew(fd, Interest::READABLE)?;
        }
    }
}

/// Calls read(2) once. Memory that is already initialised according to `buf` (the slots of a stream,
/// any `&mut [u8]`) is not cleared first.
fn read(fd: BorrowedFd<'_>, buf: &mut ReadBuf<'_>) -> rustix::io::Result<()> {
    let count = retry_on_intr(|| rustix::io::read(fd, buf.initialize_unfilled()))?;
    buf.advance(count);
    Ok(())
}
