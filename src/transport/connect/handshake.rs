//! From a fresh connection to an agreement: the handshake authenticates both ends, and the negotiation decides what
//! carries the data.
//!
//! ```text
//! dialer                                    acceptor
//!   preamble, id of the key, Noise message 1  ►   wrong key, wrong version: answers so, closes
//!                              ◄───────────   preamble, Noise message 2
//!   Hello {terms, ports}       ───────────►   authenticates the dialer
//!                              ◄───────────   Welcome {terms, token, pairs of ports to try}
//!                    steps towards a queue pair (rdma/establish.rs)
//!   or a connection for each rail:
//!     preamble, label          ───────────►
//!                              ◄───────────   challenge
//!     proof                    ───────────►
//!                              ◄───────────   Ready, on the first connection
//! ```
//!
//! If Welcome names addresses, the dialer first opens connections over each network that it shares with them: one that
//! watches the network, and one in reserve for the first connection. It sends the list of the networks that answered. If
//! there are several, each rail gets connections in reserve, over other networks than its own. Over RDMA these
//! connections follow the steps, and Ready follows them.
//!
//! The policy `auto` takes RDMA when both ends have it *and a message has crossed it*, otherwise TCP. The
//! policy `rdma` of either end rules out TCP.

use std::{future::Future, io, net::IpAddr, sync::Arc, time::Duration};

use futures::{
    SinkExt, StreamExt,
    future::{join, join_all, join3, pending, try_join_all},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::{Instant, sleep, timeout},
};
use tokio_util::codec::Framed;

use super::{
    networks::{self, SharedNetwork},
    preamble::{self, PREAMBLE_BYTES, PROTOCOL_VERSION, Preamble, PreambleKind},
};
use crate::{
    Error, HandshakeFault, Key, StreamConfig, TransportPolicy,
    config::LONGEST_LIMIT,
    key::KeyId,
    transport::{
        connect::{
            dial::{ADDRESS_LIMIT, PAUSE},
            preamble::CHALLENGE_BYTES,
        },
        control::{
            LINGER,
            connection::{self, Codec, Control, ControlError, closed},
            message::{self, Agreement, Hello, Message, Token, Welcome},
            noise::{self, HANDSHAKE_BYTES, Initiator, Responder, Role},
            seal::StreamSeal,
            state::network_of,
        },
        rdma,
    },
};

impl From<ControlError> for HandshakeFault {
    fn from(error: ControlError) -> Self {
        match error {
            ControlError::Io(error) => error.into(),
            ControlError::Unopened(_) => Self::Protocol("a message does not verify"),
        }
    }
}

impl From<io::Error> for HandshakeFault {
    fn from(error: io::Error) -> Self {
        Self::Broken(Arc::new(error))
    }
}

/// A dialer's first message, made before it connects: the message follows the connection at once, so that the acceptor
/// does not take the dialer for a silent stranger.
pub(crate) struct FirstMessage {
    initiator: Initiator,
    bytes: Vec<u8>,
    /// The id of the key, which the message may not have.
    pub(super) key_id: KeyId,
}

impl FirstMessage {
    /// Makes the preamble, the id of `key` and the first message of a dialer with `key`. In place of the id of a
    /// stretched key it has random bytes: an observer could find the word of an id in a table.
    pub(crate) fn new(key: &Key) -> Self {
        let preamble = Preamble::encode(PreambleKind::Control);
        let key_id = key.id();
        let shown_id = if key.is_stretched() {
            let random = preamble::random();
            KeyId::from_bytes(*random.first_chunk().expect("it is longer"))
        } else {
            key_id
        };
        let prologue = [&preamble[..], &shown_id.to_bytes()].concat();
        let (initiator, first) = Initiator::start(key, &prologue);
        let bytes = [&prologue[..], &first].concat();
        Self {
            initiator,
            bytes,
            key_id,
        }
    }
}

/// The dialer's side of the handshake. Returns the control connection.
/// Fails when the acceptor does not have the key, has another version, or is not rdpipe.
pub(crate) async fn initiate(
    mut socket: TcpStream,
    first: FirstMessage,
) -> Result<Control, HandshakeFault> {
    socket.set_nodelay(true)?;
    socket.write_all(&first.bytes).await?;
    let session = read_reply(&mut socket, first.initiator).await?;
    Ok(Framed::new(socket, Codec::new(session)))
}

