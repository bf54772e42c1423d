//! From an authenticated control connection to a way for the data.
//!
//! ```text
//! dialer                                    acceptor
//!   Hello {terms, ways over RDMA} ────────►   (the handshake ends with it)
//!                                 ◄────────   Welcome {terms, token, the way to try}
//!                      steps towards a queue pair (rdma/establish.rs)
//!   or a second connection: preamble, token ►
//!                                 ◄────────   Ready
//! ```
//!
//! `auto` takes RDMA when both ends have it *and a message has crossed it*, otherwise TCP; `rdma` never
//! falls back, whichever end insists on it.

use std::{future::Future, io, net::SocketAddr, time::Duration};

use futures::{SinkExt, StreamExt};
use tokio::{io::AsyncWriteExt, net::TcpStream, time::timeout};

use super::{
    handshake::{self, Authenticated, closed},
    preamble::{Kind, Preamble},
};
use crate::{
    Error, HandshakeFault, Key, StreamConfig, TransportPolicy,
    transport::{
        control::{
            codec::Control,
            message::{Hello, Message, Policy, Token, Welcome},
            task,
            terms::{self, Agreement},
        },
        rdma,
    },
};

/// A stream that both ends have agreed on, before its halves and tasks exist.
pub(crate) struct Negotiated {
    /// The authenticated control connection.
    pub(crate) control: Control,
    /// What will carry the data.
    pub(crate) data: Data,
    /// What was agreed.
    pub(crate) agreement: Agreement,
    /// Where the chains begin: this end's sending direction, then its receiving one.
    pub(crate) seeds: [u64; 2],
    /// The peer's name for messages.
    pub(crate) peer: String,
}

/// What carries the data of a stream.
pub(crate) enum Data {
    /// A queue pair that a message has crossed.
    Rdma(Box<rdma::Ends>),
    /// A connection of its own.
    Tcp {
        /// That connection.
        socket: TcpStream,
        /// Why not RDMA.
        reason: String,
        /// There is hardware for it here, both ends were free to use it, and it is not used.
        is_fallback: bool,
    },
}

/// The dialer's side on a fresh connection, from its first byte to a way for the data.
pub(crate) async fn dial(
    socket: TcpStream,
    peer: &str,
    key: &Key,
    config: &StreamConfig,
) -> Result<Negotiated, HandshakeFault> {
    let address = socket.peer_addr()?;
    let (mut control, seeds) = handshake::introduce(socket, key).await?;
    let (ours, means) = (terms::ours(config), Means::of(config));
    let hello = Hello {
        terms: ours.clone(),
        transport: config.transport.into(),
        rdma: means.offer(),
    };
    control.send(Message::Hello(hello)).await?;
    let welcome = match control.next().await.ok_or_else(closed)?? {
        Message::Welcome(welcome) => welcome,
        Message::Abort { reason, .. } => return Err(HandshakeFault::Refused(reason)),
        _ => return Err(HandshakeFault::Protocol("neither a welcome nor a refusal")),
    };
    let agreement = terms::agree(&ours, &welcome.terms)?;
    let way = welcome.rdma;
    let data = match means.establish(&mut control, way, true, &agreement).await? {
        Ok(ends) => Data::Rdma(Box::new(ends)),
        Err(reason) => {
            let reason = fall_back(config.transport, welcome.transport, reason)?;
            match dial_data(&mut control, address, &welcome.token).await {
                Ok(socket) => means.tcp(socket, reason),
                Err(fault) => {
                    give_up(control, &fault).await;
                    return Err(fault);
                }
            }
        }
    };
    Ok(Negotiated {
        control,
        data,
        agreement,
        seeds,
        peer: peer.to_owned(),
    })
}

/// Opens the data connection, and waits until the acceptor has it.
async fn dial_data(
    control: &mut Control,
    address: SocketAddr,
    token: &Token,
) -> Result<TcpStream, HandshakeFault> {
    let data = open_data(address, token).await?;
    await_ready(control, &data).await?;
    Ok(data)
}

async fn open_data(address: std::net::SocketAddr, token: &Token) -> io::Result<TcpStream> {
    let mut data = TcpStream::connect(address).await?;
    data.set_nodelay(true)?;
    data.write_all(&[&Preamble::encode(Kind::Data)[..], &token.0].concat())
        .await?;
    Ok(data)
}

