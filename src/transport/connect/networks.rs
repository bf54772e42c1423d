//! The networks that two hosts share, over which the data connections of a stream are spread.
//!
//! The acceptor names its addresses, under Noise. The dialer uses those that lie in a network of one of its own
//! interfaces, one for each interface. So no connection goes through a router on a guess, and none to a bridge that both
//! hosts have for their containers. Each end leaves out interfaces of another speed than that of the control connection:
//! chunks go to the rails in turn, and a slow rail would slow down all of them. An address that leads to another machine
//! does no harm, since a data connection has to prove whose it is.

use std::{
    fs, io,
    net::{IpAddr, SocketAddr},
};

use tokio::net::{TcpSocket, TcpStream};

/// The most addresses that an acceptor names, and that a dialer looks at.
const MAX_ADDRESSES: usize = 16;

/// One network that both hosts share: the address of this host in it, and that of the peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SharedNetwork {
    here: IpAddr,
    there: IpAddr,
}

impl SharedNetwork {
    /// Connects to `port` of the peer.
    pub(super) async fn connect(self, port: u16) -> io::Result<TcpStream> {
        let socket = match self.here {
            IpAddr::V4(_) => TcpSocket::new_v4(),
            IpAddr::V6(_) => TcpSocket::new_v6(),
        }?;
        socket.bind(SocketAddr::new(self.here, 0))?;
        socket.connect(SocketAddr::new(self.there, port)).await
    }
}

/// Returns the addresses of this host on interfaces that are as fast as that of `socket`, which comes first.
pub(super) fn addresses(socket: &TcpStream) -> Vec<IpAddr> {
    let Ok(local) = socket.local_addr() else {
        return Vec::new();
    };
    let alike = alike(local.ip().to_canonical());
    let addresses = alike.iter().map(|interface| interface.address);
    addresses.take(MAX_ADDRESSES).collect()
}

/// Returns the networks beside that of `socket`, which leads to an acceptor with the addresses `theirs`.
pub(super) fn beside(socket: &TcpStream, theirs: &[IpAddr]) -> Vec<SharedNetwork> {
    let (Ok(local), Ok(peer)) = (socket.local_addr(), socket.peer_addr()) else {
        return Vec::new();
    };
    let (local, peer) = (local.ip().to_canonical(), peer.ip().to_canonical());
    let theirs = &theirs[..theirs.len().min(MAX_ADDRESSES)];
    // Of one machine, or behind a proxy or a translation of addresses: the other addresses may lead elsewhere.
    if theirs.is_empty() || local == peer || !theirs.contains(&peer) {
        return Vec::new();
    }
    shared(&alike(local), theirs, peer)
}

/// An address of this host, with its interface and the length of the prefix of its network.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Own {
    interface: String,
    address: IpAddr,
    prefix: u8,
}

impl Own {
    fn holds(&self, address: IpAddr) -> bool {
        network_of(self.address, self.prefix) == network_of(address, self.prefix)
    }
}

/// Returns the addresses on interfaces that are up and as fast as that of `first`, which comes first; none if no
/// interface has it.
fn alike(first: IpAddr) -> Vec<Own> {
    let mut own = own();
    let Some(place) = own.iter().position(|one| one.address == first) else {
        return Vec::new();
    };
    own.swap(0, place);
    let wanted = speed(&own[0].interface);
    own.retain(|one| one.address.is_ipv4() == first.is_ipv4() && speed(&one.interface) == wanted);
    own
}

/// Returns the addresses of this host that another host can use, on interfaces that are up.
#[cfg(feature = "cli")]
fn own() -> Vec<Own> {
    use if_addrs::{IfAddr, IfOperStatus, Interface};

    let is_usable = |one: &Interface| {
        let is_up = matches!(one.oper_status, IfOperStatus::Up | IfOperStatus::Unknown);
        is_up && !one.is_loopback() && !one.is_link_local()
    };
    let own = |one: Interface| Own {
        address: one.ip(),
        prefix: match &one.addr {
            IfAddr::V4(address) => address.prefixlen,
            IfAddr::V6(address) => address.prefixlen,
        },
        interface: one.name,
    };
    let interfaces = if_addrs::get_if_addrs().unwrap_or_default().into_iter();
    interfaces.filter(is_usable).map(own).collect()
}

