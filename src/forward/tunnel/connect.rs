//! Connects to the target of a connection.

use std::{
    ffi::OsStr,
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    os::unix::ffi::OsStrExt,
    path::Path,
};

use tokio::net::{TcpStream, UnixStream};

use super::{
    messages::{ForwardRefusal, RefusalKind},
    socket::LocalSocket,
};
use crate::forward::target::ForwardTarget;

/// Connects to a target.
///
/// # Errors
///
/// Returns why the connection cannot be made.
///
/// # Cancel safety
///
/// Dropping the future closes what it has opened.
pub(super) async fn connect(target: &ForwardTarget) -> Result<LocalSocket, ForwardRefusal> {
    match target {
        ForwardTarget::Tcp { host, port } => {
            let addresses = tokio::net::lookup_host((host.as_str(), *port)).await;
            let addresses: Vec<_> = addresses.map_err(|error| unknown(host, &error))?.collect();
            let connected = TcpStream::connect(&addresses[..]).await;
            connected.map(LocalSocket::from)
        }
        ForwardTarget::Unix(path) => {
            let connected = UnixStream::connect(Path::new(OsStr::from_bytes(path))).await;
            connected.map(LocalSocket::Unix)
        }
    }
    .map_err(|error| ForwardRefusal::of(&error))
}

/// Connects to a port of this host: at `address` if this host has it, otherwise or if nothing listens there at a loopback address.
///
/// # Errors
///
/// Returns why the connection cannot be made.
///
/// # Cancel safety
///
/// Dropping the future closes what it has opened.
pub(super) async fn connect_own(address: IpAddr, port: u16) -> Result<LocalSocket, ForwardRefusal> {
    let interfaces = if_addrs::get_if_addrs().unwrap_or_default();
    let own = interfaces.iter().map(if_addrs::Interface::ip);
    let named = own.filter(|own| *own == address.to_canonical());
    let loopback = [
        IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(Ipv6Addr::LOCALHOST),
    ];
    let all = named.chain(loopback);
    let addresses: Vec<_> = all.map(|address| SocketAddr::new(address, port)).collect();
    let mut first = None;
    for address in addresses {
        match TcpStream::connect(address).await {
            Ok(socket) => return Ok(LocalSocket::from(socket)),
            Err(error) => first = first.or(Some(ForwardRefusal::of(&error))),
        }
    }
    Err(first.unwrap_or_else(ForwardRefusal::full))
}

fn unknown(host: &str, error: &io::Error) -> ForwardRefusal {
    ForwardRefusal {
        kind: RefusalKind::Unknown,
        text: format!("cannot find {host}: {error}"),
    }
}
