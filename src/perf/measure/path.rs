//! Which sizes of packets arrive at the other end without being fragmented.
//!
//! ```text
//! dialer                                         listener
//!                          ◄── Invitation: a UDP port and a number that each packet bears
//!   packets of each size over UDP  ───────────►
//!   Sent: what was sent            ───────────►  waits for the last packets
//!                          ◄── Arrived: how many of each size
//!   more packets of sizes between the largest that arrived and the smallest that did not, until both are known
//!   Sent: nothing                  ───────────►  ends
//! ```
//!
//! The invitation and the counts travel over the control stream. Packets are sent with "don't fragment" set, and the
//! kernel is told to ignore what it knows about the path. A size arrives if one of its packets does, so that random
//! losses do not matter.

mod sizes;
#[cfg(test)]
mod tests;

use std::{
    io,
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use rustix::net::sockopt::{
    Ipv4PathMtuDiscovery, Ipv6PathMtuDiscovery, set_ip_mtu_discover, set_ipv6_mtu_discover,
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use socket2::{Domain, Protocol, Socket, Type};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::UdpSocket,
    time::{Instant, timeout_at},
};

use crate::perf::{
    facts::{
        host_roots::HostRoots,
        interfaces::{mtu, netdev_of},
    },
    messages::{PathResult, ProbedSize, TaskEnd, TaskResult},
};

/// How often a packet of each size is sent in one round. A path that loses one packet in ten loses all of them once in
/// ten thousand times, and a second round follows for the first sizes.
const COPIES: u32 = 4;

/// How long the listener waits without news for packets that are still under way. They are sent before the message that
/// ends the round, and packets of networks that are of use to RDMA are not delayed for longer.
const QUIET_LIMIT: Duration = Duration::from_millis(300);

/// The most rounds: with 17 parts in each, a size between 0 and 65,535 bytes is found in four, and the first sizes take
/// two.
const MAX_ROUNDS: u32 = 8;

/// The most sizes of one round that a listener accepts.
const MAX_SIZES: usize = 64;

/// The first message of the listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Invitation {
    /// The UDP port.
    port: u16,
    /// The number that tells packets of this task from others.
    token: u64,
}

/// The sizes of a round, in bytes, and how many packets of each one were sent. An empty list ends the task.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
struct SentSizes {
    round: u32,
    sizes: Vec<(u32, u32)>,
}

/// The packets of each size that have arrived, in the order of the sizes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct ArrivedSizes(Vec<u32>);

/// Finds out which packets from the end that dials arrive at the end that listens. `control` is connected to the other
/// end: `peer` is the other end's address, and `local` is this end's. The result of the end that dials is
/// [`TaskResult::Path`].
///
/// # Errors
///
/// One sentence for the user. A path that delivers no packet is a result, and no error.
///
/// # Cancel safety
///
/// Dropping the future closes its socket. The control stream is then in the middle of a message.
pub(crate) async fn probe_path(
    end: TaskEnd,
    peer: IpAddr,
    local: IpAddr,
    control: &mut (impl AsyncRead + AsyncWrite + Unpin),
) -> Result<TaskResult, String> {
    let (peer, local) = (peer.to_canonical(), local.to_canonical());
    let socket = PathSocket::bind(local).map_err(|error| {
        format!("cannot open a UDP socket on {local} for packets to {peer}: {error}")
    })?;
    match end {
        TaskEnd::Dialer => dial(&socket, peer, local, control)
            .await
            .map(TaskResult::Path),
        TaskEnd::Listener => {
            listen(&socket, peer, control).await?;
            Ok(TaskResult::Served)
        }
    }
}