/// The library alone does not depend on a crate that lists interfaces, and leaves all rails on one network.
#[cfg(not(feature = "cli"))]
fn own() -> Vec<Own> {
    Vec::new()
}

/// Returns the speed of an interface in Mbit/s; none if it does not know its own, as many virtual ones.
fn speed(interface: &str) -> Option<u32> {
    let text = fs::read_to_string(format!("/sys/class/net/{interface}/speed")).ok()?;
    text.trim().parse().ok().filter(|speed| *speed > 0)
}

/// Returns the networks of `ours`, the first of which the control connection to `peer` uses, that hold one of `theirs`.
fn shared(ours: &[Own], theirs: &[IpAddr], peer: IpAddr) -> Vec<SharedNetwork> {
    let Some(first) = ours.first() else {
        return Vec::new();
    };
    let mut used = vec![first];
    let mut networks = Vec::new();
    for own in ours {
        let is_used = |one: &&Own| one.interface == own.interface || one.holds(own.address);
        if used.iter().any(is_used) || own.holds(peer) {
            continue;
        }
        let is_own = |address: &IpAddr| ours.iter().any(|one| one.address == *address);
        let mut there = theirs.iter().copied();
        if let Some(there) = there.find(|address| own.holds(*address) && !is_own(address)) {
            used.push(own);
            networks.push(SharedNetwork {
                here: own.address,
                there,
            });
        }
    }
    networks
}

/// Returns the kind of an address, and its first `prefix` bits.
fn network_of(address: IpAddr, prefix: u8) -> (bool, u128) {
    let (bits, length) = match address {
        IpAddr::V4(address) => (u128::from(u32::from(address)), 32),
        IpAddr::V6(address) => (u128::from(address), 128),
    };
    let host_bits = length - u32::from(prefix).min(length);
    (address.is_ipv4(), bits.checked_shr(host_bits).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn ours(text: &str) -> Vec<Own> {
        let own = |word: &str| {
            let (interface, address) = word.split_once('=').unwrap();
            let (address, prefix) = address.split_once('/').unwrap();
            Own {
                interface: interface.to_owned(),
                address: ip(address),
                prefix: prefix.parse().unwrap(),
            }
        };
        text.split_whitespace().map(own).collect()
    }

    /// The first address is that of the control connection, and the peer's is the first of its own.
    #[test]
    fn only_networks_that_both_ends_have_are_used_and_each_once() {
        for (here, there, expected) in [
            ("a=10.0.0.1/24", "10.0.0.2 10.1.0.2", ""),
            ("a=10.0.0.1/24 b=10.1.0.1/24", "10.0.0.2", ""),
            (
                "a=10.0.0.1/24 b=10.1.0.1/24 c=10.2.0.1/16",
                "10.0.0.2 10.1.0.2 10.2.7.7",
                "10.1.0.1-10.1.0.2 10.2.0.1-10.2.7.7",
            ),
            // The bridge that both hosts have for containers, with one address and with two.
            (
                "a=10.0.0.1/24 docker0=172.17.0.1/16",
                "10.0.0.2 172.17.0.1",
                "",
            ),
            // Two interfaces in one network, two networks on one interface.
            ("a=10.0.0.1/24 b=10.0.0.3/24", "10.0.0.2 10.0.0.4", ""),
            ("a=10.0.0.1/24 a=10.1.0.1/24", "10.0.0.2 10.1.0.2", ""),
            (
                "a=10.0.0.1/24 b=10.1.0.1/24 c=10.1.0.3/24",
                "10.0.0.2 10.1.0.2 10.1.0.4",
                "10.1.0.1-10.1.0.2",
            ),
            (
                "a=fd00::1/64 b=fd01::1/64",
                "fd00::2 fd01::2",
                "fd01::1-fd01::2",
            ),
            ("a=0.0.0.1/0 b=10.1.0.1/24", "10.0.0.2 10.1.0.2", ""),
            ("", "10.0.0.2", ""),
        ] {
            let theirs: Vec<IpAddr> = there.split_whitespace().map(ip).collect();
            let networks = shared(&ours(here), &theirs, theirs[0]);
            let expected: Vec<_> = expected
                .split_whitespace()
                .map(|pair| pair.split_once('-').unwrap())
                .map(|(here, there)| SharedNetwork {
                    here: ip(here),
                    there: ip(there),
                })
                .collect();
            assert_eq!(networks, expected, "{here} {there}");
        }
    }
}
