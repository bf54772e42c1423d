//! Opens a listener on a range of ports.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
};

use crate::{Error, Key, Listener, StreamConfig};

/// Listens on the first free port of the range `ports`, or on any free port for `None`.
///
/// The listener accepts connections at `address`, or for `None` at every address of this host: of IPv6 and IPv4
/// if the host has both, otherwise of IPv4.
///
/// # Errors
///
/// Fails as [`Listener::bind`] does, for the last port that was tried.
///
/// # Panics
///
/// Panics outside a tokio runtime.
pub(crate) fn listen(
    address: Option<IpAddr>,
    ports: Option<(u16, u16)>,
    key: &Key,
    config: &StreamConfig,
) -> Result<Listener, Error> {
    let on = |address: IpAddr, port| {
        let address = SocketAddr::from((address, port));
        Listener::bind(address, key.clone(), config.clone())
    };
    let open = |port| match address {
        Some(address) => on(address, port),
        None => on(Ipv6Addr::UNSPECIFIED.into(), port).or_else(|error| match error.kind() {
            io::ErrorKind::AddrInUse | io::ErrorKind::PermissionDenied => Err(error),
            _ => on(Ipv4Addr::UNSPECIFIED.into(), port),
        }),
    };
    let (first, last) = ports.unwrap_or((0, 0));
    let mut opened = open(first);
    for port in first..last {
        match opened {
            Err(Error::Listen { .. }) => opened = open(port + 1),
            _ => break,
        }
    }
    opened
}
