//! Passes the connections that a listener accepts into the tunnel.

use std::{io, time::Duration};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::{sleep, timeout},
};

use super::{
    handle::TunnelHandle,
    listener::ForwardListener,
    messages::{OpenTarget, RefusalKind},
    shared::{FlowLabel, TunnelEvent},
    socket::{LocalSocket, close_in_order},
};
use crate::forward::{
    socks::{self, SocksFault, SocksReply},
    target::ForwardTarget,
};

/// The pause after an accept that failed, because no descriptors are left for example: the connections wait.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// The time that a program may take to say what it wants from a SOCKS proxy.
const SOCKS_LIMIT: Duration = Duration::from_secs(30);

/// What accepted connections are connected to.
#[derive(Debug, Clone)]
pub(crate) enum ListenRoute {
    /// `-L`: one target at the other end.
    To(ForwardTarget),
    /// `-D`: the target that each connection asks for, by SOCKS.
    Socks,
    /// `-R`: what the other end has for its listener of this number.
    Remote(u32),
}

/// Accepts connections until the tunnel has ended.
pub(super) fn start(mut listener: ForwardListener, route: ListenRoute, handle: &TunnelHandle) {
    handle.shared.own_path(&mut listener);
    let over = handle.shared.over.clone();
    let handle = handle.clone();
    let accepting = async move {
        loop {
            match listener.accept().await {
                Ok((socket, from)) => {
                    let over = handle.shared.over.clone();
                    let work = pass(socket, from, route.clone(), handle.clone());
                    tokio::spawn(over.run_until_cancelled_owned(work));
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    };
    tokio::spawn(over.run_until_cancelled_owned(accepting));
}

/// Passes one connection into the tunnel. It is reset if it is refused, or if the tunnel ends before.
async fn pass(socket: LocalSocket, from: String, route: ListenRoute, handle: TunnelHandle) {
    let (target, to) = match route {
        ListenRoute::To(target) => {
            let to = target.to_string();
            (OpenTarget::Connect(target), to)
        }
        ListenRoute::Remote(listener) => {
            let from = from.clone();
            let to = "the other end".to_owned();
            (OpenTarget::Accepted { listener, from }, to)
        }
        ListenRoute::Socks => return pass_socks(socket, from, handle).await,
    };
    if let Ok(flow) = handle.open(&target, FlowLabel { from, to }).await {
        flow.attach(socket);
    }
}

/// Passes one connection to the target that it asks for.
async fn pass_socks(socket: LocalSocket, from: String, handle: TunnelHandle) {
    let LocalSocket::Tcp(mut socket) = socket else {
        return;
    };
    let asking = timeout(SOCKS_LIMIT, asked_target(&mut socket));
    let asked = asking
        .await
        .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
    let target = match asked {
        Ok(target) => target,
        Err(error) => {
            let reason = error.to_string();
            (handle.shared.observer)(TunnelEvent::NoRequest { from, reason });
            return;
        }
    };
    let label = FlowLabel {
        from,
        to: target.to_string(),
    };
    let opened = handle.open(&OpenTarget::Connect(target), label).await;
    let reply = match &opened {
        Ok(_) => SocksReply::Succeeded,
        Err(refusal) => {
            close_in_order(&socket);
            socks_reply(refusal.kind)
        }
    };
    if socket.write_all(&reply.bytes()).await.is_ok() {
        if let Ok(flow) = opened {
            flow.attach(LocalSocket::Tcp(socket));
        }
    }
}

/// Reads what a program asks for, and not a byte more: what follows belongs to the target.
async fn asked_target(socket: &mut TcpStream) -> io::Result<ForwardTarget> {
    let mut received = Vec::new();
    loop {
        match socks::parse_greeting(&received) {
            Ok(Some(_)) => break,
            Ok(None) => received.push(socket.read_u8().await?),
            Err(fault) => return refuse(socket, &fault).await,
        }
    }
    socket.write_all(&socks::NO_AUTHENTICATION).await?;
    received.clear();
    loop {
        match socks::parse_request(&received) {
            Ok(Some((target, _))) => return Ok(target),
            Ok(None) => received.push(socket.read_u8().await?),
            Err(fault) => return refuse(socket, &fault).await,
        }
    }
}

async fn refuse<T>(socket: &mut TcpStream, fault: &SocksFault) -> io::Result<T> {
    close_in_order(socket);
    socket.write_all(&fault.answer()).await?;
    Err(io::Error::other(fault.to_string()))
}

fn socks_reply(kind: RefusalKind) -> SocksReply {
    match kind {
        RefusalKind::Refused => SocksReply::Refused,
        RefusalKind::Unreachable => SocksReply::NetworkUnreachable,
        RefusalKind::HostUnreachable | RefusalKind::Unknown | RefusalKind::TimedOut => {
            SocksReply::HostUnreachable
        }
        RefusalKind::Forbidden => SocksReply::NotAllowed,
        RefusalKind::Full | RefusalKind::Other => SocksReply::Failed,
    }
}

#[cfg(test)]
mod tests {
    use super::{super::messages::ForwardRefusal, *};

    #[test]
    fn a_socks_client_gets_the_number_of_the_reason() {
        let reply = |kind: io::ErrorKind| socks_reply(ForwardRefusal::of(&kind.into()).kind) as u8;
        assert_eq!(reply(io::ErrorKind::NetworkUnreachable), 3);
        assert_eq!(reply(io::ErrorKind::HostUnreachable), 4);
        assert_eq!(reply(io::ErrorKind::TimedOut), 4);
        assert_eq!(reply(io::ErrorKind::ConnectionRefused), 5);
    }
}
