//! What the processes of rdperf send each other: tasks, results, and facts about hosts. Pure, no I/O.
//!
//! rdperf gives a *task* to two agents: one listens, the other dials, both measure, and each reports its result. The
//! agents report facts about their hosts before the first task.

use std::fmt;

use serde::{Deserialize, Serialize};
use zeroize::Zeroize;

use crate::{
    Cipher, TransportPolicy,
    options::StreamOptions,
    perf::histogram::LatencyHistogram,
    ssh::protocol::{AgentHello, EdgeLink},
};

/// rdperf's part of the order for an agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PerfOrder {
    /// How the streams of the tasks are set up. A task overrides the transport and how it waits.
    pub(crate) stream: StreamOptions,
    /// The first and the last port to listen on; none is any port.
    pub(crate) ports: Option<(u16, u16)>,
}

/// A message from rdperf to an agent. The order of the variants is the wire format.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum ToPerf {
    /// Carries out a task with the agent of another host.
    Task(TaskOrder),
    /// Measures a file or a directory of this host alone.
    Storage {
        /// The number of the task.
        id: u32,
        /// What is measured.
        task: StorageTask,
    },
    /// Ends a task: its other end has failed.
    Cancel {
        /// The number of the task.
        id: u32,
    },
    /// Ends the agent: no task follows.
    Finish,
}

/// A message from an agent to rdperf. The order of the variants is the wire format.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) enum FromPerf {
    /// The first message: what the agent has found out about its host.
    Host(Box<HostFacts>),
    /// The agent listens for the other end of a task.
    Listening {
        /// The number of the task.
        id: u32,
        port: u16,
    },
    /// A task has ended.
    Done {
        /// The number of the task.
        id: u32,
        /// What this end has measured, or why it could not.
        result: Result<TaskResult, TaskFault>,
    },
}

/// A task of two agents, for one of them.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TaskOrder {
    /// The number of the task, for messages about it.
    pub(crate) id: u32,
    /// The text of the key that only the two ends of this task have.
    pub(crate) key: String,
    /// The name of the other end in messages: "fs2".
    pub(crate) peer: String,
    /// The transport of the task's streams.
    pub(crate) transport: TransportPolicy,
    /// Where this agent dials. Without a target it opens a port, and reports that with [`FromPerf::Listening`].
    pub(crate) target: Option<TaskTarget>,
    /// What the two ends do.
    pub(crate) kind: TaskKind,
}

/// Where the end of a task is that listens.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TaskTarget {
    /// The addresses, the best first.
    pub(crate) addresses: Vec<String>,
    pub(crate) port: u16,
}

impl TaskOrder {
    pub(crate) fn end(&self) -> TaskEnd {
        match self.target {
            Some(_) => TaskEnd::Dialer,
            None => TaskEnd::Listener,
        }
    }
}

impl Drop for TaskOrder {
    fn drop(&mut self) {
        self.key.zeroize();
    }
}

impl fmt::Debug for TaskOrder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TaskOrder")
            .field("id", &self.id)
            .field("kind", &self.kind)
            .finish_non_exhaustive()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TaskEnd {
    /// This end dials. It sends the first message of a ping-pong.
    Dialer,
    /// This end listens.
    Listener,
}

/// The largest message of a ping-pong, in bytes.
pub(crate) const MAX_MESSAGE_BYTES: u32 = 16 << 20;

/// The largest operation of verbs, in bytes. RDMA has messages of up to 2 GiB, but memory of that size takes seconds to
/// register.
pub(crate) const MAX_OPERATION_BYTES: u32 = 1 << 30;

/// The most streams of a measurement: over RDMA each pins up to 16 MiB at each end.
pub(crate) const MAX_TASK_STREAMS: u16 = 64;

/// The most rails of the streams of a measurement.
pub(crate) const MAX_TASK_RAILS: u8 = 8;

