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

/// What a program reads from: standard input, a file, a FIFO, or any descriptor.
///
/// `Pending` means that there is nothing to read now, which the pump takes as "idle". Regular
/// files and devices that epoll refuses are never `Pending`: they are read on the calling thread.
///
/// The open file description is left as it is. Standard input is often shared with the shell,
/// which does not expect `O_NONBLOCK` there; so poll(2) is asked before each read(2). Where
/// another process reads the same pipe at the same time, it can take the bytes between the two,
/// and the read waits on the thread for the next ones.
pub(crate) struct Source {
    name: String,
    kind: SourceKind,
}

enum SourceKind {
    /// Read at once, on the calling thread.
    Inline(OwnedFd),
    /// Read when poll(2) says that it will not block.
    Polled(AsyncFd<OwnedFd>),
}

impl Source {
    /// Standard input, through a descriptor of our own.
    ///
    /// # Errors
    ///
    /// When standard input is closed, or not open for reading. (std opens `/dev/null` in the
    /// place of a standard stream that is closed when the program starts: that is an empty input.)
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime.
    pub(crate) fn stdin() -> io::Result<Self> {
        let name = "standard input";
        let fd = duplicate(io::stdin().as_fd(), name, OFlags::WRONLY)?;
        Self::with_name(fd, name.into())
    }

    /// The file at `path`. A FIFO is opened at once, and idle until a writer comes.
    ///
    /// # Errors
    ///
    /// Those of open(2), and "Is a directory" for a directory.
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        // Without O_NONBLOCK the open itself would wait for a FIFO's writer.
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let fd = retry_on_intr(|| openat(CWD, path, flags, Mode::empty()))?;
        match file_type(fd.as_fd())? {
            FileType::Directory => return Err(Errno::ISDIR.into()),
            FileType::Fifo => {}
            // A device that cannot be polled must wait in its read, not fail with EAGAIN.
            _ => fcntl_setfl(&fd, fcntl_getfl(&fd)? - OFlags::NONBLOCK)?,
        }
        Self::with_name(fd, path.display().to_string())
    }

    /// Any open descriptor.
    ///
    /// # Errors
    ///
    /// When the runtime cannot wait for it.
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime.
    pub(crate) fn new(fd: OwnedFd) -> io::Result<Self> {
        Self::with_name(fd, "the input".into())
    }

    /// What it is, for messages: `standard input`, or the path.
    pub(crate) fn describe(&self) -> &str {
        &self.name
    }

    /// Returns true if the source is a regular file, whose end is never the death of a writer.
    pub(crate) fn is_regular_file(&self) -> bool {
        matches!(file_type(self.as_fd()), Ok(FileType::RegularFile))
    }

    fn with_name(fd: OwnedFd, name: String) -> io::Result<Self> {
        enlarge_pipe(fd.as_fd());
        let kind = match register(fd, Interest::READABLE)? {
            Registered::Always(fd) => {
                // Doubles the read-ahead; whoever knows no read-ahead refuses, and that is fine.
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
    /// One read(2), straight into `buf`.
    ///
    /// # Cancel safety
    ///
    /// Bytes are either in `buf` or still in the descriptor.
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
        // Forgets only the readiness that was seen above: what came since then still wakes us.
        guard.clear_ready();
        if hung_up {
            register_anew(fd, Interest::READABLE)?;
        }
    }
}

/// Reads once. Memory that `buf` knows to be initialised (the slots of a stream, any `&mut [u8]`)
/// is not cleared first.
fn read(fd: BorrowedFd<'_>, buf: &mut ReadBuf<'_>) -> rustix::io::Result<()> {
    let count = retry_on_intr(|| rustix::io::read(fd, buf.initialize_unfilled()))?;
    buf.advance(count);
    Ok(())
}
