//! The dialer's side of a negotiation.

use std::{io, time::Duration};

use futures::{SinkExt, StreamExt};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::{Instant, sleep},
};

use super::{DataCarrier, LocalTransports, Negotiated, abort_negotiation, fall_back};
use crate::{
    HandshakeFault, StreamConfig,
    config::LONGEST_LIMIT,
    transport::{
        connect::{
            dial::PAUSE,
            handshake::{self, FirstMessage},
            preamble::{self, CHALLENGE_BYTES, Preamble, PreambleKind},
        },
        control::{
            connection::{Control, closed},
            message::{Hello, Message, Token},
            noise::Role,
            terms,
        },
    },
};

/// Negotiates a stream on a fresh connection, from its first byte to what carries the data. `open` opens one more
/// connection to the same acceptor.
pub(crate) async fn dial<F>(
    socket: TcpStream,
    peer: &str,
    first: FirstMessage,
    config: &StreamConfig,
    open: impl Fn() -> F,
) -> Result<Negotiated, HandshakeFault>
where
    F: Future<Output = io::Result<TcpStream>>,
{
    let key_id = first.key_id;
    let (mut control, seeds) = handshake::initiate(socket, first).await?;
    let (ours, transports) = (terms::local_terms(config), LocalTransports::detect(config));
    let hello = Hello {
        terms: ours.clone(),
        transport: config.transport,
        rdma: transports.offer(),
    };
    control.send(Message::Hello(hello)).await?;
    let welcome = match control.next().await.ok_or_else(closed)?? {
        Message::Welcome(welcome) => welcome,
        Message::Abort { reason, .. } => return Err(HandshakeFault::Refused(reason)),
        _ => return Err(HandshakeFault::Protocol("neither a welcome nor a refusal")),
    };
    let agreement = terms::agree(&ours, &welcome.terms)?;
    let proposal = welcome.rdma;
    let data = match transports
        .establish(&mut control, proposal, Role::Dialer, &agreement)
        .await?
    {
        Ok(established) => DataCarrier::Rdma(Box::new(established)),
        Err(reason) => {
            let reason = fall_back(config.transport, welcome.transport, reason)?;
            match dial_data(&mut control, open, &welcome.token, config).await {
                Ok(socket) => transports.tcp(socket, reason),
                Err(fault) => {
                    abort_negotiation(control, &fault).await;
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
        key_id,
        peer: peer.to_owned(),
    })
}

/// Opens the data connection, and waits until the acceptor has it.
async fn dial_data<F>(
    control: &mut Control,
    open: impl Fn() -> F,
    token: &Token,
    config: &StreamConfig,
) -> Result<TcpStream, HandshakeFault>
where
    F: Future<Output = io::Result<TcpStream>>,
{
    let data = tokio::select! {
        biased;
        message = control.next() => return Err(match message.ok_or_else(closed)?? {
            Message::Abort { reason, .. } => HandshakeFault::Refused(reason),
            _ => HandshakeFault::Protocol("a message before the data connection"),
        }),
        data = open_data(open, token, config.retry_for) => data?,
    };
    await_ready(control, &data).await?;
    Ok(data)
}

/// Opens the data connection, and proves that it belongs to the stream. The acceptor may push the connection out before
/// it has read whose it is; then this tries again for `limit`.
async fn open_data<F>(open: impl Fn() -> F, token: &Token, limit: Duration) -> io::Result<TcpStream>
where
    F: Future<Output = io::Result<TcpStream>>,
{
    let deadline = Instant::now() + limit.min(LONGEST_LIMIT);
    loop {
        let mut data = open().await?;
        match read_challenge(&mut data, token).await {
            Ok(challenge) => {
                data.write_all(&preamble::proof(token, &challenge)).await?;
                return Ok(data);
            }
            Err(error) if Instant::now() + PAUSE >= deadline => return Err(error),
            Err(_) => sleep(PAUSE).await,
        }
    }
}

/// Tells the acceptor which stream the connection is for, and reads its challenge.
async fn read_challenge(data: &mut TcpStream, token: &Token) -> io::Result<[u8; CHALLENGE_BYTES]> {
    data.set_nodelay(true)?;
    let preamble = Preamble::encode(PreambleKind::Data);
    let opening = [&preamble[..], &preamble::label(token)].concat();
    data.write_all(&opening).await?;
    let mut challenge = [0; CHALLENGE_BYTES];
    data.read_exact(&mut challenge).await?;
    Ok(challenge)
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