async fn read_reply(
    socket: &mut TcpStream,
    initiator: Initiator,
) -> Result<noise::Session, HandshakeFault> {
    let mut preamble = [0; PREAMBLE_BYTES];
    socket.read_exact(&mut preamble).await?;
    let not_rdpipe = HandshakeFault::NotRdpipe("its first bytes are another protocol's");
    let Preamble { version, kind } = Preamble::decode(preamble).ok_or(not_rdpipe)?;
    match kind {
        _ if version != PROTOCOL_VERSION => Err(HandshakeFault::Version {
            ours: PROTOCOL_VERSION,
            theirs: version,
        }),
        Some(PreambleKind::WrongKey) => Err(HandshakeFault::Key),
        Some(PreambleKind::Reply) => {
            let mut reply = [0; HANDSHAKE_BYTES];
            socket.read_exact(&mut reply).await?;
            initiator.finish(&reply).map_err(|_| HandshakeFault::Key)
        }
        _ => Err(HandshakeFault::Protocol("an answer of an unknown kind")),
    }
}

/// A dialer that has proved that it has the key.
pub(crate) struct Authenticated {
    pub(super) control: Control,
    /// The dialer's offer.
    pub(super) hello: Hello,
    pub(super) key_id: KeyId,
}

/// The acceptor's side of the handshake, from the dialer's first message, which verified, until the dialer is
/// authenticated.
/// Fails if the dialer does not have the key, or the network fails. The user of a listener is not told.
pub(super) async fn answer(
    mut socket: TcpStream,
    responder: Responder,
    key_id: KeyId,
) -> Result<Authenticated, HandshakeFault> {
    let (session, reply) = responder.reply();
    socket
        .write_all(&[&Preamble::encode(PreambleKind::Reply)[..], &reply].concat())
        .await?;
    let mut control = Framed::new(socket, Codec::new(session));
    match control.next().await.ok_or_else(closed)?? {
        Message::Hello(hello) => Ok(Authenticated {
            control,
            hello,
            key_id,
        }),
        _ => Err(HandshakeFault::Protocol("a first message that is no hello")),
    }
}

/// Tells a dialer why it gets no stream, and closes the connection.
pub(super) async fn refuse(mut socket: TcpStream, kind: PreambleKind) {
    if socket.write_all(&Preamble::encode(kind)).await.is_ok() {
        connection::close(socket).await;
    }
}

/// A negotiated stream, before its halves and tasks exist.
pub(crate) struct Negotiated {
    /// The authenticated control connection.
    pub(crate) control: Control,
    pub(crate) networks: NetworkConnections,
    pub(crate) data: DataCarrier,
    /// What both ends agreed on.
    pub(crate) agreement: Agreement,
    /// What protects the data.
    pub(crate) seal: StreamSeal,
    /// The id of the key that both ends have.
    pub(crate) key_id: KeyId,
    pub(crate) peer: String,
}

/// What carries the data of a stream.
pub(crate) enum DataCarrier {
    /// Queue pairs that a frame has crossed, one for each rail.
    Rdma(Vec<rdma::Established>),
    /// TCP connections beside that of the messages.
    Tcp {
        /// By rail: the connection over its network, and those in reserve.
        rails: Vec<Vec<TcpStream>>,
        /// The reason why it is not RDMA.
        reason: String,
        /// True if this host has RDMA hardware, and its policy allows both transports.
        is_fallback: bool,
    },
}

/// The connections of a stream for its networks. None if there is only one.
#[derive(Default)]
pub(crate) struct NetworkConnections {
    /// By network: the connection that watches it.
    pub(crate) watches: Vec<TcpStream>,
    /// By network from the second one on: the connection in reserve for the control connection.
    pub(crate) reserve: Vec<TcpStream>,
}

/// The connections of a stream beside that of the messages: those of each rail over TCP, and those for the networks.
type OtherConnections = (Vec<Vec<TcpStream>>, NetworkConnections);

/// Sorts the data connections, which are in the order of their numbers, by rail.
fn by_rail(data: Vec<TcpStream>, rails: usize) -> Vec<Vec<TcpStream>> {
    let mut sorted: Vec<Vec<_>> = (0..rails).map(|_| Vec::new()).collect();
    for (number, socket) in data.into_iter().enumerate() {
        sorted[number % rails].push(socket);
    }
    sorted
}

