//! A socket of the COMMAND, which this process has duplicated.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    os::fd::{AsFd, OwnedFd},
    time::Duration,
};

use rustix::{
    fs::{OFlags, fcntl_getfl, fcntl_setfl},
    io::{Errno, retry_on_intr},
    net::{
        AddressFamily, SocketType, connect, connect_unspec, getpeername, getsockname, ipproto,
        sockopt::{
            Timeout, ipv6_v6only, socket_cookie, socket_domain, socket_error, socket_protocol,
            socket_timeout, socket_type,
        },
    },
};
use socket2::SockRef;
use tokio::io::{Interest, unix::AsyncFd};

use super::{
    entrance::{Door, Entrance},
    notification::errno_of,
    system,
};

/// A TCP socket of the COMMAND that is not connected. It is the same open description as in COMMAND.
#[derive(Debug)]
pub(super) struct RemoteSocket {
    fd: OwnedFd,
    family: Family,
    is_multipath: bool,
}

/// A TCP socket of the COMMAND that connects to a door of the [`Entrance`]. The connection ends only when all its
/// descriptors are closed, so this one must be dropped before a caller that waits in `connect()` goes on.
#[derive(Debug)]
pub(super) struct ConnectingSocket {
    fd: AsyncFd<OwnedFd>,
    door: SocketAddr,
    own: Option<Door>,
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

/// The device of the doors.
const LOOPBACK: &[u8] = b"lo";

impl RemoteSocket {
    /// Takes a descriptor of which the program wants to connect the socket to `address`. Returns none if the kernel
    /// must answer the program: the descriptor is no TCP socket, the socket is connected, or the families do not agree.
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
        Some(Self {
            fd,
            family,
            is_multipath: protocol == ipproto::MPTCP,
        })
    }

    /// The kernel's number of the socket, which no other socket gets.
    /// Fails on a kernel older than Linux 4.12.
    pub(super) fn cookie(&self) -> Result<u64, Errno> {
        socket_cookie(&self.fd)
    }

    /// Returns true if `connect()` waits until the socket is connected.
    pub(super) fn is_blocking(&self) -> bool {
        fcntl_getfl(&self.fd).is_ok_and(|flags| !flags.contains(OFlags::NONBLOCK))
    }

    /// The time after which a blocking `connect()` gives up, if the program has set one: the send timeout.
    pub(super) fn time_limit(&self) -> Option<Duration> {
        socket_timeout(&self.fd, Timeout::Send).ok()?
    }

    /// Discards the error that the kernel has recorded for the socket.
    pub(super) fn clear_error(&self) {
        let _ = socket_error(&self.fd);
    }

    /// Begins to connect the socket to the door for `host`. The socket then connects until it is accepted at the door,
    /// or until it is given up.
    pub(super) fn begin(
        self,
        entrance: &Entrance,
        host: IpAddr,
    ) -> Result<ConnectingSocket, Errno> {
        // The kernel makes no simultaneous open of a socket of Multipath TCP, which therefore has a door of its own.
        let own = self.is_multipath.then(|| self.own_door()).transpose();
        let own = own.map_err(|error| errno_of(&error))?;
        let found = match &own {
            Some(own) => Ok((own.address, self.address_of(own.address))),
            None => self.door(entrance, host),
        };
        let (door, address) = found.map_err(|error| errno_of(&error))?;
        system::connect_at_once(self.fd.as_fd());
        self.leave_device().map_err(|error| errno_of(&error))?;
        match without_waiting(&self.fd, || connect(&self.fd, &address)) {
            Ok(()) | Err(Errno::INPROGRESS) => {}
            Err(errno) => return Err(errno),
        }
        let interest = Interest::READABLE | Interest::WRITABLE;
        let fd = system::watch(self.fd, interest).map_err(|error| errno_of(&error))?;
        Ok(ConnectingSocket { fd, door, own })
    }