impl TaskKind {
    /// Checks that an agent can carry out the task with bounded memory. The verbs check their own limits.
    pub(crate) fn check(&self) -> Result<(), String> {
        match self {
            Self::Bandwidth(task) if !(1..=MAX_TASK_STREAMS).contains(&task.streams) => {
                Err(format!("a measurement has 1 to {MAX_TASK_STREAMS} streams"))
            }
            Self::Bandwidth(BandwidthTask {
                rails: Some(rails), ..
            }) if !(1..=MAX_TASK_RAILS).contains(rails) => {
                Err(format!("a stream has 1 to {MAX_TASK_RAILS} rails"))
            }
            Self::Latency(task) if !(1..=MAX_MESSAGE_BYTES).contains(&task.size) => {
                let most = MAX_MESSAGE_BYTES >> 20;
                Err(format!("a message has 1 byte to {most} MiB"))
            }
            _ => Ok(()),
        }
    }
}

/// What the two ends of a task do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum TaskKind {
    /// Connects, and does nothing else: shows that the port can be reached.
    Reach,
    /// Sends packets of different sizes that must not be fragmented, and counts those that arrive.
    Path,
    /// Sends a message over each pair of RDMA ports that may work.
    Ports,
    /// Measures bytes per second.
    Bandwidth(BandwidthTask),
    /// Measures the time of a message there and back.
    Latency(LatencyTask),
    /// Measures the time from dialing to the first byte from the other end, for connections one after the other.
    Connect {
        /// How long new connections are begun.
        millis: u32,
    },
    /// Measures bytes per second, or the time of a message there and back, with verbs and no stream.
    Verbs(VerbsTask),
}

/// What carries the bytes of a measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) enum Layer {
    Stream,
    /// TCP sockets without this crate's protocol.
    Socket,
}

/// The ways in which bytes travel at the same time. Messages carry the number of the variant, reports its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Traffic {
    /// From the end that dials to the end that listens.
    Forward,
    /// From the end that listens to the end that dials.
    Backward,
    /// Both ways at once.
    Both,
}

/// A measurement of bytes per second.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct BandwidthTask {
    pub(crate) layer: Layer,
    pub(crate) traffic: Traffic,
    /// The number of connections, which carry bytes at the same time: at least 1.
    pub(crate) streams: u16,
    /// The number of rails of each stream; none is what the options of the order say.
    pub(crate) rails: Option<u8>,
    /// How long bytes are sent.
    pub(crate) millis: u32,
}

/// How an end waits for a message. Messages carry the number of the variant, reports its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum WaitMode {
    /// As a stream does by default: polls while that finds messages.
    Adaptive,
    /// Sleeps until an event.
    Event,
    /// Polls all the time.
    Busy,
}

/// A measurement of the time of a message there and back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LatencyTask {
    pub(crate) layer: Layer,
    pub(crate) wait: WaitMode,
    /// The size of the message in bytes, at least 1.
    pub(crate) size: u32,
    /// How long messages are sent.
    pub(crate) millis: u32,
}

/// An operation of RDMA. Messages carry the number of the variant, reports its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Verb {
    Write,
    Read,
    /// SEND into a posted receive.
    Send,
}

/// A measurement with verbs: operations of one queue pair.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct VerbsTask {
    pub(crate) verb: Verb,
    /// [`WaitMode::Busy`] or [`WaitMode::Event`].
    pub(crate) wait: WaitMode,
    /// True for a ping-pong; false for as many operations as possible, from the end that dials.
    pub(crate) is_pingpong: bool,
    /// The size of an operation in bytes.
    pub(crate) size: u32,
    /// The most operations that are posted and not complete. A ping-pong has one.
    pub(crate) depth: u32,
    /// Operations of at most this size carry their bytes in the work request.
    pub(crate) inline_bytes: u32,
    /// Of so many operations one makes a completion at the end that posts them; at least 1, and at most `depth`.
    pub(crate) signal_every: u32,
    /// How long operations are posted.
    pub(crate) millis: u32,
    /// The port of the end that dials.
    pub(crate) dialer: VerbsPort,
    /// The port of the end that listens.
    pub(crate) listener: VerbsPort,
    /// The MTU of the path in bytes.
    pub(crate) mtu: u16,
}

