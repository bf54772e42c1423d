//! Listens for local programs, at the addresses of a TCP port or at a UNIX socket, and passes their connections into
//! the tunnel.

use std::{
    ffi::OsStr,
    fs, io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    os::unix::{ffi::OsStrExt, fs::FileTypeExt},
    path::{Path, PathBuf},
    task::{Context, Poll},
    time::Duration,
};

use rustix::fs::Mode;
use socket2::{Domain, SockAddr, Socket, Type};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream, UnixListener},
    time::{sleep, timeout},
};

use super::{
    flows::{FlowLabel, TunnelEvent, TunnelHandle},
    messages::{OpenTarget, RefusalKind},
    socket::{LocalSocket, close_in_order},
};
use crate::{
    forward::{
        policy::ForwardTarget,
        socks::{self, SocksFault, SocksReply},
        specs::{BindAddress, ListenAt},
    },
    threads,
};

/// The number of connections that wait to be accepted. The kernel reduces it to its own limit.
const BACKLOG: i32 = 4096;

/// Accepts connections of local programs.
#[derive(Debug)]
pub(crate) struct ForwardListener {
    /// The path of a UNIX socket. It is removed before the socket is closed: no other program finds a path that refuses
    /// it.
    path: Option<SocketPath>,
    sockets: Vec<ListenSocket>,
}

#[derive(Debug)]
enum ListenSocket {
    Tcp(TcpListener),
    Unix(UnixListener, PathBuf),
}

/// The path of a UNIX socket that this process has made. It is removed when this value is dropped.
#[derive(Debug)]
pub(super) struct SocketPath(PathBuf);

impl Drop for SocketPath {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

impl ForwardListener {
    /// Starts to listen.
    /// Dropping the future closes what it has opened.
    pub(crate) async fn bind(at: &ListenAt) -> Result<Self, String> {
        let listener = match at {
            ListenAt::Tcp { bind, port } => {
                let sockets = bind_tcp(bind, *port).await;
                sockets.map(|sockets| Self {
                    path: None,
                    sockets,
                })
            }
            ListenAt::Unix(path) => bind_unix(Path::new(OsStr::from_bytes(path))),
        };
        listener.map_err(|error| format!("cannot listen at {at}: {error}"))
    }

    /// Takes the path of a UNIX socket, which is otherwise removed with the listener.
    pub(super) fn take_path(&mut self) -> Option<SocketPath> {
        self.path.take()
    }

    /// Returns the port of TCP.
    pub(crate) fn port(&self) -> Option<u16> {
        self.sockets.iter().find_map(|socket| match socket {
            ListenSocket::Tcp(listener) => Some(listener.local_addr().ok()?.port()),
            ListenSocket::Unix(..) => None,
        })
    }

    /// Accepts the next connection, and returns it with the address of its program.
    /// Cancel safe.
    pub(super) async fn accept(&self) -> io::Result<(LocalSocket, String)> {
        std::future::poll_fn(|cx| self.poll_accept(cx)).await
    }

    fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<io::Result<(LocalSocket, String)>> {
        for socket in &self.sockets {
            match socket {
                ListenSocket::Tcp(listener) => {
                    if let Poll::Ready(accepted) = listener.poll_accept(cx) {
                        let from = |(socket, from): (_, SocketAddr)| {
                            (LocalSocket::from(socket), from.to_string())
                        };
                        return Poll::Ready(accepted.map(from));
                    }
                }
                ListenSocket::Unix(listener, path) => {
                    if let Poll::Ready(accepted) = listener.poll_accept(cx) {
                        let from = path.display().to_string();
                        return Poll::Ready(
                            accepted.map(|(socket, _)| (LocalSocket::Unix(socket), from)),
                        );
                    }
                }
            }
        }
        Poll::Pending
    }
}

/// Listens at all addresses of `bind`, on one port.
async fn bind_tcp(bind: &BindAddress, port: u16) -> io::Result<Vec<ListenSocket>> {
    let (v4, v6) = match bind {
        BindAddress::Loopback => (Ipv4Addr::LOCALHOST, Ipv6Addr::LOCALHOST),
        BindAddress::All => (Ipv4Addr::UNSPECIFIED, Ipv6Addr::UNSPECIFIED),
        BindAddress::Address(address) => {
            return Ok(vec![listen(SocketAddr::new(*address, port))?]);
        }
        BindAddress::Name(name) => {
            let addresses = threads::lookup_host(name, port).await?;
            return addresses.into_iter().map(listen).collect();
        }
    };
    let v4 = SocketAddr::new(IpAddr::V4(v4), port);
    let v6 = |port| SocketAddr::new(IpAddr::V6(v6), port);
    let first = match listen(v4) {
        Ok(first) => first,
        // A host may have IPv6 only.
        Err(error) if error.kind() == io::ErrorKind::AddrNotAvailable => {
            return Ok(vec![listen(v6(port))?]);
        }
        Err(error) => return Err(error),
    };
    let ListenSocket::Tcp(listener) = &first else {
        return Ok(vec![first]);
    };
    let taken = listener.local_addr()?.port();
    match listen(v6(taken)) {
        Ok(second) => Ok(vec![first, second]),
        // A host may have IPv4 only.
        Err(error) if is_without_ipv6(&error) => Ok(vec![first]),
        Err(error) => Err(error),
    }
}

fn is_without_ipv6(error: &io::Error) -> bool {
    let errno = rustix::io::Errno::from_io_error(error);
    let none = [
        rustix::io::Errno::AFNOSUPPORT,
        rustix::io::Errno::ADDRNOTAVAIL,
    ];
    errno.is_some_and(|errno| none.contains(&errno))
}

fn listen(address: SocketAddr) -> io::Result<ListenSocket> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    socket.set_reuse_address(true)?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(ListenSocket::Tcp(TcpListener::from_std(socket.into())?))
}

/// Listens at a path. A socket that a process has left behind there is replaced; nothing else is.
fn bind_unix(path: &Path) -> io::Result<ForwardListener> {
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    // Linux gives the file this mode: only its owner can connect, from the first moment on.
    rustix::fs::fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    let address = SockAddr::unix(path)?;
    match socket.bind(&address) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse && is_left_behind(path) => {
            fs::remove_file(path)?;
            socket.bind(&address)?;
        }
        bound => bound?,
    }
    let made = Some(SocketPath(path.to_owned()));
    socket.listen(BACKLOG)?;
    socket.set_nonblocking(true)?;
    let listener = UnixListener::from_std(socket.into())?;
    Ok(ForwardListener {
        path: made,
        sockets: vec![ListenSocket::Unix(listener, path.to_owned())],
    })
}

/// Returns true if the path is a socket at which no process listens.
fn is_left_behind(path: &Path) -> bool {
    let is_socket = fs::symlink_metadata(path).is_ok_and(|file| file.file_type().is_socket());
    let refuses = || {
        let connected = std::os::unix::net::UnixStream::connect(path);
        connected.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
    };
    is_socket && refuses()
}

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
    handle.end.own_path(&mut listener);
    let over = handle.end.over.clone();
    let handle = handle.clone();
    let accepting = async move {
        loop {
            match listener.accept().await {
                Ok((socket, from)) => {
                    let over = handle.end.over.clone();
                    let work = pass(socket, from, route.clone(), handle.clone());
                    threads::spawn(over.run_until_cancelled_owned(work));
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    };
    threads::spawn(over.run_until_cancelled_owned(accepting));
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
            (handle.end.observer)(TunnelEvent::NoRequest { from, reason });
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
