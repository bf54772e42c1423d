//! A UDP socket whose packets are not fragmented.

use std::{
    io,
    net::{IpAddr, SocketAddr},
};

use rustix::net::sockopt::{
    Ipv4PathMtuDiscovery, Ipv6PathMtuDiscovery, set_ip_mtu_discover, set_ipv6_mtu_discover,
};
use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::UdpSocket;

use super::packet::ProbePacket;

/// The size of the receive buffer that is asked for: all packets of a round. The kernel grants less without further notice.
const RECEIVE_BYTES: usize = 4 << 20;

/// A UDP socket on an address of this host.
pub(super) struct PathSocket(UdpSocket);

impl PathSocket {
    /// Opens a socket on any port of `local`.
    pub(super) fn bind(local: IpAddr) -> io::Result<Self> {
        let address = SocketAddr::new(local, 0);
        let socket = Socket::new(
            Domain::for_address(address),
            Type::DGRAM.nonblocking().cloexec(),
            Some(Protocol::UDP),
        )?;
        // "Probe" sets "don't fragment", and ignores sizes that the kernel remembers for the path.
        if local.is_ipv4() {
            set_ip_mtu_discover(&socket, Ipv4PathMtuDiscovery::PROBE)?;
        } else {
            set_ipv6_mtu_discover(&socket, Ipv6PathMtuDiscovery::PROBE)?;
        }
        let _ = socket.set_recv_buffer_size(RECEIVE_BYTES);
        socket.bind(&address.into())?;
        Ok(Self(UdpSocket::from_std(socket.into())?))
    }

    /// Returns the port.
    pub(super) fn port(&self) -> io::Result<u16> {
        Ok(self.0.local_addr()?.port())
    }

    /// Sends a packet.
    ///
    /// # Cancel safety
    ///
    /// Safe: the packet is sent whole or not at all.
    pub(super) async fn send(&self, payload: &[u8], peer: IpAddr, port: u16) -> io::Result<()> {
        self.0.send_to(payload, (peer, port)).await.map(drop)
    }

    /// Receives a datagram. Returns none if it is no packet of `peer`.
    ///
    /// # Cancel safety
    ///
    /// Safe: no datagram is lost.
    pub(super) async fn receive(&self, buffer: &mut [u8], peer: IpAddr) -> Option<ProbePacket> {
        match self.0.recv_from(buffer).await {
            Ok((bytes, from)) if from.ip().to_canonical() == peer => {
                ProbePacket::decode(&buffer[..bytes])
            }
            // An unconnected socket receives no errors of the network.
            Ok(_) | Err(_) => None,
        }
    }
}
