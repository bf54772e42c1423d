//! The listener: accepts connections, and makes streams of those that prove that they have the key.
//!
//! How many connections it keeps before they are streams, and which of them it may push out, is in
//! [`admission`](super::admission).

use std::{io, net::SocketAddr, pin::pin, sync::Arc, task::Poll, time::Duration};

use futures::{StreamExt, poll};
use tokio::{
    net::{TcpListener, TcpStream},
    runtime::Handle,
    sync::{OwnedSemaphorePermit, Semaphore, mpsc},
    time::{sleep, timeout},
};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::{
    admission::{
        Limits, MAX_NEW, MAX_WAITING,
        data::ExpectedStreams,
        opening::{Opening, OpeningKind},
        proving::{Proving, ProvingPlace},
        strangers::{StrangerPlace, Strangers},
    },
    handshake::{self, Authenticated, closed},
    negotiate,
    preamble::{PREAMBLE_BYTES, PreambleKind},
};
use crate::{
    Error, HandshakeFault, Key, StreamConfig,
    transport::{
        control::noise::{self, HANDSHAKE_BYTES},
        data::frame::PROTOCOL_VERSION,
        rdma,
        stream::stream::Stream,
    },
};

/// The pause after the system could not accept a connection, most often because no descriptor is free.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// The connections that the kernel completes before they are accepted. A crowd that arrives at once waits here for its
/// turn; the kernel reduces the number to `net.core.somaxconn`, 4096 on Linux since 5.4. A connection beyond it is not
/// refused: its dialer repeats its packets after a second.
const KERNEL_BACKLOG: i32 = 4096;

