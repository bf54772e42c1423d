//! The acceptor's side of a negotiation.

use std::future::Future;

use futures::{SinkExt, StreamExt};
use tokio::{net::TcpStream, time::timeout};

use super::{DataCarrier, LocalTransports, Negotiated, abort_negotiation, fall_back};
use crate::{
    Error, HandshakeFault, StreamConfig,
    transport::{
        connect::{handshake::Authenticated, preamble},
        control::{
            connection::{Control, closed},
            message::{Hello, Message, Token, Welcome},
            noise::Role,
            terms::{self, Agreement},
        },
    },
};

/// Negotiates a stream with an authenticated dialer, within the time limit of a handshake. `data_connection` waits for
/// the connection that proves that it has a token. After a failure this end holds no memory for the dialer any more.
///
/// # Errors
///
/// The reason why there is no stream, which the dialer has been sent.
pub(crate) async fn accept<F>(
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
        key_id,
    } = authenticated;
    let peer = hello.terms.host.clone();
    let limit = config.handshake_timeout;
    // Boxed: it is many times larger than the timer, and what it has pinned is freed when it is dropped.
    let negotiating = Box::pin(negotiate_data(
        &mut control,
        &hello,
        config,
        data_connection,
    ));
    let late = |_| Err(HandshakeFault::Timeout(limit).into());
    match timeout(limit, negotiating).await.unwrap_or_else(late) {
        Ok((data, agreement)) => Ok(Negotiated {
            control,
            data,
            agreement,
            seeds,
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
    data_connection: impl FnOnce(Token) -> F,
) -> Result<(DataCarrier, Agreement), AcceptError>
where
    F: Future<Output = Option<TcpStream>>,
{
    let (terms, transports) = (terms::local_terms(config), LocalTransports::detect(config));
    let agreement = terms::agree(&terms, &hello.terms)?;
    let proposal = transports.propose(&terms.host, hello);
    if let Err(reason) = &proposal {
        fall_back(config.transport, hello.transport, reason.clone())?;
    }
    let token = Token(preamble::random());
    let data = data_connection(token.clone());
    let answer = Welcome {
        terms,
        transport: config.transport,
        rdma: proposal.clone(),
        token,
    };
    control.send(Message::Welcome(answer)).await?;
    match transports
        .establish(control, proposal, Role::Acceptor, &agreement)
        .await?
    {
        Ok(established) => Ok((DataCarrier::Rdma(Box::new(established)), agreement)),
        Err(reason) => {
            let reason = fall_back(config.transport, hello.transport, reason)?;
            let socket = bring_data(control, data).await?;
            Ok((transports.tcp(socket, reason), agreement))
        }
    }
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

async fn bring_data(
    control: &mut Control,
    data: impl Future<Output = Option<TcpStream>>,
) -> Result<TcpStream, AcceptError> {
    let data = tokio::select! {
        data = data => match data {
            Some(data) => data,
            None => return Err(closed().into()),
        },
        message = control.next() => return Err(match message {
            Some(Ok(Message::Abort { reason, .. })) => AcceptError::PeerAborted(reason),
            Some(Ok(_)) => HandshakeFault::Protocol("a message before the data connection").into(),
            Some(Err(error)) => error.into(),
            None => closed().into(),
        }),
    };
    control.send(Message::Ready).await?;
    Ok(data)
}
