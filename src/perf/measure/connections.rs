//! How the two ends of a task connect: streams of this crate, and TCP sockets without its protocol.

use std::{
    io::{self, Read, Write},
    net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs},
    os::fd::AsFd,
    sync::Arc,
    time::{Duration, Instant},
};

use aws_lc_rs::digest::{Context, SHA256};
use futures::future::try_join_all;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use socket2::{Domain, Socket, Type};
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;

use crate::{
    Direction, Error, Key, KeyAcceptor, Listener, Stream, StreamConfig,
    carry::CarryThread,
    perf::messages::TaskFault,
    ssh::edge::{EdgePlan, about_peer},
};

/// A stream of a task, and the thread whose runtime it belongs to.
pub(super) type PlacedStream = (CarryThread, Stream);

/// The streams of a task before they are connected, at one of its ends. Each has a key of its own, so that all of them
/// use one port, and each end knows which stream is which.
pub(super) enum PendingStreams {
    /// This end listens.
    Listen {
        /// Listens for all streams.
        listener: Arc<Listener>,
        /// Accepts each of the streams.
        acceptors: Vec<StreamAcceptor>,
        /// The name of the other end in messages.
        peer: String,
    },
    Dial {
        streams: Vec<(CarryThread, EdgePlan)>,
        addresses: Vec<String>,
        port: u16,
    },
}

/// Accepts one stream of a task. Its thread owns the stream.
pub(super) struct StreamAcceptor {
    thread: CarryThread,
    key_acceptor: KeyAcceptor,
}

/// What both ends of a task know about its streams.
pub(super) struct StreamTerms {
    pub(super) key: Key,
    /// The name of the other end in messages.
    pub(super) peer: String,
    pub(super) config: StreamConfig,
    /// The first and the last port to listen on; none is any port.
    pub(super) ports: Option<(u16, u16)>,
    /// The number of streams.
    pub(super) count: usize,
}

impl StreamTerms {
    fn plan(&self, index: usize) -> EdgePlan {
        EdgePlan {
            key: derived_key(&self.key, index),
            peer: self.peer.clone(),
            config: self.config.clone(),
            ports: self.ports,
        }
    }

    /// Listens for all streams. A port for the other end is open when the call returns.
    /// Cancel safe: dropping the future closes the port.
    pub(super) async fn listen(&self) -> Result<PendingStreams, TaskFault> {
        // The streams have other keys: the listener's own key opens nothing.
        let unused = EdgePlan {
            key: derived_key(&self.key, usize::MAX),
            ..self.plan(0)
        };
        let listener = Arc::new(unused.listen().await?);
        let mut acceptors = Vec::with_capacity(self.count);
        for index in 0..self.count {
            let thread = start_thread()?;
            let EdgePlan { key, config, .. } = self.plan(index);
            let of = Arc::clone(&listener);
            let expecting = async move { of.accept_key(key, config, Handle::current(), None) };
            let key_acceptor = thread.run(expecting).await;
            let key_acceptor = key_acceptor.ok_or_else(|| "a key was made twice".to_owned())?;
            acceptors.push(StreamAcceptor {
                thread,
                key_acceptor,
            });
        }
        Ok(PendingStreams::Listen {
            listener,
            acceptors,
            peer: self.peer.clone(),
        })
    }

    pub(super) fn dial(
        &self,
        addresses: Vec<String>,
        port: u16,
    ) -> Result<PendingStreams, TaskFault> {
        let streams = (0..self.count).map(|index| Ok((start_thread()?, self.plan(index))));
        Ok(PendingStreams::Dial {
            streams: streams.collect::<Result<_, TaskFault>>()?,
            addresses,
            port,
        })
    }
}

impl PendingStreams {
    /// Returns the port for the other end, if this end listens.
    pub(super) fn port(&self) -> Option<u16> {
        match self {
            Self::Listen { listener, .. } => Some(listener.local_addr().port()),
            Self::Dial { .. } => None,
        }
    }

    /// Connects every stream once. The end that listens waits until the other end has dialed.
    /// Dropping the future closes the streams that it has connected.
    pub(super) async fn connect(&mut self) -> Result<Vec<PlacedStream>, TaskFault> {
        match self {
            Self::Listen {
                acceptors, peer, ..
            } => {
                let accepting = acceptors.iter_mut().map(|acceptor| acceptor.accept(peer));
                try_join_all(accepting).await
            }
            Self::Dial {
                streams,
                addresses,
                port,
            } => {
                let dialing = streams.iter().map(|(thread, plan)| {
                    dial(thread.clone(), plan.clone(), addresses.clone(), *port)
                });
                try_join_all(dialing).await
            }
        }
    }

    /// Connects the only stream of a task. Fails as [`connect`](Self::connect) does.
    pub(super) async fn connect_one(&mut self) -> Result<PlacedStream, TaskFault> {
        let mut streams = self.connect().await?;
        streams
            .pop()
            .ok_or_else(|| "the task has no stream".to_owned().into())
    }
}

