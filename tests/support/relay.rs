//! The place of a test's proxy: between a dialer and an acceptor, with a pair of sockets for each connection.

use std::{
    io,
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

/// The most bytes that a proxy forwards at once: less than any chunk, whose buffers some tests count.
pub(crate) const BUFFER_BYTES: usize = 16 << 10;

/// Which of a stream's two connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Connection {
    Control,
    Data,
}

/// Which way bytes travel. rdsend dials, rdrecv accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Towards {
    Acceptor,
    Dialer,
}

/// Accepts dialers and connects each of them with the acceptor, on a thread of its own. Dropping the relay shuts all of
/// its connections down.
pub(crate) struct Relay {
    address: SocketAddr,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    is_closed: AtomicBool,
    sockets: Mutex<Vec<TcpStream>>,
}

/// The sockets of one connection.
pub(crate) struct Sockets {
    pub(crate) dialer: TcpStream,
    pub(crate) acceptor: TcpStream,
}

impl Relay {
    /// Starts a relay to the acceptor that listens on `target`. `serve` forwards one connection, on a thread of its
    /// own.
    pub(crate) fn start(
        target: SocketAddr,
        serve: impl Fn(Connection, Sockets) + Send + Sync + 'static,
    ) -> Self {
        Self::start_at(([127, 0, 0, 1], 0).into(), target, serve)
    }

    /// Starts a relay at `address` to the acceptor that listens on `target`.
    pub(crate) fn start_at(
        address: SocketAddr,
        target: SocketAddr,
        serve: impl Fn(Connection, Sockets) + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind(address).expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        let shared = Arc::new(Shared::default());
        let (accepting, serve) = (Arc::clone(&shared), Arc::new(serve));
        thread::spawn(move || {
            for dialer in listener.incoming().flatten() {
                if accepting.is_closed.load(Ordering::SeqCst) {
                    return;
                }
                let Ok(acceptor) = TcpStream::connect(target) else {
                    continue;
                };
                let sockets = Sockets { dialer, acceptor };
                let (shared, serve) = (Arc::clone(&accepting), Arc::clone(&serve));
                thread::spawn(move || {
                    let connection = connection(&sockets.dialer);
                    if shared.keep(&sockets) {
                        serve(connection, sockets);
                    }
                });
            }
        });
        Self { address, shared }
    }

    /// Returns the port on which dialers are accepted.
    pub(crate) fn port(&self) -> u16 {
        self.address.port()
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        let mut sockets = self.shared.sockets();
        self.shared.is_closed.store(true, Ordering::SeqCst);
        for socket in sockets.drain(..) {
            let _ = socket.shutdown(Shutdown::Both);
        }
        // The accepting thread checks whether the relay has ended when a connection arrives.
        let _ = TcpStream::connect(self.address);
    }
}

impl Shared {
    fn sockets(&self) -> MutexGuard<'_, Vec<TcpStream>> {
        self.sockets.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps both sockets for the end of the relay. Returns false if it has ended.
    fn keep(&self, both: &Sockets) -> bool {
        let mut sockets = self.sockets();
        let is_open = !self.is_closed.load(Ordering::SeqCst);
        if is_open {
            for socket in [&both.dialer, &both.acceptor] {
                socket.set_nodelay(true).expect("a socket");
                sockets.push(copy(socket));
            }
        }
        is_open
    }
}

impl Sockets {
    /// Returns other descriptors of the same sockets.
    pub(crate) fn copies(&self) -> Self {
        let (dialer, acceptor) = (copy(&self.dialer), copy(&self.acceptor));
        Self { dialer, acceptor }
    }

    /// Returns the socket that bytes come from, and the one they go to.
    pub(crate) fn ends(&self, towards: Towards) -> (&TcpStream, &TcpStream) {
        match towards {
            Towards::Acceptor => (&self.dialer, &self.acceptor),
            Towards::Dialer => (&self.acceptor, &self.dialer),
        }
    }
}

/// Ends one direction of a connection as its bytes ended. An end passes on as an end, so that the last messages in the
/// other direction still arrive; an error closes both sides.
pub(crate) fn pass_end(outcome: &io::Result<()>, from: &TcpStream, to: &TcpStream) {
    if outcome.is_ok() {
        let _ = to.shutdown(Shutdown::Write);
    } else {
        let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
    }
}

fn copy(socket: &TcpStream) -> TcpStream {
    socket.try_clone().expect("a socket")
}

/// Reads what a connection is for, and leaves the bytes in the socket.
fn connection(dialer: &TcpStream) -> Connection {
    // "RDPIPE", the version, and what the connection is for.
    let mut preamble = [0; 8];
    while dialer
        .peek(&mut preamble)
        .is_ok_and(|count| (1..8).contains(&count))
    {
        thread::yield_now();
    }
    match preamble[7] {
        b'D' => Connection::Data,
        _ => Connection::Control,
    }
}