/// An RDMA port under one of its addresses.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct VerbsPort {
    /// The name of the device: `mlx5_0`.
    pub(crate) device: String,
    /// The number of the port, from 1.
    pub(crate) port: u8,
    /// The row of the address in the port's GID table.
    pub(crate) gid_index: u8,
}

/// A measurement of a file or a directory of one host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum StorageTask {
    /// Reads this file.
    Read {
        /// The path. It need not be UTF-8.
        path: Vec<u8>,
        /// How long the file is read at most.
        millis: u32,
    },
    /// Writes a new file in this directory, and removes it.
    Write {
        /// The directory. It need not be UTF-8.
        path: Vec<u8>,
        /// How long bytes are written. The time until they are on the disk counts too.
        millis: u32,
    },
}

/// What one end of a task has measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) enum TaskResult {
    /// The end that listens, if it has measured nothing of its own.
    Served,
    /// The other end was reached.
    Reached { address: String },
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

/// What one end of a measurement of bytes per second has counted.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct BandwidthResult {
    /// The bytes that this end has sent, and the other end has confirmed.
    pub(crate) bytes_sent: u64,
    pub(crate) bytes_received: u64,
    /// The operations of this end: of verbs only.
    pub(crate) operations: u64,
    /// The time from the first byte to the last one, in nanoseconds.
    pub(crate) nanos: u64,
    /// The processor time of this end's process in that time, in nanoseconds.
    pub(crate) cpu_nanos: u64,
    /// What the network stack and the RDMA port have counted in that time.
    pub(crate) counters: NetworkCounters,
    /// What all programs of this host did with its processors in that time.
    pub(crate) load: HostLoad,
    /// What carried the streams; none for sockets and verbs.
    pub(crate) transport: Option<EdgeLink>,
}

/// Counters of a host that show lost packets, or how much they grew during a task. They count all programs of the host.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct NetworkCounters {
    pub(crate) tcp_segments: u64,
    /// The TCP segments that were sent again.
    pub(crate) tcp_retransmitted: u64,
    pub(crate) rdma_packets: u64,
    /// The signs of lost packets that RDMA ports have counted: packets out of order, and time limits that passed.
    pub(crate) rdma_losses: u64,
}

/// What all programs of a host did with its processors during a task. Without a processor it is not known.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct HostLoad {
    /// A number of the running kernel: the same at two ends only if they share their processors.
    pub(crate) kernel: u64,
    pub(crate) processors: u32,
    /// The time of all processors in which they were not idle, in nanoseconds.
    pub(crate) busy_nanos: u64,
    /// The part of that time in which they ran programs, and no interrupts, in nanoseconds.
    pub(crate) programs_nanos: u64,
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
    pub(crate) transport: Option<EdgeLink>,
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
    pub(crate) sent: u32,
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

/// What an agent has found out about its host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct HostFacts {
    /// The name of the host, and its addresses.
    pub(crate) hello: AgentHello,
    pub(crate) version: String,
    /// True if this rdpipe was built with RDMA.
    pub(crate) has_rdma_build: bool,
    /// The release of the kernel: `6.1.0-18-amd64`.
    pub(crate) kernel: String,
    pub(crate) processor: String,
    /// The number of processors that this process may use.
    pub(crate) processors: u32,
    /// How fast one thread encrypts, with each cipher.
    pub(crate) ciphers: Vec<CipherSpeed>,
    /// The scaling governor of the processors; none if the frequency is not scaled, or not by this kernel.
    pub(crate) governor: Option<String>,
    /// The clock source of the kernel: `tsc`, `kvm-clock`.
    pub(crate) clock_source: Option<String>,
    /// The time of the host's clock, in milliseconds since 1970.
    pub(crate) clock_ms: u64,
    /// How much memory may be pinned.
    pub(crate) memlock: MemlockFacts,
    /// The RDMA devices, usable or not.
    pub(crate) devices: Vec<DeviceFacts>,
    /// The reason why this host cannot use RDMA; none if it can.
    pub(crate) no_rdma: Option<String>,
    /// The interfaces with an address that other hosts may use.
    pub(crate) addresses: Vec<AddressFacts>,
}