impl StreamAcceptor {
    async fn accept(&mut self, peer: &str) -> Result<PlacedStream, TaskFault> {
        let accepted = self.key_acceptor.accept().await;
        let stream = accepted.map_err(|error| about_peer(error, peer).to_string())?;
        Ok((self.thread.clone(), stream))
    }
}

async fn dial(
    thread: CarryThread,
    plan: EdgePlan,
    addresses: Vec<String>,
    port: u16,
) -> Result<PlacedStream, TaskFault> {
    let dialing = async move { plan.dial(&addresses, port, false).await };
    match thread.run(dialing).await? {
        Ok(stream) => Ok((thread, stream)),
        Err(tried) => Err(TaskFault::unreachable(port, &tried)),
    }
}

/// Starts a thread for one stream, or one direction of a stream.
pub(super) fn start_thread() -> Result<CarryThread, TaskFault> {
    let started = CarryThread::start("measure");
    started.map_err(|error| format!("cannot start a thread: {error}").into())
}

fn derived_key(key: &Key, index: usize) -> Key {
    let index = u64::try_from(index).unwrap_or(u64::MAX).to_be_bytes();
    Key::from_secret(&sha256(&[b"rdperf stream", key.secret(), &index]))
}

pub(super) fn broken(error: &io::Error, peer: &str) -> TaskFault {
    match Error::from_io(error) {
        Some(error) => about_peer(error.clone(), peer).to_string().into(),
        None => format!("the stream to {peer}: {error}").into(),
    }
}

/// Returns the settings of a stream on which two ends exchange short messages about a measurement.
pub(super) fn control_settings(config: StreamConfig) -> StreamConfig {
    StreamConfig {
        chunk_bytes: 64 << 10,
        depth: 4,
        transport: crate::TransportPolicy::Tcp,
        direction: Direction::Both,
        ..config
    }
}

/// How long one address is tried.
const CONNECT_LIMIT: Duration = Duration::from_secs(3);

/// How often an end that waits for a connection looks whether its task was cancelled, in milliseconds.
const LOOK_MILLIS: u32 = 100;

/// The time for a connection to prove the key.
const PROOF_LIMIT: Duration = Duration::from_secs(3);

const PROOF_BYTES: usize = 32;

/// The connections that wait to be accepted: more than a task has.
const BACKLOG: i32 = 128;

/// The sockets of a task before they are connected, at one of its ends.
pub(super) enum PendingSockets {
    /// This end listens.
    Listen(TcpListener),
    Dial {
        addresses: Vec<String>,
        port: u16,
    },
}

/// What both ends of a task know about its sockets.
pub(super) struct SocketTerms {
    /// Only the two ends have it.
    pub(super) key: Key,
    /// The name of the other end in messages.
    pub(super) peer: String,
    /// The time after which a silent connection counts as lost.
    pub(super) silence: Duration,
    /// The number of connections.
    pub(super) count: usize,
    /// Ends the wait for a connection.
    pub(super) cancelled: CancellationToken,
}

/// Listens on the first free port of the range, or on any port.
pub(super) fn listen_sockets(ports: Option<(u16, u16)>) -> Result<PendingSockets, TaskFault> {
    let (first, last) = ports.unwrap_or((0, 0));
    let mut opened = listen_on(first);
    for port in first..last {
        if opened.is_ok() {
            break;
        }
        opened = listen_on(port + 1);
    }
    match opened {
        Ok(listener) => Ok(PendingSockets::Listen(listener)),
        Err(error) => Err(format!("cannot listen: {error}; see -p").into()),
    }
}

/// Listens on a port of every address of this host.
fn listen_on(port: u16) -> io::Result<TcpListener> {
    let v6 = || -> io::Result<TcpListener> {
        let socket = Socket::new(Domain::IPV6, Type::STREAM, None)?;
        // IPv4 peers connect to it as well.
        socket.set_only_v6(false)?;
        socket.set_reuse_address(true)?;
        let address = SocketAddr::from((Ipv6Addr::UNSPECIFIED, port));
        socket.bind(&address.into())?;
        socket.listen(BACKLOG)?;
        Ok(socket.into())
    };
    match v6() {
        Err(error) if error.kind() != io::ErrorKind::AddrInUse => {
            TcpListener::bind((Ipv4Addr::UNSPECIFIED, port))
        }
        opened => opened,
    }
}

impl PendingSockets {
    /// Returns the port for the other end, if this end listens.
    pub(super) fn port(&self) -> Option<u16> {
        match self {
            Self::Listen(listener) => listener.local_addr().ok().map(|address| address.port()),
            Self::Dial { .. } => None,
        }
    }

    /// Connects all sockets. Blocks until the other end has dialed.
    pub(super) fn connect(&self, terms: &SocketTerms) -> Result<Vec<TcpStream>, TaskFault> {
        let one = || match self {
            Self::Listen(listener) => accept_socket(listener, terms),
            Self::Dial { addresses, port } => dial_sockets(addresses, *port, terms),
        };
        (0..terms.count).map(|_| one()).collect()
    }
}

