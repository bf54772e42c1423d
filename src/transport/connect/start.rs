//! The start of a stream: makes the halves of a negotiated stream, and starts its tasks.

#[cfg(any(test, fuzzing))]
use std::net::Ipv4Addr;
use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use futures::task::AtomicWaker;
use socket2::{SockRef, TcpKeepalive};
use tokio::{net::TcpStream, runtime::Handle};
use tokio_util::{codec::Framed, task::TaskTracker};
use tracing::{Instrument, Span};

use super::handshake::{DataCarrier, Negotiated};
use crate::{
    Error, StreamConfig,
    config::LONGEST_LIMIT,
    faults, threads,
    threads::CarryThread,
    transport::{
        control::{
            connection::{self, Control, Timing},
            message::Agreement,
            network_watch,
            seal::{StreamSeal, Way},
            state::{RailState, State},
        },
        data::{
            frame::Chain,
            frame_sender::{SendPart, SharedSender},
            handover::{ReceiveHandover, SendHandover},
            pace::Pace,
            receive::{ReceivePart, RecvHalf, SharedReceiver},
            send::SendHalf,
            slots::{DataPath, ReceivePath, SendPath},
            steward::{self, Shared},
            tcp::{Tcp, TcpArrivals, TcpConnections, TcpReceive, TcpSend},
        },
        rdma::{self, Rdma},
        stream::{
            Either, Rail, ReadHalf, RecvEither, SendEither, Stream, WriteHalf,
            info::{StreamInfo, Transport},
        },
    },
};

impl Stream {
    /// Makes the halves, and starts the tasks. The peer gets no slots before
    /// [`granted`](Self::granted), so no data arrives for a stream that waits for its program.
    /// `live` counts the stream until it has ended.
    pub(crate) fn start(
        negotiated: Negotiated,
        config: &StreamConfig,
        live: Option<&TaskTracker>,
    ) -> Result<Self, Error> {
        let Negotiated {
            control,
            networks,
            data,
            agreement,
            seal,
            key_id,
            peer,
        } = negotiated;
        let io_failed = |source: io::Error| Error::Handshake {
            peer: peer.clone(),
            fault: crate::HandshakeFault::Broken(Arc::new(source)),
        };
        let timeout = config.timeout.min(LONGEST_LIMIT);
        let socket = control.get_ref();
        let peer_addr = canonical(socket.peer_addr().map_err(io_failed)?);
        let local_addr = canonical(socket.local_addr().map_err(io_failed)?);
        let control_runtime = config.control_runtime.clone();
        let control_runtime = control_runtime.unwrap_or_else(Handle::current);
        let control = move_control(control, &control_runtime).map_err(io_failed)?;
        let (rails, rail_connections) = match &data {
            DataCarrier::Tcp { rails, .. } => {
                let connections = rails.iter().map(Vec::len).min();
                (rails.len(), connections.unwrap_or(1))
            }
            DataCarrier::Rdma(links) => (links.len(), 0),
        };
        let state = State::with_rails(peer.clone(), agreement.direction, 2, rails);
        state.set_on_drop(config.on_drop);
        let watching = watch_networks(
            networks.watches,
            rail_connections,
            &state,
            timeout.min(agreement.peer_timeout),
            config,
        );
        watching.map_err(io_failed)?;
        let reserve = moved_to(&control_runtime, networks.reserve).map_err(io_failed)?;
        let span = tracing::debug_span!(
            "stream",
            peer = %state.peer(),
            addr = %peer_addr,
            key = %key_id,
            transport = tracing::field::Empty,
        );
        let mut info = StreamInfo {
            state: Arc::clone(&state),
            local_addr,
            peer_addr,
            key_id,
            transport: Transport::Tcp,
            reason: String::new(),
            is_fallback: false,
            cipher: agreement.cipher,
            direction: agreement.direction,
            chunk_bytes: agreement.chunk_bytes,
            depth: agreement.depth as usize,
            rails,
            smaller_pool_reason: None,
        };
        let ((send, recv), rails) = match data {
            DataCarrier::Tcp {
                rails,
                reason,
                is_fallback,
            } => {
                (info.reason, info.is_fallback) = (reason, is_fallback);
                info.describe_networks(&rails);
                let started = start_tcp(rails, &agreement, &state, &seal, config, &span);
                started.map_err(io_failed)?
            }
            DataCarrier::Rdma(links) => {
                info.describe_rdma(&links);
                start_rdma(links, &state, &seal, config, &span)
            }
        };
        span.record("transport", tracing::field::display(info.transport));
        span.in_scope(|| trace_opening(&info));
        let timing = Timing::new(timeout, agreement.peer_timeout);
        let stand_in = config.keepalive_runtime.clone();
        let task = connection::run(state, control, reserve, timing, stand_in).instrument(span);
        match live {
            Some(live) => control_runtime.spawn(live.track_future(task)),
            None => control_runtime.spawn(task),
        };
        crate::faults::point("after-hello");
        let info = Arc::new(info);
        let recv = ReadHalf::new(recv, Arc::clone(&info));
        Ok(Self::of(recv, WriteHalf::new(send, info)).with_rails(rails))
    }
}

