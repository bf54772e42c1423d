//! The local addresses at which redirected sockets arrive, and the pairing of both ends of each connection.
//!
//! A socket of COMMAND is connected to a *door*: a listener on the loopback interface that drops every packet. So the
//! kernel keeps the socket connecting, as it does while a real host does not answer. When the far end is open, a second
//! socket of this process, with the address of the door, connects to the socket of COMMAND. Two sockets that connect to
//! each other become one connection (RFC 9293, simultaneous open), and only then is the program's socket writable.

use std::{
    collections::HashMap,
    hash::{BuildHasher, RandomState},
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::{Mutex, PoisonError},
    time::Duration,
};

use rustix::io::Errno;
use socket2::{Domain, SockFilter, SockRef, Socket, Type};
use tokio::{
    net::{TcpListener, TcpStream},
    time::timeout,
};

use super::{notification::errno_of, remote_socket::ConnectingSocket};

/// The time within which a connection over the loopback interface arrives. It takes microseconds; only a packet filter
/// on the loopback interface can keep a connection from arriving.
const ARRIVAL_LIMIT: Duration = Duration::from_secs(10);

/// The time within which the kernel repeats the first packet of a connection, which a door has dropped.
const REPEAT_LIMIT: Duration = Duration::from_secs(60);

/// The doors, one for each host that COMMAND connects to.
#[derive(Debug, Default)]
pub(super) struct Entrance {
    doors: Mutex<Doors>,
}

#[derive(Debug, Default)]
struct Doors {
    v4: HashMap<IpAddr, Door>,
    v6: Option<Door>,
}

/// A listener that drops every packet. Without it the kernel would refuse the sockets that connect.
#[derive(Debug)]
pub(super) struct Door {
    pub(super) address: SocketAddr,
    listener: Socket,
}

impl Entrance {
    /// Returns the IPv4 address at which sockets that connect to `host` arrive. Each host has an address of its own, so
    /// that [`host_at`](Self::host_at) finds the host again.
    /// Fails if this process may not open or bind another socket.
    pub(super) fn v4_door(&self, host: IpAddr) -> io::Result<SocketAddr> {
        let mut doors = self.doors.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(door) = doors.v4.get(&host) {
            return Ok(door.address);
        }
        // Where the loopback interface has not all of 127.0.0.0/8, the hosts share its usual address.
        let door = Door::open(own_loopback_address(host).into())
            .or_else(|_| Door::open(Ipv4Addr::LOCALHOST.into()))?;
        let address = door.address;
        doors.v4.insert(host, door);
        Ok(address)
    }

    /// Returns the IPv6 address at which sockets arrive.
    /// Fails where the loopback interface has no IPv6 address, or if this process may not open another socket.
    pub(super) fn v6_door(&self) -> io::Result<SocketAddr> {
        let mut doors = self.doors.lock().unwrap_or_else(PoisonError::into_inner);
        if doors.v6.is_none() {
            doors.v6 = Some(Door::open(Ipv6Addr::LOCALHOST.into())?);
        }
        let door = doors.v6.as_ref().map(|door| door.address);
        door.ok_or_else(|| io::ErrorKind::AddrNotAvailable.into())
    }

    /// Returns the host whose door has this address. A program that asks for the address of its peer, and connects to
    /// another port of it, reaches the same host: FTP clients do so.
    pub(super) fn host_at(&self, address: IpAddr) -> Option<IpAddr> {
        if !address.is_loopback() || address == Ipv4Addr::LOCALHOST {
            return None;
        }
        let doors = self.doors.lock().unwrap_or_else(PoisonError::into_inner);
        let mut doors = doors.v4.iter();
        let found = doors.find(|(_, door)| door.address.ip() == address);
        found.map(|(host, _)| *host)
    }

    /// Connects a socket of COMMAND that waits at its door, and returns the other end of the connection.
    /// If the future is dropped, the socket may have been connected. It is then reset.
    /// Fails if the socket does not connect any more.
    pub(super) async fn enter(&self, socket: &ConnectingSocket) -> Result<TcpStream, Errno> {
        let door = socket.door();
        let program = socket.local_addr().ok_or(Errno::CONNABORTED)?;
        if let Some(own) = socket.own_door() {
            let accepted = timeout(REPEAT_LIMIT, own.accept(program)).await;
            let accepted = accepted.map_err(|_| Errno::TIMEDOUT)?;
            return accepted.map_err(|error| errno_of(&error));
        }
        let stream = connect(door, program).map_err(|error| errno_of(&error))?;
        let arrival = async {
            stream.writable().await?;
            socket.settled().await;
            io::Result::Ok(())
        };
        let arrived = timeout(ARRIVAL_LIMIT, arrival).await;
        arrived
            .map_err(|_| Errno::TIMEDOUT)?
            .map_err(|error| errno_of(&error))?;
        if let Some(error) = stream.take_error().map_err(|error| errno_of(&error))? {
            return Err(errno_of(&error));
        }
        // The program may have given its socket up, and another one may have got the number of its port.
        if socket.peer_addr() != Some(door) {
            return Err(Errno::CONNABORTED);
        }
        Ok(stream)
    }
}

impl Door {
    /// Opens a door at an address of the loopback interface.
    /// Fails if this process may not open or bind another socket.
    pub(super) fn open(ip: IpAddr) -> io::Result<Self> {
        /// The instruction `BPF_RET | BPF_K`: the filter returns how many bytes of a packet are kept.
        const RETURN: u16 = 6;
        let listener = bound(SocketAddr::new(ip, 0))?;
        listener.attach_filter(&[SockFilter::new(RETURN, 0, 0, 0)])?;
        listener.listen(1)?;
        let address = listener.local_addr()?.as_socket();
        let address = address.ok_or(io::ErrorKind::AddrNotAvailable)?;
        Ok(Self { address, listener })
    }

