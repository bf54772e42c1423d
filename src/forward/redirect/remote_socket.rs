//! A socket of the COMMAND, which this process has duplicated.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    os::fd::{AsFd, OwnedFd},
    time::Duration,
};

use rustix::{
    fs::{OFlags, fcntl_getfl},
    io::{Errno, retry_on_intr},
    net::{
        AddressFamily, SocketType, connect, getpeername, getsockname, ipproto,
        sockopt::{
            Timeout, ipv6_v6only, socket_domain, socket_protocol, socket_timeout, socket_type,
        },
    },
};

use super::system;

/// A TCP socket of the COMMAND that is not connected. It is the same open description as in COMMAND, so it must be
/// dropped before the caller goes on: the connection ends only when all its descriptors are closed.
#[derive(Debug)]
pub(super) struct RemoteSocket {
    fd: OwnedFd,
    family: Family,
}

/// The address family of a socket, and that of the address to which the program connects it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Family {
    /// An IPv4 socket.
    V4,
    /// An IPv6 socket and an IPv4 address that is mapped into IPv6.
    Mapped,
    /// An IPv6 socket and an IPv6 address.
    V6 {
        /// The socket cannot be connected to an IPv4 address.
        only: bool,
    },
}

/// The addresses of the local listeners. The listener for IPv6 is missing where there is no loopback address.
#[derive(Clone, Copy, Debug)]
pub(super) struct EntranceAddresses {
    pub(super) v4: SocketAddr,
    pub(super) v6: Option<SocketAddr>,
}

impl RemoteSocket {
    /// Takes a descriptor of which the program wants to connect the socket to `address`. Returns none if the kernel must
    /// answer the program: the descriptor is no TCP socket, the socket is connected, or the families do not agree.
    pub(super) fn new(fd: OwnedFd, address: SocketAddr) -> Option<Self> {
        if socket_type(&fd) != Ok(SocketType::STREAM) {
            return None;
        }
        let protocol = socket_protocol(&fd).ok()??;
        if protocol != ipproto::TCP && protocol != ipproto::MPTCP {
            return None;
        }
        let family = match (socket_domain(&fd).ok()?, address) {
            (AddressFamily::INET, SocketAddr::V4(_)) => Family::V4,
            (AddressFamily::INET6, SocketAddr::V6(address)) => {
                let only = ipv6_v6only(&fd).ok()?;
                match (address.ip().to_ipv4_mapped(), only) {
                    (None, only) => Family::V6 { only },
                    (Some(_), false) => Family::Mapped,
                    (Some(_), true) => return None,
                }
            }
            _ => return None,
        };
        if getpeername(&fd).is_ok() {
            return None;
        }
        Some(Self { fd, family })
    }

    /// The time after which `connect()` gives up, if the program has set one: the send timeout of a blocking socket.
    pub(super) fn time_limit(&self) -> Option<Duration> {
        let is_blocking = !fcntl_getfl(&self.fd).ok()?.contains(OFlags::NONBLOCK);
        let limit = socket_timeout(&self.fd, Timeout::Send).ok()?;
        limit.filter(|_| is_blocking)
    }

    /// Connects the socket to the listener for its family. Blocks if the socket does; on the loopback interface that is
    /// short.
    ///
    /// # Errors
    ///
    /// Fails with what the kernel reports: `EINPROGRESS` for a non-blocking socket.
    pub(super) fn connect(&self, entrances: EntranceAddresses) -> Result<(), Errno> {
        let mapped = IpAddr::V6(Ipv4Addr::LOCALHOST.to_ipv6_mapped());
        let mapped = SocketAddr::new(mapped, entrances.v4.port());
        let entrance = match (self.family, entrances.v6) {
            (Family::V4, _) => entrances.v4,
            (Family::V6 { .. }, Some(v6)) => v6,
            (Family::Mapped | Family::V6 { only: false }, _) => mapped,
            (Family::V6 { only: true }, None) => return Err(Errno::NETUNREACH),
        };
        system::connect_at_once(self.fd.as_fd());
        retry_on_intr(|| connect(&self.fd, &entrance))
    }

    /// The local address of the socket, IPv4 where it is mapped into IPv6. Returns none before the kernel has chosen it.
    pub(super) fn local_addr(&self) -> Option<SocketAddr> {
        let address = SocketAddr::try_from(getsockname(&self.fd).ok()?).ok()?;
        (address.port() != 0).then(|| canonical(address))
    }
}

/// Returns an IPv4 address that is mapped into IPv6 as IPv4, and every other address unchanged.
pub(super) fn canonical(address: SocketAddr) -> SocketAddr {
    match address.ip().to_canonical() {
        IpAddr::V4(ip) => SocketAddr::new(ip.into(), address.port()),
        IpAddr::V6(_) => address,
    }
}