/// The most connections of one rail: that in use, and those in reserve.
const MOST_CONNECTIONS: usize = 4;

/// Returns the number of data connections of a stream with so many rails over TCP and so many networks. Connection n
/// belongs to rail n modulo their number.
fn data_connections(rails: usize, networks: usize) -> usize {
    rails * networks.clamp(1, MOST_CONNECTIONS)
}

/// Sends the reason why this end aborts to an authenticated peer, and closes the connection. A peer that does not read
/// delays this for some seconds only.
async fn abort_negotiation(mut control: Control, fault: &HandshakeFault) {
    let reason = fault.to_string();
    let abort = Message::Abort { offset: 0, reason };
    let _ = timeout(LINGER, control.send(abort)).await;
    connection::close(control.into_inner()).await;
}

/// Falls back to TCP for this reason, unless the policy of an end requires RDMA.
fn fall_back(
    ours: TransportPolicy,
    theirs: TransportPolicy,
    reason: String,
) -> Result<String, HandshakeFault> {
    if ours == TransportPolicy::Rdma || theirs == TransportPolicy::Rdma {
        return Err(HandshakeFault::Transport(reason));
    }
    Ok(reason)
}

/// The transports of this end.
struct LocalTransports {
    policy: TransportPolicy,
    rdma: Result<rdma::LocalPorts, rdma::Unavailable>,
}

impl LocalTransports {
    fn detect(config: &StreamConfig) -> Self {
        let policy = config.transport;
        let rdma = if policy == TransportPolicy::Tcp {
            let reason = "TCP was asked for".to_owned();
            let hardware = false;
            Err(rdma::Unavailable { reason, hardware })
        } else {
            rdma::LocalPorts::discover(config)
        };
        Self { policy, rdma }
    }

    fn offer(&self) -> Result<Vec<u8>, String> {
        let reason = |absent: &rdma::Unavailable| absent.reason.clone();
        self.rdma
            .as_ref()
            .map(rdma::LocalPorts::offer)
            .map_err(reason)
    }

    /// Proposes pairs of ports, as the acceptor, and returns whether a stream can go on over another pair when one is
    /// lost. The error says why there are none, and at which host.
    fn propose(&self, host: &str, theirs: &Hello, rails: usize) -> Result<(Vec<u8>, bool), String> {
        match (&self.rdma, &theirs.rdma) {
            (Ok(ours), Ok(offer)) => ours
                .propose(offer, rails)
                .map_err(|reason| format!("{host}: {reason}")),
            (Err(none), _) => Err(format!("{host}: {}", none.reason)),
            (_, Err(reason)) => Err(format!("{}: {reason}", theirs.terms.host)),
        }
    }

    /// Makes the queue pairs of the rails over the proposed pairs of ports. The inner error says why there is none.
    async fn establish(
        &self,
        control: &mut Control,
        proposal: Result<Vec<u8>, String>,
        role: Role,
        agreement: &Agreement,
        seal: &StreamSeal,
    ) -> Result<Result<Vec<rdma::Established>, String>, HandshakeFault> {
        match (&self.rdma, proposal) {
            (_, Err(reason)) => Ok(Err(reason)),
            (Ok(ours), Ok(proposal)) => {
                // Boxed: the steps are rare, and would make every connection's future large.
                Box::pin(ours.establish(control, &proposal, role, agreement, seal)).await
            }
            (Err(_), Ok(_)) => Err(HandshakeFault::Protocol(
                "a proposal of RDMA ports, although none were offered",
            )),
        }
    }

    /// Returns what carries the data: these queue pairs, or for this reason the TCP connections of these rails.
    fn carrier(
        &self,
        established: Result<Vec<rdma::Established>, String>,
        rails: Vec<Vec<TcpStream>>,
    ) -> DataCarrier {
        let reason = match established {
            Ok(links) => return DataCarrier::Rdma(links),
            Err(reason) => reason,
        };
        let hardware = match &self.rdma {
            Ok(_) => true,
            Err(none) => none.hardware,
        };
        let is_fallback = hardware && self.policy == TransportPolicy::Auto;
        DataCarrier::Tcp {
            rails,
            reason,
            is_fallback,
        }
    }
}

/// Returns true if a connection comes from the address that it leads to, as those within one machine do.
fn is_local(socket: &TcpStream) -> bool {
    let ends = (socket.local_addr(), socket.peer_addr());
    matches!(ends, (Ok(local), Ok(peer)) if local.ip() == peer.ip())
}

