//! Results: what one end of a task has measured.

use serde::{Deserialize, Serialize};

use super::VerbsPort;
use crate::perf::histogram::LatencyHistogram;

/// What one end of a task has measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) enum TaskResult {
    /// The end that listens, if it has measured nothing of its own.
    Served,
    /// The other end was reached.
    Reached {
        /// The address that answered.
        address: String,
    },
    /// Packets of different sizes.
    Path(PathResult),
    /// Pairs of RDMA ports, the best first.
    Ports(Vec<PortPairProof>),
    /// Bytes per second.
    Bandwidth(BandwidthResult),
    /// Times of a message there and back, or of a connection.
    Latency(LatencyResult),
}

/// The reason why a task failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TaskFault {
    /// True if the end that listens could not be reached at any address.
    pub(crate) is_unreachable: bool,
    /// One sentence for the user.
    pub(crate) text: String,
}

impl TaskFault {
    /// Returns the fault of an end that was found at none of the addresses, each with the reason.
    pub(crate) fn unreachable(port: u16, tried: &[(String, String)]) -> Self {
        let tried: Vec<_> = tried
            .iter()
            .map(|(address, what)| format!("{address}: {what}"))
            .collect();
        Self {
            is_unreachable: true,
            text: format!("port {port} cannot be reached ({})", tried.join(", ")),
        }
    }
}

impl From<String> for TaskFault {
    fn from(text: String) -> Self {
        Self {
            is_unreachable: false,
            text,
        }
    }
}

/// What carried the streams of a task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct UsedTransport {
    /// True for RDMA.
    pub(crate) is_rdma: bool,
    /// For RDMA the device, the port, the GID type and the MTU; for TCP the reason why it is not RDMA.
    pub(crate) reason: String,
    /// The address of the other end.
    pub(crate) address: String,
}

/// What one end of a measurement of bytes per second has counted.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct BandwidthResult {
    /// The bytes that this end has sent, and the other end has confirmed.
    pub(crate) bytes_sent: u64,
    /// The bytes that this end has received.
    pub(crate) bytes_received: u64,
    /// The operations of this end: of verbs only.
    pub(crate) operations: u64,
    /// The time from the first byte to the last one, in nanoseconds.
    pub(crate) nanos: u64,
    /// The processor time of this end's process in that time, in nanoseconds.
    pub(crate) cpu_nanos: u64,
    /// What the network stack and the RDMA port have counted in that time.
    pub(crate) counters: NetworkCounters,
    /// What carried the streams; none for sockets and verbs.
    pub(crate) transport: Option<UsedTransport>,
}

/// Counters of a host that show lost packets, or how much they grew during a task. They count all programs of the host.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct NetworkCounters {
    /// The TCP segments that were sent.
    pub(crate) tcp_segments: u64,
    /// The TCP segments that were sent again.
    pub(crate) tcp_retransmitted: u64,
    /// The packets that RDMA ports have sent.
    pub(crate) rdma_packets: u64,
    /// The signs of lost packets that RDMA ports have counted: packets out of order, and time limits that passed.
    pub(crate) rdma_losses: u64,
}

/// What one end of a measurement of times has counted.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct LatencyResult {
    /// How often each time occurred, in nanoseconds.
    pub(crate) histogram: LatencyHistogram,
    /// The time of all messages, in nanoseconds.
    pub(crate) nanos: u64,
    /// The processor time of this end's process in that time, in nanoseconds.
    pub(crate) cpu_nanos: u64,
    /// What carried the stream; none for sockets and verbs.
    pub(crate) transport: Option<UsedTransport>,
}

/// Which packets arrived at the other end without being fragmented.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PathResult {
    /// The MTU of this end's interface towards the other end, in bytes; none if it is not known.
    pub(crate) mtu: Option<u32>,
    /// The interface with that MTU.
    pub(crate) netdev: Option<String>,
    /// The packets from this end to the other one, the smallest first.
    pub(crate) probes: Vec<ProbedSize>,
}

/// One size of packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ProbedSize {
    /// The size of a packet in bytes, with the headers of IP and UDP.
    pub(crate) bytes: u32,
    /// The number of packets that were sent.
    pub(crate) sent: u32,
    /// The number of packets that arrived.
    pub(crate) arrived: u32,
}

impl PortPairProof {
    /// Returns true if messages of all sizes cross the pair of ports.
    pub(crate) fn works(&self) -> bool {
        self.short.is_ok() && self.long.is_ok()
    }
}

/// What the devices of two ends can do together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct VerbsLimits {
    /// The most bytes that a work request can carry inline, at both ends.
    pub(crate) inline_bytes: u32,
    /// The most READs of the end that dials that are under way at once. With 0 there are no READs.
    pub(crate) reads: u8,
}

/// What happened to the messages over one pair of RDMA ports.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PortPairProof {
    /// The port of the end that dials.
    pub(crate) dialer: VerbsPort,
    /// The port of the end that dials, for the user: `mlx5_0 port 1, GID 3 (RoCE v2, 10.1.0.5 on eth0)`.
    pub(crate) dialer_text: String,
    /// The port of the end that listens.
    pub(crate) listener: VerbsPort,
    /// The port of the end that listens, for the user.
    pub(crate) listener_text: String,
    /// True if the two ports are in one network.
    pub(crate) shares_network: bool,
    /// True if both ports are RoCE v2, whose packets are UDP to port 4791.
    pub(crate) is_roce_v2: bool,
    /// The MTU of the path in bytes: the smaller one of both ports.
    pub(crate) mtu: u16,
    /// What the devices can do; none if no queue pair could be made.
    pub(crate) limits: Option<VerbsLimits>,
    /// The time of a short message there and back in nanoseconds, or why it did not arrive.
    pub(crate) short: Result<u64, String>,
    /// The time of a message of several packets of full size there and back in nanoseconds, or why it did not arrive.
    pub(crate) long: Result<u64, String>,
}
