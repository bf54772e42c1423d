//! The two directions of a local socket, TCP or UNIX.
//!
//! A socket is reset unless both of its directions have ended in order, also if this process is killed: the
//! programs at its other end never take a broken tunnel for an end of file. UNIX sockets have no reset.
//!
//! A reset drops the bytes that the kernel of the program has not acknowledged, so both directions tell whether there
//! are any.

#![allow(unsafe_code)]

use std::{
    io,
    os::fd::AsFd,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use rustix::ioctl::{Getter, Opcode, ioctl};
use socket2::SockRef;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpStream, UnixStream, tcp, unix},
    runtime::Handle,
};

#[derive(Debug)]
pub(crate) enum LocalSocket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// The direction of a socket from the local program into the tunnel.
#[derive(Debug)]
pub(super) struct SocketReader {
    half: ReadSide,
    ends: Arc<SocketEnds>,
}

/// The direction of a socket from the tunnel to the local program.
#[derive(Debug)]
pub(super) struct SocketWriter {
    half: Option<WriteSide>,
    ends: Arc<SocketEnds>,
}

#[derive(Debug)]
enum ReadSide {
    Tcp(tcp::OwnedReadHalf),
    Unix(unix::OwnedReadHalf),
}

#[derive(Debug)]
enum WriteSide {
    Tcp(tcp::OwnedWriteHalf),
    Unix(unix::OwnedWriteHalf),
}

/// Which directions of a socket have ended in order.
#[derive(Debug, Default)]
struct SocketEnds {
    one: AtomicBool,
}

/// From here on the connection is reset when it is dropped.
impl From<TcpStream> for LocalSocket {
    fn from(socket: TcpStream) -> Self {
        // A socket that refuses an option works without it.
        let _ = socket.set_nodelay(true);
        let _ = SockRef::from(&socket).set_keepalive(true);
        let _ = SockRef::from(&socket).set_linger(Some(Duration::ZERO));
        Self::Tcp(socket)
    }
}

impl LocalSocket {
    /// Returns the socket as one whose readiness this runtime reports: that of the thread which reads and writes it.
    /// Fails if the system does not take the socket off one runtime, or to the other. It is then closed.
    pub(super) fn moved_to(self, runtime: &Handle) -> io::Result<Self> {
        let _inside = runtime.enter();
        Ok(match self {
            Self::Tcp(socket) => Self::Tcp(TcpStream::from_std(socket.into_std()?)?),
            Self::Unix(socket) => Self::Unix(UnixStream::from_std(socket.into_std()?)?),
        })
    }

    pub(super) fn into_directions(self) -> (SocketReader, SocketWriter) {
        let (read, write) = match self {
            Self::Tcp(socket) => {
                let (read, write) = socket.into_split();
                (ReadSide::Tcp(read), WriteSide::Tcp(write))
            }
            Self::Unix(socket) => {
                let (read, write) = socket.into_split();
                (ReadSide::Unix(read), WriteSide::Unix(write))
            }
        };
        let ends = Arc::<SocketEnds>::default();
        let reader = SocketReader {
            half: read,
            ends: Arc::clone(&ends),
        };
        let half = Some(write);
        (reader, SocketWriter { half, ends })
    }
}

impl SocketEnds {
    /// Records the end of one direction. Returns true if the other one has ended before.
    fn end(&self) -> bool {
        self.one.swap(true, Ordering::Relaxed)
    }
}

impl SocketReader {
    /// Reads bytes of the local program. No bytes are its end.
    pub(super) fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match &mut self.half {
            ReadSide::Tcp(half) => Pin::new(half).poll_read(cx, buf),
            ReadSide::Unix(half) => Pin::new(half).poll_read(cx, buf),
        }
    }

    /// Returns true if the local program has reset the connection. It is told once.
    pub(super) fn is_reset(&self) -> bool {
        let error = match &self.half {
            ReadSide::Tcp(half) => half.as_ref().take_error(),
            ReadSide::Unix(half) => half.as_ref().take_error(),
        };
        !matches!(error, Ok(None))
    }

    /// Returns true if a reset would be too early: the other direction has bytes for the program, or the program's
    /// kernel has not acknowledged all of them.
    pub(super) fn is_awaited(&self) -> bool {
        // The other direction holds its share until it is dropped or has ended.
        Arc::strong_count(&self.ends) > 1 || self.unsent() > 0
    }

    /// Returns the number of bytes that the program's kernel has not acknowledged.
    pub(super) fn unsent(&self) -> usize {
        match &self.half {
            ReadSide::Tcp(half) => unsent(half.as_ref()),
            ReadSide::Unix(_) => 0,
        }
    }

    /// Ends the direction in order, after [`poll_read`](Self::poll_read) has returned no bytes.
    pub(super) fn finish(self) {
        if let (true, ReadSide::Tcp(half)) = (self.ends.end(), &self.half) {
            close_in_order(half.as_ref());
        }
    }
}

impl SocketWriter {
    /// Writes bytes to the local program.
    pub(super) fn poll_write(
        &mut self,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match &mut self.half {
            Some(WriteSide::Tcp(half)) => Pin::new(half).poll_write(cx, bytes),
            Some(WriteSide::Unix(half)) => Pin::new(half).poll_write(cx, bytes),
            None => Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())),
        }
    }

    /// Returns the number of bytes that the program's kernel has not acknowledged. What a UNIX socket has taken, the
    /// program can read.
    pub(super) fn unsent(&self) -> usize {
        match &self.half {
            Some(WriteSide::Tcp(half)) => unsent(half.as_ref()),
            Some(WriteSide::Unix(_)) | None => 0,
        }
    }

    /// Ends the direction in order: the local program reads its end.
    pub(super) fn finish(mut self) {
        let Some(half) = self.half.take() else {
            return;
        };
        if let (true, WriteSide::Tcp(half)) = (self.ends.end(), &half) {
            close_in_order(half.as_ref());
        }
        // Dropping the half shuts the direction down.
    }
}

impl Drop for SocketWriter {
    fn drop(&mut self) {
        // Without this the program would read an end before the reset.
        match self.half.take() {
            Some(WriteSide::Tcp(half)) => half.forget(),
            Some(WriteSide::Unix(half)) => half.forget(),
            None => {}
        }
    }
}

/// Lets the kernel deliver what it has when the socket is closed.
pub(super) fn close_in_order(socket: &TcpStream) {
    let _ = SockRef::from(socket).set_linger(None);
}

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