/// Starts the watch over the networks of a stream that uses several, with a connection over each. `timeout` is the
/// smaller one of both ends.
fn watch_networks(
    watches: Vec<TcpStream>,
    rail_connections: usize,
    state: &Arc<State>,
    timeout: Duration,
    config: &StreamConfig,
) -> io::Result<()> {
    if watches.is_empty() {
        return Ok(());
    }
    let addresses = watches.iter().map(TcpStream::peer_addr);
    let addresses = addresses.map(|peer| Ok(canonical(peer?).ip()));
    state.set_networks(addresses.collect::<io::Result<_>>()?, rail_connections);
    // The runtime that is not blocked while a disk is: beats tell that this end and the network live.
    let runtime = config.keepalive_runtime.clone();
    let runtime = runtime.unwrap_or_else(Handle::current);
    let watches = moved_to(&runtime, watches)?;
    runtime.spawn(network_watch::run(Arc::clone(state), watches, timeout / 4));
    Ok(())
}

/// Moves connections to another runtime, with keepalives of the kernel.
fn moved_to(runtime: &Handle, sockets: Vec<TcpStream>) -> io::Result<Vec<TcpStream>> {
    let _context = runtime.enter();
    let moved = sockets.into_iter().map(|socket| {
        keep_alive(&socket)?;
        TcpStream::from_std(socket.into_std()?)
    });
    moved.collect()
}

/// Makes the halves of a stream over TCP, and the rails beside the first one, each with its thread.
fn start_tcp(
    rails: Vec<Vec<TcpStream>>,
    agreement: &Agreement,
    state: &Arc<State>,
    seal: &StreamSeal,
    config: &StreamConfig,
    span: &Span,
) -> io::Result<((SendEither, RecvEither), Vec<Rail>)> {
    let mut arrivals = Vec::new();
    let mut parts = rail_parts::<Tcp>(rails.len()).into_iter();
    let mut start = |number: usize, sockets: Vec<TcpStream>, thread: Option<CarryThread>| {
        let parts = parts.next().unwrap_or((SendPart::Only, ReceivePart::Only));
        let state = RailState::new(state, number);
        let connections = data_connections(sockets, &state)?;
        arrivals.push(Arc::downgrade(&connections));
        state.set_peer_slots(agreement.peer_depth as usize);
        let paths = tcp_paths(&connections, agreement, &state);
        let seal = seal.of_rail(u32::try_from(number).unwrap_or(u32::MAX));
        let shared = share::<Tcp>(state, paths, parts, agreement.depth, &seal, config);
        let (send, recv) = halves(shared, span, thread);
        io::Result::Ok((Either::Tcp(send), Either::Tcp(recv)))
    };
    let mut rails = rails.into_iter().enumerate();
    let first = rails
        .next()
        .map(|(number, sockets)| start(number, sockets, None));
    let (send, recv) = first.unwrap_or_else(|| Err(io::ErrorKind::NotConnected.into()))?;
    let mut others = Vec::new();
    for (number, sockets) in rails {
        let thread = CarryThread::start("rail")?;
        let (send, recv) = {
            let _context = thread.enter();
            start(number, sockets, Some(thread.clone()))?
        };
        others.push(Rail { thread, send, recv });
    }
    state.data.set_path(TcpArrivals::new(arrivals));
    Ok(((send, recv), others))
}