/// How a dialer opens data connections.
pub(super) struct Connector<O> {
    /// Opens one more connection to the same acceptor.
    pub(super) open: O,
    /// True if the connections may lead to other addresses of the acceptor.
    pub(super) may_spread: bool,
}

impl<O> Connector<O> {
    /// Returns the networks beside that of the control connection.
    fn networks(&self, control: &Control, theirs: &[IpAddr]) -> Networks {
        let socket = control.get_ref();
        let port = socket.peer_addr().map_or(0, |peer| peer.port());
        let theirs = if self.may_spread { theirs } else { &[] };
        Networks {
            beside: networks::beside(socket, theirs),
            port,
        }
    }
}

/// The networks that a stream uses beside that of the control connection.
struct Networks {
    beside: Vec<SharedNetwork>,
    port: u16,
}

impl Networks {
    /// Returns the network of a data connection; none for that of the control connection.
    fn of_connection(&self, number: usize, rails: usize) -> Option<SharedNetwork> {
        let place = network_of(number % rails, number / rails, self.beside.len() + 1);
        self.beside.get(place.checked_sub(1)?).copied()
    }

    /// Opens a connection over a network, within a second.
    async fn open(&self, network: SharedNetwork, token: &Token) -> Option<TcpStream> {
        let opening = async { prove_data(network.connect(self.port).await?, token).await };
        let opened = timeout(ADDRESS_LIMIT, opening).await;
        match opened.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())) {
            Ok(socket) => Some(socket),
            Err(error) => {
                tracing::debug!(?network, %error, "the network is not used");
                None
            }
        }
    }

    /// Opens the connections for the networks, and leaves out those over which the acceptor does not answer. Returns the
    /// numbers of the others, and the connections; none of both if only the first network is left.
    async fn open_all<F>(
        &mut self,
        open: &impl Fn() -> F,
        token: &Token,
        limit: Duration,
    ) -> io::Result<(Vec<u8>, NetworkConnections)>
    where
        F: Future<Output = io::Result<TcpStream>>,
    {
        let opening = self.beside.iter().zip(1..).map(async |(network, number)| {
            let tokens = [token.of_network(number), token.of_reserve(number)];
            let [watch, reserve] = tokens.each_ref().map(|token| self.open(*network, token));
            let (watch, reserve) = join(watch, reserve).await;
            Some((*network, u8::try_from(number).ok()?, watch?, reserve?))
        });
        let opened = join_all(opening).await.into_iter().flatten();
        let (mut beside, mut numbers) = (Vec::new(), Vec::new());
        let mut connections = NetworkConnections::default();
        for (network, number, watch, reserve) in opened {
            beside.push(network);
            numbers.push(number);
            connections.watches.push(watch);
            connections.reserve.push(reserve);
        }
        self.beside = beside;
        if !numbers.is_empty() {
            let first = open_data(open, token.of_network(0), limit).await?;
            connections.watches.insert(0, first);
        }
        Ok((numbers, connections))
    }
}

/// Negotiates a stream on a fresh connection, from its first byte to what carries the data.
pub(super) async fn dial<F>(
    socket: TcpStream,
    peer: &str,
    first: FirstMessage,
    config: &StreamConfig,
    connector: Connector<impl Fn() -> F>,
) -> Result<Negotiated, HandshakeFault>
where
    F: Future<Output = io::Result<TcpStream>>,
{
    let key_id = first.key_id;
    let mut control = initiate(socket, first).await?;
    let (ours, transports) = (
        message::local_terms(config, is_local(control.get_ref())),
        LocalTransports::detect(config),
    );
    let random = Token(preamble::random());
    let hello = Hello {
        terms: ours.clone(),
        transport: config.transport,
        rdma: transports.offer(),
        random: random.clone(),
    };
    control.send(Message::Hello(hello)).await?;
    let welcome = match control.next().await.ok_or_else(closed)?? {
        Message::Welcome(welcome) => welcome,
        Message::Abort { reason, .. } => return Err(HandshakeFault::Refused(reason)),
        _ => return Err(HandshakeFault::Protocol("neither a welcome nor a refusal")),
    };
    let agreement = message::agree(&ours, &welcome.terms)?;
    let seal = StreamSeal::new(&welcome.token, &random, Role::Dialer, agreement.cipher);
    let proposal = welcome.rdma;
    let established = transports
        .establish(&mut control, proposal, Role::Dialer, &agreement, &seal)
        .await?;
    let established = match established {
        Ok(links) => Ok(links),
        Err(reason) => Err(fall_back(config.transport, welcome.transport, reason)?),
    };
    let (spreads, rails) = match &established {
        Ok(_) => (true, 0),
        Err(_) => (agreement.may_spread, agreement.rails),
    };
    let theirs = if spreads { &welcome.addresses[..] } else { &[] };
    let dialing = DataDialing {
        networks: connector.networks(&control, theirs),
        open: connector.open,
        token: &welcome.token,
        rails,
        limit: config.retry_for,
    };
    let has_named = !welcome.addresses.is_empty();
    let (rails, networks) = match dialing.run(&mut control, has_named).await {
        Ok(connections) => connections,
        Err(fault) => {
            abort_negotiation(control, &fault).await;
            return Err(fault);
        }
    };
    Ok(Negotiated {
        control,
        networks,
        data: transports.carrier(established, rails),
        agreement,
        seal,
        key_id,
        peer: peer.to_owned(),
    })
}

