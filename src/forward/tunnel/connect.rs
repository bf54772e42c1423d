//! Connects to the target of a connection.

use std::{
    ffi::OsStr,
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    os::unix::ffi::OsStrExt,
    path::Path,
    time::Duration,
};

use futures::{StreamExt, stream::FuturesUnordered};
use tokio::{
    net::{TcpStream, UnixStream},
    time::sleep,
};

use super::{
    messages::{ForwardRefusal, RefusalKind},
    socket::LocalSocket,
};
use crate::{forward::policy::ForwardTarget, threads};

/// The time after which the next address of a name is tried, while the addresses before it have not answered: the value
/// of RFC 8305.
const STAGGER: Duration = Duration::from_millis(250);

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
            let addresses = threads::lookup_host(host, *port).await;
            let addresses = addresses.map_err(|error| unknown(host, &error))?;
            let connected = connect_first(&addresses).await;
            connected.map(LocalSocket::from)
        }
        ForwardTarget::Unix(path) => {
            let connected = UnixStream::connect(Path::new(OsStr::from_bytes(path))).await;
            connected.map(LocalSocket::Unix)
        }
    }
    .map_err(|error| ForwardRefusal::of(&error))
}

/// Connects to the first of these addresses that answers. The next one is tried when one fails or has not answered for
/// [`STAGGER`], and IPv4 and IPv6 take turns, as RFC 8305 says: an address that drops packets delays the connection by
/// that much only.
pub(super) async fn connect_first(addresses: &[SocketAddr]) -> io::Result<TcpStream> {
    let mut untried = in_turns(addresses).into_iter();
    let first = untried.next().map(TcpStream::connect);
    let mut connecting: FuturesUnordered<_> = first.into_iter().collect();
    let mut fault = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    loop {
        tokio::select! {
            Some(connected) = connecting.next() => match connected {
                Ok(socket) => return Ok(socket),
                // A host without IPv6 says more by its other addresses.
                Err(error) if error.kind() == io::ErrorKind::NetworkUnreachable && addresses.len() > 1 => {
                    fault = if fault.kind() == io::ErrorKind::NotFound { error } else { fault };
                }
                Err(error) => fault = error,
            },
            () = sleep(STAGGER), if untried.len() > 0 => {}
            else => return Err(fault),
        }
        connecting.extend(untried.next().map(TcpStream::connect));
    }
}

/// Returns the addresses so that those of both families take turns, beginning with the first.
fn in_turns(addresses: &[SocketAddr]) -> Vec<SocketAddr> {
    let is_like_first = |address: &&SocketAddr| address.is_ipv6() == addresses[0].is_ipv6();
    let (one, other): (Vec<_>, Vec<_>) = addresses.iter().partition(is_like_first);
    let (mut one, mut other) = (one.into_iter(), other.into_iter());
    let mut all = Vec::with_capacity(addresses.len());
    while all.len() < addresses.len() {
        all.extend(one.next().into_iter().chain(other.next()).copied());
    }
    all
}

/// Connects to a port of this host: at `address` if this host has it, otherwise or if nothing listens there at a
/// loopback address.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_families_take_turns() {
        let addresses = |text: &[&str]| -> Vec<SocketAddr> {
            text.iter().map(|text| text.parse().unwrap()).collect()
        };
        let sorted = addresses(&["[::1]:1", "[::2]:1", "[::3]:1", "1.0.0.1:1"]);
        let turns = addresses(&["[::1]:1", "1.0.0.1:1", "[::2]:1", "[::3]:1"]);
        assert_eq!(in_turns(&sorted), turns);
        assert_eq!(in_turns(&[]), []);
    }
}
