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
//! The invitation and the counts travel over the control stream. Packets are sent with "don't fragment" set, and the kernel is
//! told to ignore what it knows about the path. A size arrives if one of its packets does, so that random losses do not matter.

mod control_frame;
mod packet;
mod path_socket;
mod sizes;
#[cfg(test)]
mod tests;

use std::{net::IpAddr, time::Duration};

use serde::{Deserialize, Serialize};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    time::{Instant, timeout_at},
};

use self::{
    control_frame::{receive, send},
    packet::ProbePacket,
    path_socket::PathSocket,
};
use crate::perf::{
    facts::{
        host_roots::HostRoots,
        interfaces::{mtu, netdev_of},
    },
    messages::{PathResult, ProbedSize, TaskEnd, TaskResult},
};

/// How often a packet of each size is sent in one round. A path that loses one packet in ten loses all of them once in ten
/// thousand times, and a second round follows for the first sizes.
const COPIES: u32 = 4;

/// How long the listener waits without news for packets that are still under way. They are sent before the message that
/// ends the round, and packets of networks that are of use to RDMA are not delayed for longer.
const QUIET_LIMIT: Duration = Duration::from_millis(300);

/// The most rounds: with 17 parts in each, a size between 0 and 65,535 bytes is found in four, and the first sizes take two.
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

/// Finds out which packets from the end that dials arrive at the end that listens. `control` is connected to the other end:
/// `peer` is the other end's address, and `local` is this end's. The result of the end that dials is
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

/// Returns how many packets of each size of the round have arrived: `early` ones, and those that arrive until nothing has
/// arrived for [`QUIET_LIMIT`].
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
