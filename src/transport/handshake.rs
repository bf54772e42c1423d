//! From a fresh TCP connection to an authenticated control connection with agreed terms.
//!
//! ```text
//! dialer                                    acceptor
//!   preamble, Noise message 1  ───────────►   wrong key, wrong version: says so, closes
//!                              ◄───────────   preamble, Noise message 2
//!   Hello                      ───────────►   only now the dialer is believed
//!                              ◄───────────   Welcome (with a token) or Reject
//!   second connection: preamble, token  ──►
//!                              ◄───────────   Ready
//! ```

use std::{io, sync::Arc, time::Duration};

use futures::{SinkExt, StreamExt};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};
use tokio_util::codec::Framed;

use super::{
    codec::{Codec, ControlError},
    control::{self, Control},
    message::{Hello, Message, Token, Welcome},
    noise::{self, HANDSHAKE_BYTES, Initiator},
    preamble::{Kind, PREAMBLE_BYTES, Preamble},
    terms::{self, Agreement},
    wire::PROTOCOL_VERSION,
};
use crate::{Error, HandshakeFault, Key, StreamConfig};

/// A stream that both ends have agreed on, before its halves and tasks exist.
pub(crate) struct Negotiated {
    /// The authenticated control connection.
    pub(crate) control: Control,
    /// The data connection.
    pub(crate) data: TcpStream,
    /// What was agreed.
    pub(crate) agreement: Agreement,
    /// Where the chains begin: this end's sending direction, then its receiving one.
    pub(crate) seeds: [u64; 2],
    /// The peer's name for messages.
    pub(crate) peer: String,
    /// Why the data goes the way it goes.
    pub(crate) reason: String,
}

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

fn closed() -> HandshakeFault {
    io::Error::new(io::ErrorKind::UnexpectedEof, "closed by the other end").into()
}

// --- the dialer's side -----------------------------------------------------------------------

/// The dialer's side on a fresh connection.
pub(crate) async fn dial(
    mut socket: TcpStream,
    peer: &str,
    key: &Key,
    config: &StreamConfig,
) -> Result<Negotiated, HandshakeFault> {
    socket.set_nodelay(true)?;
    let address = socket.peer_addr()?;
    let preamble = Preamble::encode(Kind::Control);
    let (initiator, first) = Initiator::start(key, &preamble);
    socket.write_all(&[&preamble[..], &first].concat()).await?;
    let session = read_reply(&mut socket, initiator).await?;
    let [to_acceptor, to_dialer] = session.seeds;
    let mut control = Framed::new(socket, Codec(session));

    let ours = terms::ours(config);
    let hello = Hello {
        terms: ours.clone(),
        transport: config.transport.into(),
    };
    control.send(Message::Hello(hello)).await?;
    let welcome = match control.next().await.ok_or_else(closed)?? {
        Message::Welcome(welcome) => welcome,
        Message::Reject(reason) => return Err(HandshakeFault::Refused(reason)),
        _ => return Err(HandshakeFault::Protocol("neither a welcome nor a refusal")),
    };
    let agreement = terms::agree(&ours, &welcome.terms)?;
    let data = open_data(address, &welcome.token).await?;
    match await_ready(&mut control, &data).await {
        Ok(()) => {}
        Err(fault) => {
            give_up(control, &fault).await;
            return Err(fault);
        }
    }
    let (seeds, reason) = ([to_acceptor, to_dialer], welcome.reason);
    Ok(Negotiated {
        control,
        data,
        agreement,
        seeds,
        peer: peer.to_owned(),
        reason,
    })
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
        Some(Kind::WrongKey) => Err(HandshakeFault::Key),
        Some(Kind::Reply) => {
            let mut reply = [0; HANDSHAKE_BYTES];
            socket.read_exact(&mut reply).await?;
            initiator.finish(&reply).map_err(|_| HandshakeFault::Key)
        }
        _ => Err(HandshakeFault::Protocol("an answer of an unknown kind")),
    }
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
            Message::Reject(reason) | Message::Abort { reason, .. } => {
                Err(HandshakeFault::Refused(reason))
            }
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
    control::close(control.into_inner()).await;
}

// --- the acceptor's side ---------------------------------------------------------------------

/// A dialer that has proved that it has the key, and what it wants.
pub(crate) struct Authenticated {
    control: Control,
    hello: Hello,
    seeds: [u64; 2],
}

/// The acceptor's side of a control connection, up to the point where the dialer is believed.
/// `preamble` has been read from the connection already.
///
/// # Errors
///
/// Of a stranger, or of the network: of no interest to the user of a listener.
pub(crate) async fn authenticate(
    mut socket: TcpStream,
    preamble: [u8; PREAMBLE_BYTES],
    key: &Key,
) -> Result<Authenticated, HandshakeFault> {
    // Before anything else is read: how much follows is up to their version.
    let theirs = Preamble::decode(preamble).map_or(PROTOCOL_VERSION, |p| p.version);
    if theirs != PROTOCOL_VERSION {
        refuse(socket, Kind::WrongVersion).await;
        return Err(HandshakeFault::Version {
            ours: PROTOCOL_VERSION,
            theirs,
        });
    }
    let mut first = [0; HANDSHAKE_BYTES];
    socket.read_exact(&mut first).await?;
    let Ok((session, reply)) = noise::respond(key, &preamble, &first) else {
        refuse(socket, Kind::WrongKey).await;
        return Err(HandshakeFault::Key);
    };
    socket
        .write_all(&[&Preamble::encode(Kind::Reply)[..], &reply].concat())
        .await?;
    let [to_acceptor, to_dialer] = session.seeds;
    let mut control = Framed::new(socket, Codec(session));
    match control.next().await.ok_or_else(closed)?? {
        Message::Hello(hello) => Ok(Authenticated {
            control,
            hello,
            seeds: [to_dialer, to_acceptor],
        }),
        _ => Err(HandshakeFault::Protocol("a first message that is no hello")),
    }
}

async fn refuse(mut socket: TcpStream, kind: Kind) {
    if socket.write_all(&Preamble::encode(kind)).await.is_ok() {
        control::close(socket).await;
    }
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
    let limit = config.handshake_timeout;
    let terms = terms::ours(config);
    let agreed = terms::agree(&terms, &hello.terms).and_then(|agreement| {
        Ok((
            agreement,
            terms::transport(config.transport, hello.transport)?,
        ))
    });
    let (agreement, reason) = match agreed {
        Ok(agreed) => agreed,
        Err(fault) => {
            let _ = control.send(Message::Reject(fault.to_string())).await;
            control::close(control.into_inner()).await;
            return Err(Error::Handshake { peer, fault });
        }
    };
    let reason = reason.to_owned();
    let token = Token(random());
    let data = data_connection(token.clone());
    let answer = Welcome {
        terms,
        reason: reason.clone(),
        token,
    };
    match bring_data(&mut control, answer, data, limit).await {
        Ok(data) => Ok(Negotiated {
            control,
            data,
            agreement,
            seeds,
            peer,
            reason,
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
    answer: Welcome,
    data: impl Future<Output = Option<TcpStream>>,
    limit: Duration,
) -> Result<TcpStream, Stumble> {
    control.send(Message::Welcome(answer)).await?;
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

fn random() -> [u8; 32] {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes).expect("the system has random numbers once it has booted");
    bytes
}
