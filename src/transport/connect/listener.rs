//! The listener: accepts connections, and makes streams of those that prove that they have the key.

use std::{
    collections::{HashMap, VecDeque},
    io,
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::{
    io::AsyncReadExt,
    net::{TcpListener, TcpStream},
    runtime::Handle,
    sync::{mpsc, oneshot},
    task::AbortHandle,
    time::{sleep, timeout},
};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::{
    handshake,
    negotiate::{self, Negotiated},
    preamble::{PREAMBLE_BYTES, Preamble, PreambleKind},
};
use crate::{
    Error, HandshakeFault, Key, StreamConfig,
    transport::{
        control::message::Token, data::frame::PROTOCOL_VERSION, rdma, stream::stream::Stream,
    },
};

/// The most connections that may be in a handshake at once. One more closes the oldest of them. A peer with the key needs
/// a few milliseconds, so it is never the oldest, and many silent connections cannot keep it out.
const MAX_UNAUTHENTICATED: usize = 128;

/// The most streams that wait for [`Listener::accept`].
const BACKLOG: usize = 16;

/// The pause after the system could not accept a connection, most often because no descriptor is free.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Accepts streams from peers that have the key.
///
/// Connections are served concurrently in the background. A connection that sends a wrong key or garbage, or is silent,
/// is closed without an error. A failure with a peer that has proved that it has the key is reported by
/// [`accept`](Self::accept).
pub struct Listener {
    address: SocketAddr,
    config: StreamConfig,
    arrivals: mpsc::Receiver<Result<Negotiated, Error>>,
    _stop: DropGuard,
}

impl Listener {
    /// Listens on `address`. Port 0 takes a free port, which [`local_addr`](Self::local_addr) returns. The unspecified
    /// IPv6 address also accepts IPv4 peers.
    ///
    /// # Errors
    ///
    /// [`Error::Listen`], or [`Error::Device`] if `config` requires RDMA and this host cannot use it.
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime.
    pub fn bind(address: SocketAddr, key: Key, config: StreamConfig) -> Result<Self, Error> {
        let failed = |source| Error::Listen {
            address: address.to_string(),
            source: Arc::new(source),
        };
        rdma::LocalPorts::check(&config)?;
        let streams = Handle::current();
        let runtime = config.control_runtime.clone();
        let runtime = runtime.unwrap_or_else(|| streams.clone());
        let socket = {
            let _context = runtime.enter();
            listen(address).map_err(failed)?
        };
        let local = socket.local_addr().map_err(failed)?;
        let (sender, arrivals) = mpsc::channel(BACKLOG);
        let closed = CancellationToken::new();
        let acceptor = Arc::new(Acceptor {
            key,
            config: config.clone(),
            streams,
            unauthenticated: Mutex::default(),
            expected: Mutex::default(),
            arrivals: sender,
            closed: closed.clone(),
        });
        runtime.spawn(
            closed
                .clone()
                .run_until_cancelled_owned(acceptor.answer(socket)),
        );
        Ok(Self {
            address: local,
            config,
            arrivals,
            _stop: closed.drop_guard(),
        })
    }

    /// Returns the address of the listener.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// Accepts the next stream from a peer that has the key.
    ///
    /// # Errors
    ///
    /// The reason why a stream with such a peer failed. The listener continues.
    ///
    /// # Cancel safety
    ///
    /// Safe: a stream that was not returned is returned by the next call.
    pub async fn accept(&mut self) -> Result<Stream, Error> {
        let arrival = self.arrivals.recv().await;
        let closed = || {
            let source = Arc::new(io::Error::other("its runtime has ended"));
            Err(Error::Listen {
                address: self.address.to_string(),
                source,
            })
        };
        Stream::start(arrival.unwrap_or_else(closed)?, &self.config)
    }
}

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    use socket2::{Domain, Socket, Type};
    let socket = Socket::new(
        Domain::for_address(address),
        Type::STREAM.nonblocking(),
        None,
    )?;
    socket.set_reuse_address(true)?;
    if address.is_ipv6() {
        socket.set_only_v6(!address.ip().is_unspecified())?;
    }
    socket.bind(&address.into())?;
    // Deep enough for the connections that arrive within the time of one accept.
    socket.listen(1024)?;
    TcpListener::from_std(socket.into())
}

/// What the background tasks of a listener share.
struct Acceptor {
    key: Key,
    config: StreamConfig,
    /// The runtime in which streams are used and their data paths are made: a queue pair belongs to the runtime in which
    /// it is made.
    streams: Handle,
    unauthenticated: Mutex<Unauthenticated>,
    /// The streams that wait for their data connection, by its token.
    expected: Mutex<HashMap<[u8; 32], oneshot::Sender<TcpStream>>>,
    arrivals: mpsc::Sender<Result<Negotiated, Error>>,
    closed: CancellationToken,
}