/// Waits until the acceptor has the data connection, or either connection ends.
async fn await_ready(control: &mut Control, data: &TcpStream) -> Result<(), HandshakeFault> {
    let mut byte = [0];
    tokio::select! {
        // The acceptor sends the first data only after Ready, which is then on its way too.
        biased;
        message = control.next() => match message.ok_or_else(closed)?? {
            Message::Ready => Ok(()),
            Message::Abort { reason, .. } => Err(HandshakeFault::Refused(reason)),
            _ => Err(HandshakeFault::Protocol("no word on the data connection")),
        },
        count = data.peek(&mut byte) => match count {
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

/// Tells an authenticated peer why this end gives up.
async fn give_up(mut control: Control, fault: &HandshakeFault) {
    let _ = control
        .send(Message::Abort {
            offset: 0,
            reason: fault.to_string(),
        })
        .await;
    task::close(control.into_inner()).await;
}

/// The acceptor's side once the dialer is believed. `data_connection` brings the connection that
/// presents the token it is given.
///
/// # Errors
///
/// Whatever keeps the stream from coming about; the dialer has been told.
pub(crate) async fn welcome<F>(
    authenticated: Authenticated,
    config: &StreamConfig,
    data_connection: impl FnOnce(Token) -> F,
) -> Result<Negotiated, Error>
where
    F: Future<Output = Option<TcpStream>>,
{
    let Authenticated {
        mut control,
        hello,
        seeds,
    } = authenticated;
    let peer = hello.terms.host.clone();
    match accept(&mut control, &hello, config, data_connection).await {
        Ok((data, agreement)) => Ok(Negotiated {
            control,
            data,
            agreement,
            seeds,
            peer,
        }),
        Err(Stumble::PeerAborted(reason)) => Err(Error::PeerAborted {
            peer,
            offset: 0,
            reason,
        }),
        Err(Stumble::Fault(fault)) => {
            give_up(control, &fault).await;
            Err(Error::Handshake { peer, fault })
        }
    }
}

async fn accept<F>(
    control: &mut Control,
    hello: &Hello,
    config: &StreamConfig,
    data_connection: impl FnOnce(Token) -> F,
) -> Result<(Data, Agreement), Stumble>
where
    F: Future<Output = Option<TcpStream>>,
{
    let (terms, means) = (terms::ours(config), Means::of(config));
    let agreement = terms::agree(&terms, &hello.terms)?;
    let way = means.propose(&terms.host, hello);
    if let Err(reason) = &way {
        fall_back(config.transport, hello.transport, reason.clone())?;
    }
    let token = Token(random());
    let data = data_connection(token.clone());
    let answer = Welcome {
        terms,
        transport: config.transport.into(),
        rdma: way.clone(),
        token,
    };
    control.send(Message::Welcome(answer)).await?;
    match means.establish(control, way, false, &agreement).await? {
        Ok(ends) => Ok((Data::Rdma(Box::new(ends)), agreement)),
        Err(reason) => {
            let reason = fall_back(config.transport, hello.transport, reason)?;
            let socket = bring_data(control, data, config.handshake_timeout).await?;
            Ok((means.tcp(socket, reason), agreement))
        }
    }
}

enum Stumble {
    PeerAborted(String),
    Fault(HandshakeFault),
}

impl<T: Into<HandshakeFault>> From<T> for Stumble {
    fn from(fault: T) -> Self {
        Self::Fault(fault.into())
    }
}

async fn bring_data(
    control: &mut Control,
    data: impl Future<Output = Option<TcpStream>>,
    limit: Duration,
) -> Result<TcpStream, Stumble> {
    let data = tokio::select! {
        data = timeout(limit, data) => match data {
            Ok(Some(data)) => data,
            Ok(None) => return Err(closed().into()),
            Err(_) => return Err(HandshakeFault::Timeout(limit).into()),
        },
        message = control.next() => return Err(match message {
            Some(Ok(Message::Abort { reason, .. })) => Stumble::PeerAborted(reason),
            Some(Ok(_)) => HandshakeFault::Protocol("a message before the data connection").into(),
            Some(Err(error)) => error.into(),
            None => closed().into(),
        }),
    };
    control.send(Message::Ready).await?;
    Ok(data)
}

/// What this end can do over RDMA, and what it may.
struct Means {
    policy: TransportPolicy,
    rdma: Result<rdma::Ours, rdma::NoWay>,
}

impl Means {
    fn of(config: &StreamConfig) -> Self {
        let policy = config.transport;
        let rdma = if policy == TransportPolicy::Tcp {
            let reason = "TCP was asked for".to_owned();
            let hardware = false;
            Err(rdma::NoWay { reason, hardware })
        } else {
            rdma::Ours::look(config)
        };
        Self { policy, rdma }
    }

    fn offer(&self) -> Result<Vec<u8>, String> {
        let reason = |none: &rdma::NoWay| none.reason.clone();
        self.rdma.as_ref().map(rdma::Ours::offer).map_err(reason)
    }

    /// The way that both should try, or why there is none, and at which host.
    fn propose(&self, host: &str, theirs: &Hello) -> Result<Vec<u8>, String> {
        match (&self.rdma, &theirs.rdma) {
            (Ok(ours), Ok(offer)) => ours
                .propose(offer)
                .map_err(|reason| format!("{host}: {reason}")),
            (Err(none), _) => Err(format!("{host}: {}", none.reason)),
            (_, Err(reason)) => Err(format!("{}: {reason}", theirs.terms.host)),
        }
    }

    /// The queue pair of `way`, or why there is none.
    async fn establish(
        &self,
        control: &mut Control,
        way: Result<Vec<u8>, String>,
        dialer: bool,
        agreement: &Agreement,
    ) -> Result<Result<rdma::Ends, String>, HandshakeFault> {
        match (&self.rdma, way) {
            (_, Err(reason)) => Ok(Err(reason)),
            (Ok(ours), Ok(way)) => {
                // Boxed: the steps are rare, and would make every connection's future large.
                Box::pin(ours.establish(control, &way, dialer, agreement)).await
            }
            (Err(_), Ok(_)) => Err(HandshakeFault::Protocol("a way that was not offered")),
        }
    }

    fn tcp(&self, socket: TcpStream, reason: String) -> Data {
        let hardware = match &self.rdma {
            Ok(_) => true,
            Err(none) => none.hardware,
        };
        let is_fallback = hardware && self.policy == TransportPolicy::Auto;
        Data::Tcp {
            socket,
            reason,
            is_fallback,
        }
    }
}

/// TCP instead of RDMA, for this reason, unless an end insists.
fn fall_back(
    ours: TransportPolicy,
    theirs: Policy,
    reason: String,
) -> Result<String, HandshakeFault> {
    if ours == TransportPolicy::Rdma || theirs == Policy::Rdma {
        return Err(HandshakeFault::Transport(reason));
    }
    Ok(reason)
}

fn random() -> [u8; 32] {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes).expect("the system has random numbers once it has booted");
    bytes
}
