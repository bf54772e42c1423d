//! The dialer's side of a negotiation.

use std::{io, net::SocketAddr};

use futures::{SinkExt, StreamExt};
use tokio::{io::AsyncWriteExt, net::TcpStream};

use super::{
    DataCarrier, Negotiated, abort_negotiation, fall_back, local_transports::LocalTransports,
};
use crate::{
    HandshakeFault, Key, StreamConfig,
    transport::{
        connect::{
            handshake::{self, closed},
            preamble::{Preamble, PreambleKind},
        },
        control::{
            codec::Control,
            message::{Hello, Message, Token},
            terms,
        },
    },
};

/// Negotiates a stream on a fresh connection, from its first byte to what carries the data.
pub(crate) async fn dial(
    socket: TcpStream,
    peer: &str,
    key: &Key,
    config: &StreamConfig,
) -> Result<Negotiated, HandshakeFault> {
    let address = socket.peer_addr()?;
    let (mut control, seeds) = handshake::initiate(socket, key).await?;
    let (ours, means) = (terms::local_terms(config), LocalTransports::detect(config));
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
        Ok(ends) => DataCarrier::Rdma(Box::new(ends)),
        Err(reason) => {
            let reason = fall_back(config.transport, welcome.transport, reason)?;
            match dial_data(&mut control, address, &welcome.token).await {
                Ok(socket) => means.tcp(socket, reason),
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
    data.write_all(&[&Preamble::encode(PreambleKind::Data)[..], &token.0].concat())
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
