//! How a peer is reached: the addresses of this host, a listener on a range of ports, a dialer that tries several
//! addresses, and tickets.

mod dial;
pub(crate) mod ticket;

use std::{
    env, io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

pub(crate) use self::dial::{FailedAddress, Unreached, dial, first_answering, is_final};
use crate::{Error, Key, Listener, StreamConfig};

/// Listens on the first free port of the range `ports`, or on any free port for `None`.
///
/// The listener accepts connections at `address`, or for `None` at every address of this host: of IPv6 and IPv4
/// if the host has both, otherwise of IPv4.
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

/// The most addresses of a host that its peers try. A host with more names the likeliest ones.
pub(crate) const MAX_ADDRESSES: usize = 16;

/// Returns the addresses of this host that another host can use, at most [`MAX_ADDRESSES`]. The first is the address at
/// which ssh reached this host, if there is one; IPv4 addresses follow, then IPv6 addresses.
pub(crate) fn addresses() -> Vec<IpAddr> {
    let interfaces = if_addrs::get_if_addrs().unwrap_or_default();
    let interfaces = interfaces.iter().map(if_addrs::Interface::ip);
    let connection = env::var("SSH_CONNECTION").unwrap_or_default();
    usable(ranked(interfaces.collect(), server_address(&connection)))
}

/// Returns the first [`MAX_ADDRESSES`] addresses that another host can use, each once. A host filters its own list with
/// this function. The receiver filters the list as well, because the host may be hostile.
pub(crate) fn usable(addresses: impl IntoIterator<Item = IpAddr>) -> Vec<IpAddr> {
    let mut usable = Vec::new();
    for address in addresses {
        if usable.len() == MAX_ADDRESSES {
            break;
        }
        if is_reachable(address) && !usable.contains(&address) {
            usable.push(address);
        }
    }
    usable
}

/// Returns the address at which ssh reached this host, from the text of `SSH_CONNECTION`: the client's address
/// and port, then the server's.
fn server_address(connection: &str) -> Option<IpAddr> {
    let address = connection.split(' ').nth(2)?.parse::<IpAddr>().ok()?;
    Some(address.to_canonical())
}

/// Returns the addresses of the interfaces in the order of their use: `first`, then IPv4, then IPv6.
///
/// `first` is left out if no interface has it: programs that run elsewhere, in a container for example, inherit
/// `SSH_CONNECTION` too.
fn ranked(interfaces: Vec<IpAddr>, first: Option<IpAddr>) -> Vec<IpAddr> {
    let mut addresses = interfaces;
    addresses.sort_by_key(|address| (Some(*address) != first, address.is_ipv6()));
    addresses
}

fn is_reachable(address: IpAddr) -> bool {
    // An IPv4 address may be written as an IPv6 address.
    let address = address.to_canonical();
    let is_link_local = match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    };
    !(is_link_local || address.is_loopback() || address.is_unspecified() || address.is_multicast())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses(text: &str) -> Vec<IpAddr> {
        text.split_whitespace()
            .map(|word| word.parse().unwrap())
            .collect()
    }

    #[test]
    fn the_address_that_ssh_used_comes_first() {
        let all = "127.0.0.1 fd00::1 192.168.0.1 ::1 10.0.0.1 169.254.0.9 fe80::1 10.0.0.1";
        let first = server_address("10.0.0.9 4711 10.0.0.1 22");
        let ranking = usable(ranked(addresses(all), first));
        assert_eq!(ranking, addresses("10.0.0.1 192.168.0.1 fd00::1"));
        let mapped = server_address("::ffff:10.0.0.9 4711 ::ffff:10.0.0.1 22");
        assert_eq!(mapped, first);
    }

    #[test]
    fn an_address_from_elsewhere_is_left_out() {
        let here = addresses("192.168.0.1");
        for connection in ["", "nonsense", "a b c d", "10.0.0.9 4711 10.0.0.1 22"] {
            assert_eq!(ranked(here.clone(), server_address(connection)), here);
        }
    }

    #[test]
    fn a_hostile_host_names_no_more_than_sixteen_addresses_and_none_of_its_peers_own() {
        let loopback = addresses("127.0.0.1 ::1 0.0.0.0 169.254.1.1 224.0.0.1 ::ffff:127.0.0.1");
        assert!(usable(loopback).is_empty());
        let many =
            (0..3000_u32).map(|number| IpAddr::from((0x0a00_0000 + number / 2).to_be_bytes()));
        let few = usable(many);
        assert_eq!(few.len(), MAX_ADDRESSES);
        assert_eq!(few[15], IpAddr::from([10, 0, 0, 15]));
    }

    #[test]
    fn what_is_told_can_be_reached() {
        assert!(
            super::addresses()
                .iter()
                .all(|address| is_reachable(*address))
        );
    }
}