/// Sends packets in rounds, until the largest size that arrives is known.
async fn dial(
    socket: &PathSocket,
    peer: IpAddr,
    local: IpAddr,
    control: &mut (impl AsyncRead + AsyncWrite + Unpin),
) -> Result<PathResult, String> {
    let netdev = netdev_of(local);
    let mtu = netdev
        .as_ref()
        .and_then(|netdev| mtu(&HostRoots::default(), netdev));
    let invitation: Invitation = receive(control).await?;
    let mut probes: Vec<ProbedSize> = Vec::new();
    for round in 0..MAX_ROUNDS {
        let sizes = sizes::next(round, &probes, mtu);
        if sizes.is_empty() {
            break;
        }
        let sent = send_round(socket, peer, invitation, round, &sizes).await;
        send(control, &sent).await?;
        let ArrivedSizes(arrived) = receive(control).await?;
        for (&(bytes, sent), arrived) in sent.sizes.iter().zip(arrived) {
            sizes::count(
                &mut probes,
                ProbedSize {
                    bytes,
                    sent,
                    arrived,
                },
            );
        }
    }
    send(control, &SentSizes::default()).await?;
    Ok(PathResult {
        mtu,
        netdev,
        probes,
    })
}

/// Sends packets of each size, and returns what was sent. A packet that the kernel refuses counts as sent: it has not
/// arrived.
async fn send_round(
    socket: &PathSocket,
    peer: IpAddr,
    invitation: Invitation,
    round: u32,
    sizes: &[u32],
) -> SentSizes {
    let mut sent = SentSizes {
        round,
        sizes: Vec::new(),
    };
    for (index, &bytes) in (0..).zip(sizes) {
        let packet = ProbePacket {
            token: invitation.token,
            round,
            index,
        };
        let payload = packet.encode(sizes::payload(bytes, peer));
        for _ in 0..COPIES {
            let _ = socket.send(&payload, peer, invitation.port).await;
        }
        sent.sizes.push((bytes, COPIES));
        // A receiver in the same runtime takes them before its socket is full.
        tokio::task::yield_now().await;
    }
    sent
}

/// Counts packets in rounds, until the end that dials sends no more.
async fn listen(
    socket: &PathSocket,
    peer: IpAddr,
    control: &mut (impl AsyncRead + AsyncWrite + Unpin),
) -> Result<(), String> {
    let mut random = [0; 8];
    getrandom::fill(&mut random).map_err(|error| format!("no random numbers: {error}"))?;
    let invitation = Invitation {
        port: socket.port().map_err(|error| error.to_string())?,
        token: u64::from_le_bytes(random),
    };
    send(control, &invitation).await?;
    let mut buffer = vec![0; usize::from(u16::MAX)];
    let mut early: Vec<ProbePacket> = Vec::new();
    loop {
        let sent: SentSizes = {
            let mut message = std::pin::pin!(receive(control));
            loop {
                tokio::select! {
                    packet = socket.receive(&mut buffer, peer) => {
                        let packet = packet.filter(|packet| packet.token == invitation.token);
                        early.extend(packet.filter(|_| early.len() < MAX_SIZES * 16));
                    }
                    sent = &mut message => break sent?,
                }
            }
        };
        if sent.sizes.is_empty() {
            return Ok(());
        }
        if sent.sizes.len() > MAX_SIZES {
            return Err("the other end has sent more sizes of packets than are allowed".to_owned());
        }
        let arrived = count_round(socket, peer, invitation, &sent, &mut early, &mut buffer).await;
        send(control, &ArrivedSizes(arrived)).await?;
    }
}

/// Returns how many packets of each size of the round have arrived: `early` ones, and those that arrive until nothing
/// has arrived for [`QUIET_LIMIT`].
async fn count_round(
    socket: &PathSocket,
    peer: IpAddr,
    invitation: Invitation,
    sent: &SentSizes,
    early: &mut Vec<ProbePacket>,
    buffer: &mut [u8],
) -> Vec<u32> {
    let mut arrived = vec![0_u32; sent.sizes.len()];
    let mut count = |packet: ProbePacket| {
        let index = usize::from(packet.index);
        let is_ours = packet.token == invitation.token && packet.round == sent.round;
        match arrived.get_mut(index) {
            Some(count) if is_ours && *count < sent.sizes[index].1 => {
                *count += 1;
                true
            }
            _ => false,
        }
    };
    let expected: u64 = sent.sizes.iter().map(|(_, sent)| u64::from(*sent)).sum();
    let early = early.drain(..);
    let mut total: u64 = early.map(&mut count).map(u64::from).sum();
    let mut deadline = Instant::now() + QUIET_LIMIT;
    while total < expected {
        match timeout_at(deadline, socket.receive(buffer, peer)).await {
            Ok(Some(packet)) if count(packet) => {
                total += 1;
                deadline = Instant::now() + QUIET_LIMIT;
            }
            // The packet of a stranger, or an earlier round.
            Ok(_) => {}
            Err(_) => break,
        }
    }
    arrived
}