impl Acceptor {
    async fn answer(self: Arc<Self>, socket: TcpListener) {
        loop {
            match socket.accept().await {
                Ok((peer, address)) => self.admit(peer, address),
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    fn admit(self: &Arc<Self>, socket: TcpStream, address: SocketAddr) {
        let acceptor = Arc::clone(self);
        let mut unauthenticated = lock(&self.unauthenticated);
        let number = unauthenticated.next_number();
        let serving = async move {
            let permit = HandshakePermit {
                acceptor: &acceptor,
                number,
            };
            if let Err(fault) = acceptor.serve(socket, permit).await {
                tracing::debug!(%address, %fault, "a connection without the key");
            }
        };
        let task = tokio::spawn(self.closed.clone().run_until_cancelled_owned(serving));
        let pushed_out = unauthenticated.admit(number, task.abort_handle());
        drop(unauthenticated);
        if let Some(oldest) = pushed_out {
            oldest.abort();
        }
    }

    /// Serves one connection until it is a stream, or the data connection of a stream, or fails.
    async fn serve(
        self: &Arc<Self>,
        mut socket: TcpStream,
        permit: HandshakePermit<'_>,
    ) -> Result<(), HandshakeFault> {
        let limit = self.config.handshake_timeout;
        let authenticating = async {
            socket.set_nodelay(true)?;
            let mut preamble = [0; PREAMBLE_BYTES];
            socket.read_exact(&mut preamble).await?;
            match Preamble::decode(preamble) {
                None => Err(HandshakeFault::NotRdpipe(
                    "its first bytes are another protocol's",
                )),
                Some(Preamble {
                    version: PROTOCOL_VERSION,
                    kind: Some(PreambleKind::Data),
                }) => {
                    self.take_data(socket).await?;
                    Ok(None)
                }
                // Boxed, so that a silent connection costs a socket and a few hundred bytes, and not the memory of a
                // whole handshake.
                Some(_) => Box::pin(handshake::authenticate(socket, preamble, &self.key))
                    .await
                    .map(Some),
            }
        };
        let authenticated = timeout(limit, authenticating).await;
        // The peer has the key: from here on no other connection closes this one.
        drop(permit);
        let Some(peer) = authenticated.map_err(|_| HandshakeFault::Timeout(limit))?? else {
            return Ok(());
        };
        let acceptor = Arc::clone(self);
        let welcome = async move {
            negotiate::accept(peer, &acceptor.config, |token| acceptor.expect(token)).await
        };
        let welcome = self.closed.clone().run_until_cancelled_owned(welcome);
        let Ok(Some(arrival)) = self.streams.spawn(welcome).await else {
            // The listener or its runtime has been dropped.
            return Ok(());
        };
        let _ = self.arrivals.send(arrival).await;
        Ok(())
    }

    /// Hands a data connection to the stream whose token it presents.
    async fn take_data(&self, mut socket: TcpStream) -> Result<(), HandshakeFault> {
        let mut token = [0; 32];
        socket.read_exact(&mut token).await?;
        let stream = lock(&self.expected).remove(&token);
        let stream = stream.ok_or(HandshakeFault::Protocol("an unknown token"))?;
        let _ = stream.send(socket);
        Ok(())
    }

    /// Waits for the data connection that presents `token`. A token is good for one connection.
    fn expect(&self, token: Token) -> impl Future<Output = Option<TcpStream>> + use<'_> {
        let (sender, receiver) = oneshot::channel();
        lock(&self.expected).insert(token.0, sender);
        let guard = TokenGuard {
            acceptor: self,
            token,
        };
        async move {
            let data = receiver.await.ok();
            drop(guard);
            data
        }
    }
}

/// Removes a token when its stream does not wait for a data connection any more.
struct TokenGuard<'a> {
    acceptor: &'a Acceptor,
    token: Token,
}

impl Drop for TokenGuard<'_> {
    fn drop(&mut self) {
        lock(&self.acceptor.expected).remove(&self.token.0);
    }
}

/// The connections that have not proved that they have the key, the oldest first.
#[derive(Default)]
struct Unauthenticated {
    numbers: u64,
    waiting: VecDeque<(u64, AbortHandle)>,
}

impl Unauthenticated {
    fn next_number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    /// Adds a connection, and returns the oldest if there are too many.
    fn admit(&mut self, number: u64, task: AbortHandle) -> Option<AbortHandle> {
        self.waiting.push_back((number, task));
        if self.waiting.len() <= MAX_UNAUTHENTICATED {
            return None;
        }
        self.waiting.pop_front().map(|(_, oldest)| oldest)
    }
}

/// The entry of a connection among the unauthenticated, removed when dropped.
struct HandshakePermit<'a> {
    acceptor: &'a Acceptor,
    number: u64,
}

impl Drop for HandshakePermit<'_> {
    fn drop(&mut self) {
        lock(&self.acceptor.unauthenticated)
            .waiting
            .retain(|(number, _)| *number != self.number);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