/// What a dialer needs to open the data connections.
struct DataDialing<'a, O> {
    /// Opens one more connection to the same acceptor.
    open: O,
    networks: Networks,
    token: &'a Token,
    /// The number of rails over TCP: none over RDMA.
    rails: usize,
    /// The time for which a connection that breaks is tried again.
    limit: Duration,
}

impl<O, F> DataDialing<'_, O>
where
    O: Fn() -> F,
    F: Future<Output = io::Result<TcpStream>>,
{
    /// Opens the connections, if there are any, and waits until the acceptor has them. If it `has_named` addresses, it is
    /// told which networks are used.
    async fn run(
        mut self,
        control: &mut Control,
        has_named: bool,
    ) -> Result<OtherConnections, HandshakeFault> {
        let mut networks = NetworkConnections::default();
        if has_named {
            let opening = self.networks.open_all(&self.open, self.token, self.limit);
            let (numbers, opened) = unless_refused(control, opening).await?;
            control.send(Message::Networks(numbers)).await?;
            networks = opened;
        }
        let most = data_connections(self.rails, self.networks.beside.len() + 1);
        let opening = (0..most).map(|number| self.open(number));
        let data = unless_refused(control, try_join_all(opening)).await?;
        if has_named || self.rails > 0 {
            await_ready(control, data.first().or(networks.watches.first())).await?;
        }
        Ok((by_rail(data, self.rails), networks))
    }

    /// Opens a data connection over its network, or over the first one if that fails.
    async fn open(&self, number: usize) -> io::Result<TcpStream> {
        let token = self.token.of_rail(number);
        if let Some(network) = self.networks.of_connection(number, self.rails) {
            if let Some(socket) = self.networks.open(network, &token).await {
                return Ok(socket);
            }
        }
        open_data(&self.open, token, self.limit).await
    }
}

/// Opens connections until it succeeds, unless the acceptor ends the negotiation.
async fn unless_refused<T>(
    control: &mut Control,
    opening: impl Future<Output = io::Result<T>>,
) -> Result<T, HandshakeFault> {
    tokio::select! {
        biased;
        message = control.next() => Err(match message.ok_or_else(closed)?? {
            Message::Abort { reason, .. } => HandshakeFault::Refused(reason),
            _ => HandshakeFault::Protocol("a message before the data connection"),
        }),
        opened = opening => Ok(opened?),
    }
}

/// Opens the data connection, and proves that it belongs to the stream. The acceptor may push the connection out before
/// it has read whose it is; then this tries again for `limit`.
async fn open_data<F>(open: &impl Fn() -> F, token: Token, limit: Duration) -> io::Result<TcpStream>
where
    F: Future<Output = io::Result<TcpStream>>,
{
    let deadline = Instant::now() + limit.min(LONGEST_LIMIT);
    loop {
        match prove_data(open().await?, &token).await {
            Ok(data) => return Ok(data),
            Err(error) if Instant::now() + PAUSE >= deadline => return Err(error),
            Err(_) => sleep(PAUSE).await,
        }
    }
}