/// How fast one thread of a host encrypts, which is how fast it decrypts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CipherSpeed {
    pub(crate) cipher: Cipher,
    pub(crate) bytes_per_second: u64,
}

impl CipherSpeed {
    /// Returns the bytes per second.
    pub(crate) fn rate(&self) -> f64 {
        #[allow(clippy::cast_precision_loss, reason = "a report shows a few digits")]
        let rate = self.bytes_per_second as f64;
        rate
    }
}

/// How much memory may be pinned.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct MemlockFacts {
    /// The limit in bytes; none if there is none.
    pub(crate) limit: Option<u64>,
    /// What one end of a stream with the settings of the order pins, in bytes; 0 in a build without RDMA.
    pub(crate) needed: u64,
    /// The least that one end of a stream needs, in bytes; 0 in a build without RDMA.
    pub(crate) least: u64,
    /// True if the process is root's, with the right to pin any amount.
    pub(crate) is_privileged: bool,
}

/// One RDMA device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct DeviceFacts {
    /// The name: `mlx5_0`.
    pub(crate) name: String,
    pub(crate) is_software: bool,
    /// The reason why the device cannot be used, in words that follow its name; none if it can.
    pub(crate) fault: Option<String>,
    /// The device file that this user may not open; none if rights are no problem.
    pub(crate) forbidden_file: Option<String>,
    /// The version of the firmware, if the device has one.
    pub(crate) firmware: Option<String>,
    pub(crate) ports: Vec<PortFacts>,
}

/// One port of an RDMA device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PortFacts {
    /// The number, from 1.
    pub(crate) number: u8,
    /// `ACTIVE` and others.
    pub(crate) state: String,
    /// `InfiniBand`, `Ethernet`, or what the kernel says.
    pub(crate) link_layer: String,
    /// The rate in Mbit/s; 0 if it is not known. Software devices always say 2,500.
    pub(crate) rate_mbps: u32,
    /// The reason why the port cannot be used, in words that follow its name; none if it can.
    pub(crate) fault: Option<String>,
    /// The network interface of the port: of Ethernet only, and only if it is known.
    pub(crate) netdev: Option<String>,
    /// The addresses that a peer may use, for the user: `GID 3 (RoCE v2, 10.1.0.5 on eth0), MTU 1024`.
    pub(crate) gids: Vec<String>,
}

/// An interface with an address.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct AddressFacts {
    /// The name of the interface.
    pub(crate) netdev: String,
    pub(crate) address: std::net::IpAddr,
    /// The MTU of the interface in bytes; 0 if it is not known.
    pub(crate) mtu: u32,
    /// The rate of the interface in Mbit/s; none if the driver does not say it.
    pub(crate) rate_mbps: Option<u32>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_of_any_size_is_refused() {
        let streams = |streams| {
            TaskKind::Bandwidth(BandwidthTask {
                layer: Layer::Stream,
                traffic: Traffic::Forward,
                streams,
                rails: None,
                millis: 1,
            })
        };
        let size = |size| {
            TaskKind::Latency(LatencyTask {
                layer: Layer::Socket,
                wait: WaitMode::Event,
                size,
                millis: 1,
            })
        };
        for allowed in [streams(1), streams(64), size(1), size(16 << 20)] {
            assert_eq!(allowed.check(), Ok(()));
        }
        for refused in [streams(0), streams(65), size(0), size((16 << 20) + 1)] {
            assert!(refused.check().is_err(), "{refused:?}");
        }
    }
}
