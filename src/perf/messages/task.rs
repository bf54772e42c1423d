//! Tasks: what two agents measure together, or one agent alone.

use std::fmt;

use serde::{Deserialize, Serialize};
use zeroize::Zeroize;

use super::{HostFacts, TaskFault, TaskResult};
use crate::ssh::protocol::{StreamOrder, TransportOrder};

/// rdperf's part of the order for an agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PerfOrder {
    /// How the streams of the tasks are set up. A task overrides the transport and how it waits.
    pub(crate) stream: StreamOrder,
}

/// A message from rdperf to an agent. The order of the variants is the wire format.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum ToPerf {
    /// Opens a port, reports it with [`FromPerf::Listening`], and carries out the task with the end that dials.
    Listen(TaskOrder),
    /// Connects to the end that listens, and carries out the task with it.
    Dial {
        /// The task.
        order: TaskOrder,
        /// Where the other end may be reached, the best address first.
        addresses: Vec<String>,
        /// The port of the other end.
        port: u16,
    },
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
        /// The port.
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

/// A task of two agents.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TaskOrder {
    /// The number of the task, for messages about it.
    pub(crate) id: u32,
    /// The text of the key that only the two ends of this task have.
    pub(crate) key: String,
    /// The name of the other end in messages: "fs2".
    pub(crate) peer: String,
    /// The transport of the task's streams.
    pub(crate) transport: TransportOrder,
    /// What the two ends do.
    pub(crate) kind: TaskKind,
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

/// The two ends of a task.
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

impl TaskKind {
    /// Checks that an agent can carry out the task with bounded memory. The verbs check their own limits.
    ///
    /// # Errors
    ///
    /// One sentence for the user.
    pub(crate) fn check(&self) -> Result<(), String> {
        match self {
            Self::Bandwidth(task) if !(1..=MAX_TASK_STREAMS).contains(&task.streams) => {
                Err(format!("a measurement has 1 to {MAX_TASK_STREAMS} streams"))
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
    /// Streams of this crate.
    Stream,
    /// TCP sockets without this crate's protocol.
    Socket,
}

/// The ways in which bytes travel at the same time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
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
    /// How long bytes are sent.
    pub(crate) millis: u32,
}

/// How an end waits for a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
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

/// An operation of RDMA.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) enum Verb {
    /// RDMA WRITE.
    Write,
    /// SEND into a posted receive.
    Send,
    /// RDMA READ.
    Read,
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
