//! The listening end.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
};

use crate::{Error, Key, Listener, StreamConfig};

/// Listens on the first of `ports` that is free, or on any: at `address`, or at every one, of both families where
/// both are.
///
/// # Errors
///
/// Those of [`Listener::bind`].
///
/// # Panics
///
/// Outside a tokio runtime.
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