/// Makes the halves of a stream over RDMA, and the rails beside the first one, and starts the tasks that renew their
/// links.
fn start_rdma(
    mut links: Vec<rdma::Established>,
    state: &Arc<State>,
    seal: &StreamSeal,
    config: &StreamConfig,
    span: &Span,
) -> ((SendEither, RecvEither), Vec<Rail>) {
    rdma::Established::watch(&mut links, state);
    let parts = rail_parts::<Rdma>(links.len());
    let start = |(number, (mut link, parts)): (usize, (rdma::Established, _))| {
        let thread = link.thread();
        let _context = thread.as_ref().map(CarryThread::enter);
        let state = RailState::new(state, number);
        state.set_peer_slots(link.peer_slots());
        let (paths, depth) = (link.paths(&state), link.depth());
        let seal = seal.of_rail(u32::try_from(number).unwrap_or(u32::MAX));
        let shared = share::<Rdma>(state, paths, parts, depth, &seal, config);
        let patience = config.timeout.min(LONGEST_LIMIT);
        let renewing = link.renew(Arc::clone(&shared), patience);
        threads::spawn(renewing.instrument(span.clone()));
        let (send, recv) = halves(shared, span, thread.clone());
        ((Either::Rdma(send), Either::Rdma(recv)), thread)
    };
    let mut rails = links.into_iter().zip(parts).enumerate().map(start);
    let (first, _) = rails.next().expect("a stream has a rail");
    let others = rails.filter_map(|((send, recv), thread)| {
        let thread = thread?;
        Some(Rail { thread, send, recv })
    });
    (first, others.collect())
}

impl StreamInfo {
    /// Records the networks of data connections that use several: by the addresses of the peer.
    fn describe_networks(&mut self, rails: &[Vec<TcpStream>]) {
        let mut networks: Vec<String> = Vec::new();
        let used = rails.iter().filter_map(|sockets| sockets.first());
        for peer in used.filter_map(|socket| socket.peer_addr().ok()) {
            let network = canonical(peer).ip().to_string();
            if !networks.contains(&network) {
                networks.push(network);
            }
        }
        if networks.len() > 1 {
            self.reason.push_str("; rails to ");
            self.reason.push_str(&networks.join(" and "));
        }
    }

    /// Records what the RDMA links say of themselves.
    fn describe_rdma(&mut self, links: &[rdma::Established]) {
        let mut names: Vec<String> = Vec::new();
        for name in links.iter().map(rdma::Established::name) {
            if !names.contains(&name) {
                names.push(name);
            }
        }
        (self.transport, self.reason) = (Transport::Rdma, names.join(" and "));
        let Some(first) = links.first() else { return };
        self.smaller_pool_reason = first.smaller_pool_reason();
        (self.chunk_bytes, self.depth) = (first.chunk_bytes(), first.depth() as usize);
    }
}

/// Reports the start of a stream, and that it does not use RDMA although this host has it.
fn trace_opening(info: &StreamInfo) {
    let reason = &info.reason;
    if info.is_fallback {
        tracing::warn!(%reason, "this host has RDMA, and the data goes over TCP");
    }
    tracing::debug!(%reason, "open");
}

/// Moves the data connections of a rail to this runtime.
fn data_connections(sockets: Vec<TcpStream>, state: &RailState) -> io::Result<Arc<TcpConnections>> {
    let moved = moved_to(&Handle::current(), sockets)?;
    Ok(Arc::new(TcpConnections::new(moved, state.clone())))
}

/// Makes both sides of the data path of a rail.
fn tcp_paths(
    connections: &Arc<TcpConnections>,
    agreement: &Agreement,
    state: &State,
) -> (Option<TcpSend>, Option<TcpReceive>) {
    let Agreement {
        direction,
        chunk_bytes,
        depth,
        peer_depth,
        ..
    } = *agreement;
    let (connections, progress) = (|| Arc::clone(connections), || Arc::clone(&state.data));
    let sender = || {
        // A stream in one direction has no small messages that wait behind bulk data.
        let is_paced = direction == crate::Direction::Both;
        let pace = || Pace::new(chunk_bytes, peer_depth as usize);
        TcpSend::new(
            connections(),
            chunk_bytes,
            depth,
            peer_depth,
            progress(),
            is_paced.then(pace),
        )
    };
    let receiver = || TcpReceive::new(connections(), chunk_bytes, depth, progress());
    (
        direction.sends().then(sender),
        direction.receives().then(receiver),
    )
}

/// The time after which the kernel sends a keepalive on a silent connection. Firewalls and address translators forget
/// connections that are silent for some minutes: of those in common use, Azure's load balancer has the shortest limit,
/// four minutes. Two keepalives in a row may be lost in that time.
const KEEPALIVE: Duration = Duration::from_secs(60);

/// Has the kernel send keepalives while a connection is silent: the data connection while the reader or the writer
/// pauses, the control connection with a long `timeout`. They also detect a data connection that no longer leads
/// anywhere.
fn keep_alive(socket: &TcpStream) -> io::Result<()> {
    let times = TcpKeepalive::new()
        .with_time(KEEPALIVE)
        .with_interval(KEEPALIVE);
    SockRef::from(socket).set_tcp_keepalive(&times)
}

/// The parts of the frame sender and the frame receiver of a rail.
type PartsOf<D> = (
    SendPart<<<D as DataPath>::Send as SendPath>::Slot>,
    ReceivePart<<<D as DataPath>::Receive as ReceivePath>::Slot>,
);