/// Tells the acceptor which stream the connection is for, reads its challenge, and answers it.
async fn prove_data(mut data: TcpStream, token: &Token) -> io::Result<TcpStream> {
    data.set_nodelay(true)?;
    let preamble = Preamble::encode(PreambleKind::Data);
    let opening = [&preamble[..], &preamble::label(token)].concat();
    data.write_all(&opening).await?;
    let mut challenge = [0; CHALLENGE_BYTES];
    data.read_exact(&mut challenge).await?;
    data.write_all(&preamble::proof(token, &challenge)).await?;
    Ok(data)
}

/// Waits until the acceptor has the connections beside that of the messages, the first of which is `other`, or one of
/// both ends.
async fn await_ready(
    control: &mut Control,
    other: Option<&TcpStream>,
) -> Result<(), HandshakeFault> {
    let mut byte = [0];
    let peeked = async {
        match other {
            Some(socket) => socket.peek(&mut byte).await,
            None => pending().await,
        }
    };
    tokio::select! {
        // The acceptor sends the first data only after Ready, which is then on its way too.
        biased;
        message = control.next() => match message.ok_or_else(closed)?? {
            Message::Ready => Ok(()),
            Message::Abort { reason, .. } => Err(HandshakeFault::Refused(reason)),
            _ => Err(HandshakeFault::Protocol("no word on the data connection")),
        },
        count = peeked => match count {
            Ok(0) => Err(broken_data("closed by the other end")),
            Ok(_) => match control.next().await.ok_or_else(closed)?? {
                Message::Ready => Ok(()),
                _ => Err(HandshakeFault::Protocol("no word on the data connection")),
            },
            Err(error) => Err(error.into()),
        },
    }
}

fn broken_data(what: &'static str) -> HandshakeFault {
    let text = format!("the data connection was {what}");
    io::Error::new(io::ErrorKind::ConnectionReset, text).into()
}

/// Negotiates a stream with an authenticated dialer, within the time limit of a handshake. `data_connection` waits for
/// the connection that proves that it has a token; it may come to any address of this host if `is_everywhere` is true.
/// After a failure this end holds no memory for the dialer any more.
/// The error is the reason why there is no stream, which the dialer has been sent.
pub(crate) async fn accept<F>(
    authenticated: Authenticated,
    config: &StreamConfig,
    is_everywhere: bool,
    data_connection: impl Fn(Token) -> F,
) -> Result<Negotiated, Error>
where
    F: Future<Output = Option<TcpStream>>,
{
    let Authenticated {
        mut control,
        hello,
        key_id,
    } = authenticated;
    let peer = hello.terms.host.clone();
    let limit = config.handshake_timeout;
    // Boxed: it is many times larger than the timer, and what it has pinned is freed when it is dropped.
    let negotiating = Box::pin(negotiate_data(
        &mut control,
        &hello,
        config,
        is_everywhere,
        data_connection,
    ));
    let late = |_| Err(HandshakeFault::Timeout(limit).into());
    match timeout(limit, negotiating).await.unwrap_or_else(late) {
        Ok((data, networks, agreement, seal)) => Ok(Negotiated {
            control,
            networks,
            data,
            agreement,
            seal,
            key_id,
            peer,
        }),
        Err(AcceptError::PeerAborted(reason)) => Err(Error::PeerAborted {
            peer,
            offset: 0,
            reason,
        }),
        Err(AcceptError::Fault(fault)) => {
            abort_negotiation(control, &fault).await;
            Err(Error::Handshake { peer, fault })
        }
    }
}

