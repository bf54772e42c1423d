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
    facts::{HostRoots, mtu, netdev_of},
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
/// A path that delivers no packet is a result, and no error.
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
        let sizes = next_sizes(round, &probes, mtu);
        if sizes.is_empty() {
            break;
        }
        let sent = send_round(socket, peer, invitation, round, &sizes).await;
        send(control, &sent).await?;
        let ArrivedSizes(arrived) = receive(control).await?;
        for (&(bytes, sent), arrived) in sent.sizes.iter().zip(arrived) {
            count_size(
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
        let payload = packet.encode(payload_bytes(bytes, peer));
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

    fn port(&self) -> io::Result<u16> {
        Ok(self.0.local_addr()?.port())
    }

    /// Sends a packet.
    /// Cancel safe: the packet is sent whole or not at all.
    async fn send(&self, payload: &[u8], peer: IpAddr, port: u16) -> io::Result<()> {
        self.0.send_to(payload, (peer, port)).await.map(drop)
    }

    /// Receives a datagram. Returns none if it is no packet of `peer`.
    /// Cancel safe: no datagram is lost.
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
    round: u32,
    /// The position of the packet's size in the sizes of the round.
    index: u8,
}

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

/// Sizes that paths are known to have: the least of IPv4 and of IPv6, tunnels (`WireGuard`, VXLAN, GRE), `PPPoE`,
/// Ethernet, the larger packets of RoCE, FDDI, and "jumbo frames".
const USUAL: &[u32] = &[
    576, 1280, 1400, 1420, 1450, 1476, 1492, 1500, 2144, 4192, 8192, 8950, 9000,
];

/// The MTU that is assumed of an interface that does not say one, in bytes: that of Ethernet.
const ASSUMED_MTU: u32 = 1500;

/// The largest packet of IP, in bytes.
const MAX_PACKET_BYTES: u32 = 65_535;

/// The sizes that one round sends between two known ones.
const BETWEEN: u32 = 16;

/// The header of UDP, in bytes.
const UDP_BYTES: u32 = 8;

/// Returns the sizes of a round in bytes, the smallest first; none if no further round is needed.
///
/// Round 0 sends usual sizes up to the MTU of the interface. Round 1 sends those again of which no packet has arrived.
/// The rounds that follow find the largest size that arrives.
fn next_sizes(round: u32, probes: &[ProbedSize], mtu: Option<u32>) -> Vec<u32> {
    if round == 0 {
        return usual_sizes(mtu.unwrap_or(ASSUMED_MTU));
    }
    let mut lost = probes.iter().filter(|probe| probe.arrived == 0);
    if round == 1 {
        return lost.map(|probe| probe.bytes).collect();
    }
    let arrived = probes.iter().filter(|probe| probe.arrived > 0);
    let Some(largest) = arrived.map(|probe| probe.bytes).max() else {
        return Vec::new();
    };
    let smallest = lost.find(|probe| probe.bytes > largest);
    smallest.map_or_else(Vec::new, |smallest| sizes_between(largest, smallest.bytes))
}

/// Adds the counts of a size to the list, which stays in the order of the sizes.
fn count_size(probes: &mut Vec<ProbedSize>, probe: ProbedSize) {
    match probes.binary_search_by_key(&probe.bytes, |known| known.bytes) {
        Ok(index) => {
            probes[index].sent += probe.sent;
            probes[index].arrived += probe.arrived;
        }
        Err(index) => probes.insert(index, probe),
    }
}

/// Returns the size of the payload of a packet with these bytes, headers included.
fn payload_bytes(bytes: u32, peer: IpAddr) -> usize {
    let headers = UDP_BYTES + if peer.is_ipv4() { 20 } else { 40 };
    bytes.saturating_sub(headers) as usize
}

/// Returns the usual sizes up to an MTU, and the MTU itself.
fn usual_sizes(mtu: u32) -> Vec<u32> {
    let mtu = mtu.min(MAX_PACKET_BYTES);
    let mut sizes: Vec<u32> = USUAL.iter().copied().filter(|size| *size < mtu).collect();
    sizes.push(mtu);
    sizes
}

/// Returns at most [`BETWEEN`] sizes between two others, in equal steps.
fn sizes_between(low: u32, high: u32) -> Vec<u32> {
    let gap = high.saturating_sub(low);
    let step = gap.div_ceil(BETWEEN + 1).max(1);
    let sizes = (1..=BETWEEN).map(|number| low + number * step);
    sizes.take_while(|size| *size < high).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tokio::io::{AsyncWriteExt, DuplexStream, duplex};

    use super::{ProbePacket, *};

    fn localhost(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    /// Probes the path between two addresses of this host.
    async fn probe(
        dialer: &str,
        listener: &str,
    ) -> (Result<TaskResult, String>, Result<TaskResult, String>) {
        let (dialer, listener) = (localhost(dialer), localhost(listener));
        let (mut ours, mut theirs) = duplex(100);
        tokio::join!(
            probe_path(TaskEnd::Dialer, listener, dialer, &mut ours),
            probe_path(TaskEnd::Listener, dialer, listener, &mut theirs),
        )
    }

    fn path(result: Result<TaskResult, String>) -> PathResult {
        match result {
            Ok(TaskResult::Path(path)) => path,
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test]
    async fn every_packet_arrives_on_this_host() {
        let (dialed, served) = probe("127.0.0.1", "127.0.0.2").await;
        assert_eq!(served, Ok(TaskResult::Served));
        let dialed = path(dialed);
        let sizes = &dialed.probes;
        assert!(sizes.iter().any(|probe| probe.bytes == 1500));
        assert!(sizes.iter().all(|probe| probe.arrived > 0), "{sizes:?}");
        // Only the first address is one of the interface.
        assert!(dialed.mtu.is_some_and(|mtu| mtu >= 1500));
        assert!(dialed.netdev.is_some());
    }

    #[tokio::test]
    async fn ipv6_has_larger_headers() {
        if tokio::net::UdpSocket::bind("[::1]:0").await.is_err() {
            println!("SKIPPED: no IPv6");
            return;
        }
        let dialed = path(probe("::1", "::1").await.0);
        assert!(
            dialed.probes.iter().all(|probe| probe.arrived > 0),
            "{dialed:?}"
        );
    }

    #[tokio::test]
    async fn a_mapped_address_is_an_ipv4_address() {
        let dialed = path(probe("::ffff:127.0.0.1", "::ffff:127.0.0.1").await.0);
        assert!(
            dialed.probes.iter().all(|probe| probe.arrived > 0),
            "{dialed:?}"
        );
    }

    #[tokio::test]
    async fn packets_that_are_dropped_are_a_result() {
        // The listener expects packets from another address, and drops those that arrive.
        let (mut ours, mut theirs) = duplex(100);
        let (dialed, served) = tokio::join!(
            probe_path(
                TaskEnd::Dialer,
                localhost("127.0.0.1"),
                localhost("127.0.0.1"),
                &mut ours
            ),
            probe_path(
                TaskEnd::Listener,
                localhost("127.0.0.9"),
                localhost("127.0.0.1"),
                &mut theirs
            ),
        );
        assert_eq!(served, Ok(TaskResult::Served));
        let dialed = path(dialed);
        assert!(
            dialed
                .probes
                .iter()
                .all(|probe| probe.arrived == 0 && probe.sent > 0)
        );
    }

    #[tokio::test]
    async fn an_address_of_another_host_is_an_error() {
        let (mut control, _peer) = duplex(100);
        let (peer, local) = (localhost("127.0.0.1"), localhost("192.0.2.1"));
        let result = probe_path(TaskEnd::Dialer, peer, local, &mut control).await;
        let error = result.unwrap_err();
        assert!(
            error.starts_with("cannot open a UDP socket on 192.0.2.1"),
            "{error}"
        );
    }

    /// Returns the error of an end whose peer sends `bytes` and ends.
    async fn after(end: TaskEnd, bytes: &[u8]) -> String {
        let (mut ours, mut theirs): (DuplexStream, DuplexStream) = duplex(100);
        theirs.write_all(bytes).await.unwrap();
        theirs.shutdown().await.unwrap();
        let address = localhost("127.0.0.1");
        let result = probe_path(end, address, address, &mut ours).await;
        result.unwrap_err()
    }

    #[tokio::test]
    async fn a_peer_that_ends_or_sends_nonsense_is_an_error() {
        for end in [TaskEnd::Dialer, TaskEnd::Listener] {
            let error = after(end, &[]).await;
            assert!(error.starts_with("cannot receive counts"), "{error}");
            let error = after(end, &[255; 8]).await;
            assert!(error.contains("no count of packets"), "{error}");
            let error = after(end, &[2, 0, 0, 0, 255, 255]).await;
            assert!(error.contains("no count of packets"), "{error}");
        }
        let many = SentSizes {
            round: 0,
            sizes: vec![(1, 1); MAX_SIZES + 1],
        };
        let bytes = postcard::to_stdvec(&many).unwrap();
        let mut frame = u32::try_from(bytes.len()).unwrap().to_le_bytes().to_vec();
        frame.extend(bytes);
        let (mut ours, mut theirs) = duplex(1000);
        theirs.write_all(&frame).await.unwrap();
        let address = localhost("127.0.0.1");
        let result = probe_path(TaskEnd::Listener, address, address, &mut ours).await;
        assert!(result.unwrap_err().contains("more sizes"));
    }

    #[test]
    fn a_packet_has_its_size_and_says_what_it_is() {
        let packet = ProbePacket {
            token: 7,
            round: 3,
            index: 2,
        };
        for bytes in [0, 13, 1472] {
            let payload = packet.encode(bytes);
            assert_eq!(payload.len(), bytes.max(13));
            assert_eq!(ProbePacket::decode(&payload), Some(packet));
        }
        assert_eq!(ProbePacket::decode(&[0; 12]), None);
        assert_eq!(ProbePacket::decode(&[]), None);
    }

    /// Sends rounds over a path that passes packets of at most `limit` bytes. Returns the counts, and the number of
    /// rounds.
    fn probed(mtu: Option<u32>, limit: u32) -> (Vec<ProbedSize>, u32) {
        let mut probes = Vec::new();
        for round in 0.. {
            let sizes = next_sizes(round, &probes, mtu);
            if sizes.is_empty() {
                return (probes, round);
            }
            assert!(sizes.len() <= BETWEEN as usize && sizes.is_sorted());
            for bytes in sizes {
                let arrived = if bytes <= limit { 4 } else { 0 };
                let sent = 4;
                count_size(
                    &mut probes,
                    ProbedSize {
                        bytes,
                        sent,
                        arrived,
                    },
                );
            }
        }
        unreachable!("a number of rounds has an end")
    }

    fn largest(probes: &[ProbedSize]) -> Option<u32> {
        let arrived = probes.iter().filter(|probe| probe.arrived > 0);
        arrived.map(|probe| probe.bytes).max()
    }

    #[test]
    fn a_path_that_passes_all_packets_takes_one_round() {
        let (probes, rounds) = probed(Some(1500), 9000);
        assert_eq!(rounds, 1);
        assert_eq!(largest(&probes), Some(1500));
        let (probes, rounds) = probed(Some(65_536), u32::MAX);
        assert_eq!((largest(&probes), rounds), (Some(65_535), 1));
        assert_eq!(largest(&probed(None, u32::MAX).0), Some(1500));
    }

    #[test]
    fn a_path_that_passes_nothing_takes_two_rounds() {
        let (probes, rounds) = probed(Some(9000), 0);
        assert_eq!((largest(&probes), rounds), (None, 2));
        assert!(probes.iter().all(|probe| probe.sent == 8));
    }

    #[test]
    fn an_interface_with_a_small_mtu_sends_one_size() {
        assert_eq!(usual_sizes(500), [500]);
        assert_eq!(usual_sizes(0), [0]);
    }

    #[test]
    fn headers_are_part_of_a_packet() {
        assert_eq!(payload_bytes(1500, [10, 0, 0, 1].into()), 1472);
        assert_eq!(
            payload_bytes(1500, std::net::Ipv6Addr::LOCALHOST.into()),
            1452
        );
        assert_eq!(payload_bytes(20, [10, 0, 0, 1].into()), 0);
    }

    proptest! {
        #[test]
        fn the_largest_size_is_found_to_the_byte(mtu in 600..70_000_u32, limit in 576..70_000_u32) {
            let (probes, rounds) = probed(Some(mtu), limit);
            prop_assert_eq!(largest(&probes), Some(limit.min(mtu).min(MAX_PACKET_BYTES)));
            prop_assert!(rounds <= super::MAX_ROUNDS, "{} rounds", rounds);
            prop_assert!(probes.is_sorted_by_key(|probe| probe.bytes));
        }
    }
}
