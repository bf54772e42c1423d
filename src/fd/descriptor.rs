//! File descriptors to read from and to write to.

use std::{
    fmt, io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    path::Path,
    pin::Pin,
    task::{Context, Poll, ready},
};

use rustix::{
    event::PollFlags,
    fs::{
        Advice, CWD, FileType, Mode, OFlags, fadvise, fcntl_getfl, fcntl_setfl, fstat, major,
        minor, openat,
    },
    io::{Errno, retry_on_intr},
    net::{SendFlags, send},
    termios::isatty,
};
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf, unix::AsyncFd};

use super::{
    PositionedReader, PositionedWriter, Registered, blocking, close, duplicate, enlarge_pipe,
    enlarge_unix_socket, file_type, is_ready, register, register_anew, sync,
};

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
    /// Fails if standard input is closed, or not open for reading.
    /// Panics outside a tokio runtime.
    pub(crate) fn stdin() -> io::Result<Self> {
        let name = "standard input";
        let fd = duplicate(io::stdin().as_fd(), OFlags::WRONLY)?;
        Self::with_name(fd, name.into())
    }

    /// Opens the file at `path`. A FIFO is opened at once, and is idle until a writer opens it.
    /// Fails as open(2) does, and with "Is a directory" for a directory.
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
    /// Fails if the runtime cannot register the descriptor.
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

    /// Returns a second source of the same descriptor, for the runtime of another thread.
    /// Panics outside a tokio runtime.
    pub(crate) fn duplicate(&self) -> io::Result<Self> {
        Self::with_name(self.as_fd().try_clone_to_owned()?, self.name.clone())
    }

    /// Returns the number of bytes from the next one to the end, if the source is a regular file.
    pub(crate) fn bytes_left(&self) -> Option<u64> {
        super::bytes_left(self.as_fd())
    }

    /// Returns a reader for several threads, from the next byte on; `None` unless the source is a regular file with at
    /// least so many bytes left.
    pub(crate) fn positioned(&self, least: u64) -> Option<PositionedReader> {
        PositionedReader::new(self.as_fd(), least)
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
    /// Cancel safe: bytes are either in `buf` or still in the descriptor.
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

/// The most bytes of one write(2) to a shared pipe, where a write may block: `PIPE_BUF`. A pipe that
/// is ready for writing has room for that many.
const SHARED_WRITE_BYTES: usize = 4096;

/// The output of a program: standard output, a file, or any other descriptor.
///
/// Regular files and devices that epoll refuses are written on the calling thread. A pipe or a
/// terminal is opened a second time, so that `O_NONBLOCK` can be set on a private open file
/// description; the one that is shared with other processes does not change.
pub(crate) struct Sink {
    name: String,
    kind: SinkKind,
}

enum SinkKind {
    /// Written without waiting, on the calling thread.
    Inline(OwnedFd),
    /// A pipe or terminal, non-blocking through a private open file description.
    Reopened(AsyncFd<OwnedFd>),
    /// An open file description that may be shared: written in small pieces, when poll(2) reports
    /// that there is room.
    Shared(AsyncFd<OwnedFd>),
    /// A socket, written with a flag on each call so that the call does not block.
    Socket(AsyncFd<OwnedFd>),
}

impl Sink {
    /// Opens standard output through a duplicate of its descriptor.
    /// Fails if standard output is closed, or not open for writing.
    /// Panics outside a tokio runtime.
    pub(crate) fn stdout() -> io::Result<Self> {
        let name = "standard output";
        // RDONLY is the number 0.
        let fd = duplicate(io::stdout().as_fd(), OFlags::RDONLY)?;
        Self::new(fd, name)
    }

    /// Makes a sink of an open descriptor; messages call it `name`.
    /// Fails if the runtime cannot register the descriptor.
    /// Panics outside a tokio runtime.
    pub(crate) fn new(fd: OwnedFd, name: impl Into<String>) -> io::Result<Self> {
        enlarge_pipe(fd.as_fd());
        let file_type = file_type(fd.as_fd())?;
        if file_type == FileType::Socket {
            enlarge_unix_socket(fd.as_fd());
        }
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

    /// Returns a second sink of the same descriptor, for the runtime of another thread.
    /// Panics outside a tokio runtime.
    pub(crate) fn duplicate(&self) -> io::Result<Self> {
        Self::new(self.as_fd().try_clone_to_owned()?, self.name.clone())
    }

    /// Returns the name of the sink for messages: `standard output`, or the path.
    pub(crate) fn describe(&self) -> &str {
        &self.name
    }

    /// Closes the descriptor. With `fsync`, calls fsync(2) first, if the file supports it.
    ///
    /// For standard output the duplicate is closed, which makes the file system report delayed
    /// errors; standard output itself stays open.
    /// Fails as fsync(2) and close(2) do. The descriptor is closed in any case.
    /// Not cancel safe: the descriptor is closed even if the future is dropped, and the result is lost.
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

    /// Returns a writer for several threads, from the next byte on; `None` unless the sink is `/dev/null` or a regular
    /// file that can be written at any place, and to which no message of this program goes.
    pub(crate) fn positioned(&self) -> Option<PositionedWriter> {
        PositionedWriter::new(self.as_fd(), io::stderr().as_fd())
    }

    /// Ends the registration with the runtime and returns the descriptor.
    pub(super) fn into_fd(self) -> OwnedFd {
        match self.kind {
            SinkKind::Inline(fd) => fd,
            SinkKind::Reopened(fd) | SinkKind::Shared(fd) | SinkKind::Socket(fd) => fd.into_inner(),
        }
    }

    /// Makes a sink of a pipe as [`new`](Self::new) does if the pipe cannot be opened a second time.
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
    /// Writes with one write(2), which may be short.
    /// Cancel safe: the sink keeps no bytes; the system has taken those that are counted.
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

    /// Always ready: the sink keeps no bytes.
    /// Cancel safe: the call does nothing.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    /// Always ready. [`Sink::close`] closes the descriptor.
    /// Cancel safe: the call does nothing.
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
        // Clears only the readiness that was seen above: a later event still wakes the task.
        guard.clear_ready();
        if hung_up {
            register_anew(fd, Interest::WRITABLE)?;
        }
    }
}

fn write(fd: BorrowedFd<'_>, buf: &[u8]) -> rustix::io::Result<usize> {
    retry_on_intr(|| rustix::io::write(fd, buf))
}

/// Writes as many bytes as can be written without blocking, or fails with `EAGAIN`.
fn write_shared(fd: BorrowedFd<'_>, buf: &[u8]) -> rustix::io::Result<usize> {
    if !is_ready(fd, PollFlags::OUT)? {
        return Err(Errno::AGAIN);
    }
    write(fd, &buf[..buf.len().min(SHARED_WRITE_BYTES)])
}

/// Opens a pipe or terminal a second time, non-blocking.
///
/// Returns `None` for other file types, and if the open fails: without `/proc`, without permission,
/// or for a FIFO that has no reader at the moment.
fn reopen(fd: BorrowedFd<'_>, file_type: FileType) -> io::Result<Option<OwnedFd>> {
    let terminal = file_type == FileType::CharacterDevice && isatty(fd) && !is_master(fd)?;
    if file_type != FileType::Fifo && !terminal {
        return Ok(None);
    }
    let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
    let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    Ok(retry_on_intr(|| openat(CWD, path.as_str(), flags, Mode::empty())).ok())
}

/// Returns true for the master side of a pseudo-terminal (`/dev/ptmx`, 5:2), because opening it
/// again would create another terminal.
fn is_master(fd: BorrowedFd<'_>) -> io::Result<bool> {
    let device = fstat(fd)?.st_rdev;
    Ok((major(device), minor(device)) == (5, 2))
}