async fn negotiate_data<F>(
    control: &mut Control,
    hello: &Hello,
    config: &StreamConfig,
    is_everywhere: bool,
    data_connection: impl Fn(Token) -> F,
) -> Result<(DataCarrier, NetworkConnections, Agreement, StreamSeal), AcceptError>
where
    F: Future<Output = Option<TcpStream>>,
{
    let (terms, transports) = (
        message::local_terms(config, is_local(control.get_ref())),
        LocalTransports::detect(config),
    );
    let agreement = message::agree(&terms, &hello.terms)?;
    let proposed = transports.propose(&terms.host, hello, agreement.rails);
    let has_other_ports = matches!(proposed, Ok((_, true)));
    let proposal = proposed.map(|(proposal, _)| proposal);
    if let Err(reason) = &proposal {
        fall_back(config.transport, hello.transport, reason.clone())?;
    }
    let token = Token(preamble::random());
    let seal = StreamSeal::new(&token, &hello.random, Role::Acceptor, agreement.cipher);
    let names_all = is_everywhere && (agreement.may_spread || has_other_ports);
    let addresses = names_all.then(|| networks::addresses(control.get_ref()));
    // One address is that of the control connection.
    let addresses = addresses.filter(|all| all.len() > 1).unwrap_or_default();
    let most = data_connections(agreement.rails, addresses.len());
    let expected = ExpectedConnections {
        data: (0..most)
            .map(|number| data_connection(token.of_rail(number)))
            .collect(),
        networks: (0..addresses.len())
            .map(|network| {
                let watch = data_connection(token.of_network(network));
                (watch, data_connection(token.of_reserve(network)))
            })
            .collect(),
    };
    let answer = Welcome {
        terms,
        transport: config.transport,
        rdma: proposal.clone(),
        token,
        addresses,
    };
    control.send(Message::Welcome(answer)).await?;
    let established = transports
        .establish(control, proposal, Role::Acceptor, &agreement, &seal)
        .await?;
    let (established, rails) = match established {
        Ok(links) => (Ok(links), 0),
        Err(reason) => {
            let reason = fall_back(config.transport, hello.transport, reason)?;
            (Err(reason), agreement.rails)
        }
    };
    let (rails, networks) = expected.bring(control, rails).await?;
    let data = transports.carrier(established, rails);
    Ok((data, networks, agreement, seal))
}

enum AcceptError {
    PeerAborted(String),
    Fault(HandshakeFault),
}

impl<T: Into<HandshakeFault>> From<T> for AcceptError {
    fn from(fault: T) -> Self {
        Self::Fault(fault.into())
    }
}

/// The connections that the dialer may open beside that of the messages, by number.
struct ExpectedConnections<F> {
    data: Vec<F>,
    /// By network: that which watches it, and the reserve of the control connection. None if no addresses were named.
    networks: Vec<(F, F)>,
}

impl<F: Future<Output = Option<TcpStream>>> ExpectedConnections<F> {
    /// Waits for the connections that the dialer opens, if it opens any: those of so many rails over TCP, and those for
    /// the networks.
    async fn bring(
        self,
        control: &mut Control,
        rails: usize,
    ) -> Result<OtherConnections, AcceptError> {
        let Self { data, networks } = self;
        if networks.is_empty() && rails == 0 {
            return Ok(OtherConnections::default());
        }
        let mut used = Vec::new();
        if !networks.is_empty() {
            used = match control.next().await.ok_or_else(closed)?? {
                Message::Networks(numbers) => numbers,
                Message::Abort { reason, .. } => return Err(AcceptError::PeerAborted(reason)),
                _ => return Err(HandshakeFault::Protocol("no word on the networks").into()),
            };
            let is_known = |number: &u8| (1..networks.len()).contains(&usize::from(*number));
            if !used.is_sorted_by(|one, next| one < next) || !used.iter().all(is_known) {
                return Err(HandshakeFault::Protocol("networks that were not named").into());
            }
            if !used.is_empty() {
                used.insert(0, 0);
            }
        }
        let (mut watches, mut reserve) = (Vec::new(), Vec::new());
        for (number, (watch, control)) in networks.into_iter().enumerate() {
            if used.iter().any(|used| usize::from(*used) == number) {
                watches.push(watch);
                // The first network has the control connection itself.
                reserve.extend((number > 0).then_some(control));
            }
        }
        let data = data.into_iter().take(data_connections(rails, used.len()));
        let (data, watches, reserve) = tokio::select! {
            brought = join3(join_all(data), join_all(watches), join_all(reserve)) => brought,
            message = control.next() => return Err(match message {
                Some(Ok(Message::Abort { reason, .. })) => AcceptError::PeerAborted(reason),
                Some(Ok(_)) => HandshakeFault::Protocol("a message before the data connection").into(),
                Some(Err(error)) => error.into(),
                None => closed().into(),
            }),
        };
        let all = |sockets: Vec<Option<TcpStream>>| -> io::Result<Vec<_>> {
            sockets
                .into_iter()
                .collect::<Option<_>>()
                .ok_or_else(closed)
        };
        let networks = NetworkConnections {
            watches: all(watches)?,
            reserve: all(reserve)?,
        };
        control.send(Message::Ready).await?;
        Ok((by_rail(all(data)?, rails), networks))
    }
}
