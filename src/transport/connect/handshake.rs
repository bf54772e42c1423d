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

use std::{future::Future, io, sync::Arc};

use futures::{SinkExt, StreamExt};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};
use tokio_util::codec::Framed;

use super::{
    connections::{
        Connector, DataDialing, ExpectedConnections, NetworkConnections, data_connections,
    },
    networks,
    preamble::{self, PREAMBLE_BYTES, PROTOCOL_VERSION, Preamble, PreambleKind},
};
use crate::{
    Error, HandshakeFault, Key, StreamConfig, TransportPolicy,
    key::KeyId,
    transport::{
        control::{
            LINGER,
            connection::{self, Codec, Control, ControlError, closed},
            message::{self, Agreement, Hello, Message, Token, Welcome},
            noise::{self, HANDSHAKE_BYTES, Initiator, Responder, Role},
            seal::StreamSeal,
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

pub(super) enum AcceptError {
    PeerAborted(String),
    Fault(HandshakeFault),
}

impl<T: Into<HandshakeFault>> From<T> for AcceptError {
    fn from(fault: T) -> Self {
        Self::Fault(fault.into())
    }
}