/// The size of the receive buffer that is asked for: all packets of a round. The kernel grants less without further
/// notice.
const RECEIVE_BYTES: usize = 4 << 20;

/// A UDP socket on an address of this host.
struct PathSocket(UdpSocket);

impl PathSocket {
    /// Opens a socket on any port of `local`.
    fn bind(local: IpAddr) -> io::Result<Self> {
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
    fn port(&self) -> io::Result<u16> {
        Ok(self.0.local_addr()?.port())
    }

    /// Sends a packet.
    ///
    /// # Cancel safety
    ///
    /// Safe: the packet is sent whole or not at all.
    async fn send(&self, payload: &[u8], peer: IpAddr, port: u16) -> io::Result<()> {
        self.0.send_to(payload, (peer, port)).await.map(drop)
    }

    /// Receives a datagram. Returns none if it is no packet of `peer`.
    ///
    /// # Cancel safety
    ///
    /// Safe: no datagram is lost.
    async fn receive(&self, buffer: &mut [u8], peer: IpAddr) -> Option<ProbePacket> {
        match self.0.recv_from(buffer).await {
            Ok((bytes, from)) if from.ip().to_canonical() == peer => {
                ProbePacket::decode(&buffer[..bytes])
            }
            // An unconnected socket receives no errors of the network.
            Ok(_) | Err(_) => None,
        }
    }
}

/// What a packet says about itself, in its first bytes. The rest of it is zeros.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ProbePacket {
    /// The number of the task, which only its two ends know.
    token: u64,
    /// The number of the round.
    round: u32,
    /// The position of the packet's size in the sizes of the round.
    index: u8,
}

/// The bytes that have a meaning.
const HEAD_BYTES: usize = 13;

impl ProbePacket {
    /// Returns the payload of `bytes` bytes; of at least as many as the packet needs.
    fn encode(self, bytes: usize) -> Vec<u8> {
        let mut payload = self.token.to_le_bytes().to_vec();
        payload.extend(self.round.to_le_bytes());
        payload.push(self.index);
        payload.resize(bytes.max(HEAD_BYTES), 0);
        payload
    }

    /// Reads the beginning of a payload. Returns none if it is too short.
    fn decode(payload: &[u8]) -> Option<Self> {
        let (token, rest) = payload.split_first_chunk()?;
        let (round, rest) = rest.split_first_chunk()?;
        Some(Self {
            token: u64::from_le_bytes(*token),
            round: u32::from_le_bytes(*round),
            index: *rest.first()?,
        })
    }
}

/// The most bytes of a message. The largest one has 64 sizes.
const MAX_FRAME_BYTES: usize = 4096;

/// Sends a message.
async fn send(
    control: &mut (impl AsyncWrite + Unpin),
    message: &impl Serialize,
) -> Result<(), String> {
    let bytes = postcard::to_stdvec(message).map_err(|error| error.to_string())?;
    let length = u32::try_from(bytes.len()).map_err(|error| error.to_string())?;
    let mut frame = length.to_le_bytes().to_vec();
    frame.extend_from_slice(&bytes);
    let sent = async {
        control.write_all(&frame).await?;
        control.flush().await
    };
    let error = |error| format!("cannot send counts of packets to the other end: {error}");
    sent.await.map_err(error)
}

/// Receives a message.
async fn receive<T: DeserializeOwned>(control: &mut (impl AsyncRead + Unpin)) -> Result<T, String> {
    let mut length = [0; 4];
    let error = |error| format!("cannot receive counts of packets from the other end: {error}");
    control.read_exact(&mut length).await.map_err(error)?;
    let length = u32::from_le_bytes(length) as usize;
    if length > MAX_FRAME_BYTES {
        return Err(malformed());
    }
    let mut bytes = vec![0; length];
    control.read_exact(&mut bytes).await.map_err(error)?;
    postcard::from_bytes(&bytes).map_err(|_| malformed())
}

fn malformed() -> String {
    "the other end has sent something that is no count of packets".to_owned()
}
