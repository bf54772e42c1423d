//! Opens a listener on a range of ports.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
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
pub(crate) async fn listen(
    address: Option<IpAddr>,
    ports: Option<(u16, u16)>,
    key: &Key,
    config: &StreamConfig,
) -> Result<Listener, Error> {
    let on =
        |address: IpAddr, port: u16| Listener::bind((address, port), key.clone(), config.clone());
    let open = async |port| match address {
        Some(address) => on(address, port).await,
        None => match on(Ipv6Addr::UNSPECIFIED.into(), port).await {
            Err(error) if !is_taken(&error) => on(Ipv4Addr::UNSPECIFIED.into(), port).await,
            opened => opened,
        },
    };
    let (first, last) = ports.unwrap_or((0, 0));
    let mut opened = open(first).await;
    for port in first..last {
        match opened {
            Err(Error::Listen { .. }) => opened = open(port + 1).await,
            _ => break,
        }
    }
    opened
}

/// Returns true if the port is in use, or this user may not open it: another address of this host does not help.
fn is_taken(error: &Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::AddrInUse | io::ErrorKind::PermissionDenied
    )
}