    /// Frees a socket that is bound to a device (`SO_BINDTODEVICE`): from there it does not reach a door. The tunnel
    /// has its own way to the target, so the device would have no meaning.
    /// Fails with `EPERM` without `CAP_NET_RAW`: the kernel lets only a privileged process take a socket off its
    /// device.
    fn leave_device(&self) -> io::Result<()> {
        let socket = SockRef::from(&self.fd);
        let device = socket.device()?;
        if device.is_none_or(|device| device == LOOPBACK) {
            return Ok(());
        }
        socket.bind_device(None)
    }

    /// Returns the address of a door, and the same address as this socket needs it.
    fn door(&self, entrance: &Entrance, host: IpAddr) -> io::Result<(SocketAddr, SocketAddr)> {
        if let Family::V6 { only } = self.family {
            match entrance.v6_door() {
                Ok(door) => return Ok((door, door)),
                Err(_) if !only => {}
                Err(error) => return Err(error),
            }
        }
        let door = entrance.v4_door(host)?;
        Ok((door, self.address_of(door)))
    }

    fn own_door(&self) -> io::Result<Door> {
        match self.family {
            Family::V6 { only: true } => Door::open(Ipv6Addr::LOCALHOST.into()),
            _ => Door::open(Ipv4Addr::LOCALHOST.into()),
        }
    }

    fn address_of(&self, door: SocketAddr) -> SocketAddr {
        match (self.family, door.ip()) {
            (Family::V6 { .. } | Family::Mapped, IpAddr::V4(ip)) => {
                SocketAddr::new(ip.to_ipv6_mapped().into(), door.port())
            }
            _ => door,
        }
    }
}

impl ConnectingSocket {
    pub(super) fn door(&self) -> SocketAddr {
        self.door
    }

    /// The door that only this socket has.
    pub(super) fn own_door(&self) -> Option<&Door> {
        self.own.as_ref()
    }

    /// The local address of the socket, IPv4 where it is mapped into IPv6. Returns none for a socket that does not
    /// connect any more.
    pub(super) fn local_addr(&self) -> Option<SocketAddr> {
        let address = SocketAddr::try_from(getsockname(self.fd.get_ref()).ok()?).ok()?;
        (address.port() != 0 && !address.ip().is_unspecified()).then(|| canonical(address))
    }

    /// The address that the socket is connected to, IPv4 where it is mapped into IPv6.
    pub(super) fn peer_addr(&self) -> Option<SocketAddr> {
        let address = getpeername(self.fd.get_ref()).ok()??;
        SocketAddr::try_from(address).ok().map(canonical)
    }

    /// Waits until the socket does not connect any more: it is connected, the kernel has given up, or the program has.
    /// Cancel safe.
    pub(super) async fn settled(&self) {
        let ready = self.fd.ready(Interest::READABLE | Interest::WRITABLE).await;
        if ready.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Ends the attempt to connect. The kernel records an error for the socket if it still was connecting.
    pub(super) fn give_up(&self) {
        let _ = connect_unspec(self.fd.get_ref());
    }

    /// Takes the error that the kernel has recorded for the socket.
    pub(super) fn take_error(&self) -> Option<Errno> {
        socket_error(self.fd.get_ref()).ok()?.err()
    }
}

/// Makes a call that does not wait, although the socket may be a blocking one. The descriptors of a socket share
/// whether it is; its program waits in `connect()` meanwhile.
fn without_waiting(fd: &OwnedFd, call: impl FnMut() -> Result<(), Errno>) -> Result<(), Errno> {
    let flags = fcntl_getfl(fd)?;
    if flags.contains(OFlags::NONBLOCK) {
        return retry_on_intr(call);
    }
    fcntl_setfl(fd, flags | OFlags::NONBLOCK)?;
    let result = retry_on_intr(call);
    fcntl_setfl(fd, flags)?;
    result
}

/// Returns an IPv4 address that is mapped into IPv6 as IPv4, and every other address unchanged.
pub(super) fn canonical(address: SocketAddr) -> SocketAddr {
    match address.ip().to_canonical() {
        IpAddr::V4(ip) => SocketAddr::new(ip.into(), address.port()),
        IpAddr::V6(_) => address,
    }
}