fn accept_socket(listener: &TcpListener, terms: &SocketTerms) -> Result<TcpStream, TaskFault> {
    loop {
        if terms.cancelled.is_cancelled() {
            return Err("the measurement was cancelled".to_owned().into());
        }
        if !is_readable(listener).map_err(|error| terms.broken(&error))? {
            continue;
        }
        let (mut socket, _) = listener.accept().map_err(|error| terms.broken(&error))?;
        // A stranger is left out.
        if matches!(receive_proof(&mut socket, &terms.key), Ok(true)) {
            return terms.prepared(socket);
        }
    }
}

/// Waits a moment for a connection. Returns true if one waits to be accepted.
fn is_readable(listener: &TcpListener) -> io::Result<bool> {
    let mut waiting = [PollFd::from_borrowed_fd(listener.as_fd(), PollFlags::IN)];
    let limit = Timespec {
        tv_sec: 0,
        tv_nsec: i64::from(LOOK_MILLIS) * 1_000_000,
    };
    Ok(poll(&mut waiting, Some(&limit))? > 0)
}

fn dial_sockets(
    addresses: &[String],
    port: u16,
    terms: &SocketTerms,
) -> Result<TcpStream, TaskFault> {
    let mut tried = Vec::new();
    for address in addresses {
        match dial_socket(address, port, &terms.key) {
            Ok(socket) => return terms.prepared(socket),
            Err(error) => tried.push((address.clone(), error.to_string())),
        }
    }
    Err(TaskFault::unreachable(port, &tried))
}

fn dial_socket(address: &str, port: u16, key: &Key) -> io::Result<TcpStream> {
    let address = (address, port).to_socket_addrs()?.next();
    let address = address.ok_or_else(|| io::Error::other("the name has no address"))?;
    let mut socket = TcpStream::connect_timeout(&address, CONNECT_LIMIT)?;
    socket.set_read_timeout(Some(PROOF_LIMIT))?;
    socket.write_all(&proof(key, "dialer"))?;
    let mut shown = [0; PROOF_BYTES];
    socket.read_exact(&mut shown)?;
    if is_same(&shown, &proof(key, "listener")) {
        Ok(socket)
    } else {
        Err(io::Error::other("another program listens there"))
    }
}

/// Receives the dialer's proof, and answers with that of the listener. Returns true if the proof is right.
fn receive_proof(socket: &mut TcpStream, key: &Key) -> io::Result<bool> {
    socket.set_read_timeout(Some(PROOF_LIMIT))?;
    let mut shown = [0; PROOF_BYTES];
    let limit = Instant::now() + PROOF_LIMIT;
    let mut filled = 0;
    // A stranger that sends a byte a second must not hold up the other end.
    while filled < PROOF_BYTES {
        match socket.read(&mut shown[filled..])? {
            0 => return Ok(false),
            count => filled += count,
        }
        if Instant::now() > limit {
            return Ok(false);
        }
    }
    let is_right = is_same(&shown, &proof(key, "dialer"));
    if is_right {
        socket.write_all(&proof(key, "listener"))?;
    }
    Ok(is_right)
}

/// Returns what one end sends to prove that it has the key.
fn proof(key: &Key, end: &str) -> [u8; PROOF_BYTES] {
    sha256(&[b"rdperf socket", end.as_bytes(), key.secret()])
}

/// Returns the digest of `parts`, one after the other.
fn sha256(parts: &[&[u8]]) -> [u8; 32] {
    let mut digest = Context::new(&SHA256);
    for part in parts {
        digest.update(part);
    }
    let mut bytes = [0; 32];
    bytes.copy_from_slice(digest.finish().as_ref());
    bytes
}

/// Compares two proofs. Takes the same time for every wrong proof.
fn is_same(one: &[u8; PROOF_BYTES], other: &[u8; PROOF_BYTES]) -> bool {
    let pairs = one.iter().zip(other);
    pairs.fold(0, |differing, (a, b)| differing | (a ^ b)) == 0
}

impl SocketTerms {
    pub(super) fn broken(&self, error: &io::Error) -> TaskFault {
        let peer = &self.peer;
        match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
                let silence = self.silence;
                format!("{peer} was silent for {silence:.0?}").into()
            }
            io::ErrorKind::UnexpectedEof => format!("{peer} ended the connection early").into(),
            _ => format!("the connection to {peer}: {error}").into(),
        }
    }

    fn prepared(&self, socket: TcpStream) -> Result<TcpStream, TaskFault> {
        let prepare = || {
            socket.set_nodelay(true)?;
            socket.set_read_timeout(Some(self.silence))?;
            socket.set_write_timeout(Some(self.silence))
        };
        prepare().map_err(|error| self.broken(&error))?;
        Ok(socket)
    }
}