/// Makes the parts of so many rails, the first one first.
fn rail_parts<D: DataPath>(rails: usize) -> Vec<PartsOf<D>> {
    let sends: Vec<_> = (1..rails).map(|_| SendHandover::new()).collect();
    let receives: Vec<_> = (1..rails).map(|_| ReceiveHandover::new()).collect();
    let first = (
        SendPart::first(sends.clone()),
        ReceivePart::first(receives.clone()),
    );
    let others = sends.into_iter().zip(receives);
    let others = others.map(|(send, receive)| (SendPart::Other(send), ReceivePart::Other(receive)));
    std::iter::once(first).chain(others).collect()
}

fn share<D: DataPath>(
    state: RailState,
    (send, receive): (Option<D::Send>, Option<D::Receive>),
    parts: PartsOf<D>,
    depth: u32,
    seal: &StreamSeal,
    config: &StreamConfig,
) -> Arc<Shared<D>> {
    let has_gaps = state.has_others();
    let chain = |way| match seal.guard(way) {
        guard if has_gaps => Chain::with_gaps(guard),
        guard => Chain::new(guard),
    };
    let faults = || faults::of(config);
    let sender = |path| SharedSender::new(path, chain(Way::Out), parts.0, faults());
    let receiver = |path| SharedReceiver::new(path, depth, chain(Way::In), parts.1, faults());
    Arc::new(Shared {
        sender: send.map(sender),
        receiver: receive.map(receiver),
        attended: AtomicWaker::new(),
        state,
    })
}

/// Makes the halves, and starts their steward, which keeps the `thread` of a rail until the stream has ended.
fn halves<D: DataPath>(
    shared: Arc<Shared<D>>,
    span: &Span,
    thread: Option<CarryThread>,
) -> (SendHalf<D>, RecvHalf<D>) {
    let serving = steward::serve(Arc::clone(&shared)).instrument(span.clone());
    threads::spawn(async move {
        serving.await;
        drop(thread);
    });
    (SendHalf::new(Arc::clone(&shared)), RecvHalf::new(shared))
}

/// Returns an IPv4 address that a socket of both families shows inside an IPv6 address as an IPv4 address.
fn canonical(address: SocketAddr) -> SocketAddr {
    (address.ip().to_canonical(), address.port()).into()
}

/// Moves the control connection to the runtime of its task.
fn move_control(control: Control, runtime: &Handle) -> io::Result<Control> {
    keep_alive(control.get_ref())?;
    let parts = control.into_parts();
    let socket = parts.io.into_std()?;
    let _context = runtime.enter();
    let mut moved = Framed::new(TcpStream::from_std(socket)?, parts.codec).into_parts();
    moved.read_buf = parts.read_buf;
    moved.write_buf = parts.write_buf;
    Ok(Framed::from_parts(moved))
}

/// Makes what the halves of a stream over TCP share, without the control task and the steward: a fuzz target does their
/// work.
#[cfg(any(test, fuzzing))]
pub(crate) fn share_without_tasks(
    sockets: Vec<TcpStream>,
    agreement: &Agreement,
    seal: &StreamSeal,
    config: &StreamConfig,
) -> io::Result<Arc<Shared<Tcp>>> {
    let state = State::new("the peer".to_owned(), agreement.direction, 2);
    let networks = vec![Ipv4Addr::LOCALHOST.into(); sockets.len()];
    state.set_networks(networks, sockets.len());
    let state = RailState::new(&state, 0);
    let connections = data_connections(sockets, &state)?;
    let paths = tcp_paths(&connections, agreement, &state);
    state.set_peer_slots(agreement.peer_depth as usize);
    let shared = share::<Tcp>(
        state,
        paths,
        (SendPart::Only, ReceivePart::Only),
        agreement.depth,
        seal,
        config,
    );
    if let Some(receiver) = &shared.receiver {
        receiver.grant_all(&shared.state);
    }
    Ok(shared)
}

/// Makes what the renewal of an RDMA link shares with a stream that has no halves, for a fuzz target.
#[cfg(all(any(test, fuzzing), feature = "rdma"))]
pub(crate) fn share_without_halves() -> Arc<Shared<Rdma>> {
    let state = State::new("the peer".to_owned(), crate::Direction::Both, 2);
    let seal = StreamSeal::of_seed(1, crate::transport::control::noise::Role::Dialer, None);
    share::<Rdma>(
        RailState::new(&state, 0),
        (None, None),
        (SendPart::Only, ReceivePart::Only),
        4,
        &seal,
        &StreamConfig::default(),
    )
}