    /// Accepts the socket with the address `program`: drops packets no more, and waits until the kernel repeats the
    /// first packet of the connection. That takes a second.
    async fn accept(&self, program: SocketAddr) -> io::Result<TcpStream> {
        self.listener.detach_filter()?;
        let listener = TcpListener::from_std(self.listener.try_clone()?.into())?;
        loop {
            let (stream, peer) = listener.accept().await?;
            let _ = SockRef::from(&stream).set_linger(Some(Duration::ZERO));
            if peer == program {
                return Ok(stream);
            }
        }
    }
}

/// Connects a new socket, with the address of a door, to a socket of COMMAND.
fn connect(door: SocketAddr, program: SocketAddr) -> io::Result<TcpStream> {
    let socket = bound(door)?;
    // Until the tunnel has taken it over, its end is a reset.
    socket.set_linger(Some(Duration::ZERO))?;
    match socket.connect(&program.into()) {
        Err(error) if Errno::from_io_error(&error) != Some(Errno::INPROGRESS) => Err(error),
        _ => TcpStream::from_std(socket.into()),
    }
}

/// Returns a non-blocking socket that shares its address with the others of the same door.
fn bound(address: SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(
        Domain::for_address(address),
        Type::STREAM.nonblocking(),
        None,
    )?;
    socket.set_reuse_port(true)?;
    socket.bind(&address.into())?;
    Ok(socket)
}

/// Returns an address in 127.64.0.0/10, which few programs use, for the door of a host.
fn own_loopback_address(host: IpAddr) -> Ipv4Addr {
    const NETWORK: u32 = 0x7f40_0000;
    const HOSTS: u64 = 0x003f_ffff;
    let number = RandomState::new().hash_one(host) & HOSTS;
    Ipv4Addr::from(NETWORK | u32::try_from(number).unwrap_or(1))
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read, Write},
        net::{SocketAddr, TcpStream},
    };

    use rustix::{
        io::Errno,
        net::{AddressFamily, SocketFlags, SocketType, getpeername, socket_with},
    };

    use super::*;
    use crate::forward::redirect::remote_socket::{ConnectingSocket, RemoteSocket};

    #[tokio::test]
    async fn sockets_of_all_families_enter() {
        let entrance = Entrance::default();
        for (family, destination) in [
            (AddressFamily::INET, "192.0.2.1:80"),
            (AddressFamily::INET6, "[2001:db8::1]:80"),
            (AddressFamily::INET6, "[::ffff:192.0.2.1]:80"),
        ] {
            let (socket, connecting) = begin(&entrance, family, destination);
            let mut far = entrance
                .enter(&connecting)
                .await
                .unwrap()
                .into_std()
                .unwrap();
            far.set_nonblocking(false).unwrap();
            let peer = SocketAddr::try_from(getpeername(&socket).unwrap().unwrap()).unwrap();
            assert_eq!(peer.port(), far.local_addr().unwrap().port());
            let mut near = TcpStream::from(socket);
            near.write_all(b"there").unwrap();
            far.write_all(b"back").unwrap();
            drop(connecting);
            let mut received = [0; 5];
            far.read_exact(&mut received).unwrap();
            near.read_exact(&mut received[..4]).unwrap();
            assert_eq!(&received, b"backe");
        }
    }

    #[tokio::test]
    async fn a_socket_connects_until_it_is_accepted() {
        let entrance = Entrance::default();
        let (socket, connecting) = begin(&entrance, AddressFamily::INET, "192.0.2.1:80");
        assert_eq!(getpeername(&socket).unwrap_err(), Errno::NOTCONN);
        assert!(futures::FutureExt::now_or_never(connecting.settled()).is_none());
        let _far = entrance.enter(&connecting).await.unwrap();
        connecting.settled().await;
        assert!(getpeername(&socket).is_ok());
    }

    #[tokio::test]
    async fn a_socket_that_was_given_up_does_not_enter() {
        let entrance = Entrance::default();
        let (_socket, connecting) = begin(&entrance, AddressFamily::INET, "192.0.2.1:80");
        connecting.give_up();
        connecting.settled().await;
        assert!(entrance.enter(&connecting).await.is_err());
    }

    #[tokio::test]
    async fn the_address_of_a_door_names_its_host() {
        let entrance = Entrance::default();
        let hosts = ["192.0.2.1", "192.0.2.2", "2001:db8::1"].map(|host| host.parse().unwrap());
        for host in hosts {
            let door = entrance.v4_door(host).unwrap();
            assert_eq!(entrance.v4_door(host).unwrap(), door);
            assert_eq!(entrance.host_at(door.ip()), Some(host));
        }
        for other in ["127.0.0.1", "127.9.9.9", "::1", "192.0.2.1"] {
            assert_eq!(entrance.host_at(other.parse().unwrap()), None);
        }
    }

    /// Returns a new socket and its way to the door for a destination.
    fn begin(
        entrance: &Entrance,
        family: AddressFamily,
        destination: &str,
    ) -> (std::os::fd::OwnedFd, ConnectingSocket) {
        let socket = socket_with(family, SocketType::STREAM, SocketFlags::empty(), None).unwrap();
        let destination: SocketAddr = destination.parse().unwrap();
        let remote = RemoteSocket::new(socket.try_clone().unwrap(), destination).expect("a socket");
        let connecting = remote.begin(entrance, destination.ip().to_canonical());
        (socket, connecting.unwrap())
    }
}