/// Accepts streams from peers that have the key.
///
/// Connections are served concurrently in the background. A connection that sends a wrong key or garbage, is silent, or
/// breaks before it is a stream is closed without an error. Some streams wait for [`accept`](Self::accept) and are kept
/// alive; the dialers of more wait for their turn.
pub struct Listener {
    address: SocketAddr,
    arrivals: mpsc::UnboundedReceiver<Arrival>,
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
        let (sender, arrivals) = mpsc::unbounded_channel();
        let closed = CancellationToken::new();
        let limits = Limits::of_process();
        let acceptor = Arc::new(Acceptor {
            key,
            config,
            streams,
            new: Arc::new(Semaphore::new(MAX_NEW)),
            strangers: Strangers::new(limits.strangers),
            proving: Proving::new(limits.proving),
            waiting: Arc::new(Semaphore::new(MAX_WAITING)),
            expected: ExpectedStreams::default(),
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
    /// [`Direction`](HandshakeFault::Direction) or [`Transport`](HandshakeFault::Transport) in an [`Error::Handshake`], if
    /// a peer has the key and its settings and those of this listener exclude each other: trying again does not help. The
    /// listener continues. A handshake that breaks or times out is no error: its dialer may try again.
    ///
    /// [`Error::Listen`] if the runtime of the listener has ended.
    ///
    /// # Cancel safety
    ///
    /// Safe: a stream that was not returned is returned by the next call.
    pub async fn accept(&mut self) -> Result<Stream, Error> {
        let Some(arrival) = self.arrivals.recv().await else {
            let source = Arc::new(io::Error::other("its runtime has ended"));
            return Err(Error::Listen {
                address: self.address.to_string(),
                source,
            });
        };
        Ok(arrival.outcome?.granted())
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
    socket.listen(KERNEL_BACKLOG)?;
    TcpListener::from_std(socket.into())
}

/// A stream that waits for its program, or the reason why there is none.
struct Arrival {
    outcome: Result<Stream, Error>,
    /// The place among the streams that wait.
    _place: Option<OwnedSemaphorePermit>,
}

/// What the background tasks of a listener share.
struct Acceptor {
    key: Key,
    config: StreamConfig,
    /// The runtime in which streams are used and their data paths are made: a queue pair belongs to the runtime in which
    /// it is made.
    streams: Handle,
    /// The places of connections whose first bytes have not been looked at.
    new: Arc<Semaphore>,
    strangers: Arc<Strangers>,
    proving: Arc<Proving>,
    /// The places of streams that are being negotiated or wait for the program.
    waiting: Arc<Semaphore>,
    expected: ExpectedStreams,
    arrivals: mpsc::UnboundedSender<Arrival>,
    closed: CancellationToken,
}

impl Acceptor {
    async fn answer(self: Arc<Self>, socket: TcpListener) {
        loop {
            let turn = Arc::clone(&self.new).acquire_owned().await;
            match socket.accept().await {
                Ok((socket, address)) => {
                    let visitor = Visitor {
                        strangers: Arc::clone(&self.strangers),
                        address,
                        turn: turn.ok(),
                        place: None,
                    };
                    self.admit(socket, visitor);
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    self.strangers.push_out_half();
                    sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    fn admit(self: &Arc<Self>, socket: TcpStream, visitor: Visitor) {
        let acceptor = Arc::clone(self);
        let address = visitor.address;
        let serving = async move {
            if let Err(fault) = acceptor.serve(socket, visitor).await {
                tracing::debug!(%address, %fault, "a connection that is no stream");
            }
        };
        tokio::spawn(self.closed.clone().run_until_cancelled_owned(serving));
    }

    /// Serves one connection until it is a stream, or the data connection of a stream, or fails.
    async fn serve(
        self: &Arc<Self>,
        socket: TcpStream,
        visitor: Visitor,
    ) -> Result<(), HandshakeFault> {
        let limit = self.config.handshake_timeout;
        let authenticated = timeout(limit, self.authenticate(socket, visitor)).await;
        match authenticated.map_err(|_| HandshakeFault::Timeout(limit))?? {
            // Boxed like the steps before: a silent connection costs a socket and a few hundred bytes, and not the
            // memory of a whole handshake.
            Some((peer, place)) => Box::pin(self.make_stream(peer, place)).await,
            None => Ok(()),
        }
    }

    /// Reads the first bytes of a connection, and continues with what they ask for. Returns a peer that has the key;
    /// `None` for a data connection, which then belongs to its stream.
    async fn authenticate(
        &self,
        mut socket: TcpStream,
        mut visitor: Visitor,
    ) -> Result<Option<(Authenticated, ProvingPlace)>, HandshakeFault> {
        socket.set_nodelay(true)?;
        let mut opening = Opening::new();
        if !opening.read_arrived(&socket)? {
            visitor.wait(opening.read(&mut socket)).await??;
        }
        match opening.kind() {
            OpeningKind::Control(preamble, first) => {
                let proving = self.prove_key(socket, preamble, first, visitor);
                Box::pin(proving).await.map(Some)
            }
            OpeningKind::Data(label) => {
                let candidate = self.expected.candidate(label)?;
                drop(visitor);
                Box::pin(candidate.prove(socket)).await?;
                Ok(None)
            }
            OpeningKind::OtherVersion(theirs) => {
                let refusal = handshake::refuse(socket, PreambleKind::WrongVersion);
                visitor.wait(Box::pin(refusal)).await?;
                Err(HandshakeFault::Version {
                    ours: PROTOCOL_VERSION,
                    theirs,
                })
            }
            OpeningKind::Unknown => Err(HandshakeFault::Protocol("an unknown purpose")),
            OpeningKind::Foreign => Err(HandshakeFault::NotRdpipe(
                "its first bytes are another protocol's",
            )),
        }
    }

    /// Verifies the first message of a control connection, and lets the dialer show that it can go on.
    ///
    /// If too many connections are proving the key, this one stays a stranger until one of them has left.
    async fn prove_key(
        &self,
        socket: TcpStream,
        preamble: [u8; PREAMBLE_BYTES],
        first: [u8; HANDSHAKE_BYTES],
        mut visitor: Visitor,
    ) -> Result<(Authenticated, ProvingPlace), HandshakeFault> {
        let Ok(responder) = noise::respond(&self.key, &preamble, &first) else {
            let refusal = handshake::refuse(socket, PreambleKind::WrongKey);
            visitor.wait(Box::pin(refusal)).await?;
            return Err(HandshakeFault::Key);
        };
        let entering = self.proving.enter(first);
        let mut entering = pin!(entering.ok_or(HandshakeFault::Protocol("a recorded message"))?);
        let place = match poll!(entering.as_mut()) {
            Poll::Ready(place) => place,
            Poll::Pending => visitor.wait(entering).await?,
        };
        drop(visitor);
        let peer = handshake::answer(socket, responder).await?;
        Ok((peer, place))
    }

    /// Makes a stream with a peer that has the key, and keeps it for the program.
    async fn make_stream(
        self: &Arc<Self>,
        mut peer: Authenticated,
        proving: ProvingPlace,
    ) -> Result<(), HandshakeFault> {
        let limit = self.config.handshake_timeout;
        let waiting = timeout(limit, Arc::clone(&self.waiting).acquire_owned());
        let place = tokio::select! {
            biased;
            place = waiting => place.map_err(|_| HandshakeFault::Timeout(limit))?,
            // The dialer has nothing to send before its answer: it has given up.
            _ = peer.control.next() => return Err(closed()),
        };
        drop(proving);
        let acceptor = Arc::clone(self);
        let negotiating = async move {
            let config = &acceptor.config;
            let expect = |token| acceptor.expected.expect(token);
            let negotiated = negotiate::accept(peer, config, expect).await?;
            Stream::start(negotiated, config)
        };
        let negotiating = self.closed.clone().run_until_cancelled_owned(negotiating);
        let Ok(Some(outcome)) = self.streams.spawn(negotiating).await else {
            // The listener or its runtime has been dropped.
            return Ok(());
        };
        match outcome {
            Err(error) if !concerns_the_program(&error) => {
                tracing::debug!(%error, "a peer that has the key gets no stream");
            }
            outcome => {
                let _ = self.arrivals.send(Arrival {
                    outcome,
                    _place: place.ok(),
                });
            }
        }
        Ok(())
    }
}

/// Returns true for an error that every further attempt of the peer would meet too, until a program is started anew with
/// other settings. Any other failure ends one connection, and its dialer tries again or reports it.
fn concerns_the_program(error: &Error) -> bool {
    let Error::Handshake { fault, .. } = error else {
        return false;
    };
    matches!(
        fault,
        HandshakeFault::Direction(_) | HandshakeFault::Transport(_)
    )
}

/// A connection that has not shown that it has the key.
struct Visitor {
    strangers: Arc<Strangers>,
    address: SocketAddr,
    /// Its place among the new connections, until it has to wait.
    turn: Option<OwnedSemaphorePermit>,
    /// Its place among the strangers, once it has had to wait.
    place: Option<StrangerPlace>,
}

impl Visitor {
    /// Runs what takes time, as a stranger, which may be pushed out.
    async fn wait<T>(&mut self, work: impl Future<Output = T>) -> Result<T, HandshakeFault> {
        let ip = self.address.ip();
        let place = self.place.get_or_insert_with(|| self.strangers.enter(ip));
        self.turn = None;
        let pushed_out = HandshakeFault::Protocol("newer connections have pushed it out");
        place.unless_pushed_out(work).await.ok_or(pushed_out)
    }
}
