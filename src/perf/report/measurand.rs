//! What is measured, and the task that measures it.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{
    host_summary::{SizeText, WaitName},
    operations::{FigureName, Operations},
};
use crate::perf::messages::{
    BandwidthTask, LatencyTask, Layer, PortPairProof, TaskKind, Traffic, Verb, VerbsTask, WaitMode,
};

/// What is measured between two hosts, or at one. Two reports have the same measurement if these values are equal.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(tag = "measure", rename_all = "lowercase")]
pub(crate) enum Measurand {
    /// Bytes per second.
    Bandwidth {
        carrier: Carrier,
        transport: Medium,
        traffic: TrafficName,
        streams: u16,
        /// The size of an operation in bytes: of verbs only.
        size: Option<u32>,
    },
    /// The time of a message there and back.
    Latency {
        carrier: Carrier,
        transport: Medium,
        wait: WaitName,
        /// The size of the message in bytes.
        size: u32,
    },
    /// The time from dialing to the first byte from the other end.
    Connect { transport: Medium },
    /// Operations of RDMA: a point of a sweep.
    Operations(Operations),
    /// Bytes per second of a file that is read.
    Read { path: String },
    /// Bytes per second of a file that is written, until it is on the disk.
    Write { path: String },
}

/// What carries the bytes of a measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Carrier {
    /// A stream of this crate.
    Stream,
    /// A TCP socket.
    Socket,
    /// RDMA WRITE, without a stream.
    Write,
    /// RDMA SEND, without a stream.
    Send,
}

/// TCP or RDMA.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Medium {
    Tcp,
    Rdma,
}

/// [`Traffic`] in a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum TrafficName {
    Forward,
    Backward,
    Both,
}

/// The most operations of verbs that are posted and not complete, as in `ib_write_bw`.
const BANDWIDTH_DEPTH: u32 = 128;

/// Of so many operations one makes a completion, as in `ib_write_bw`.
const BANDWIDTH_SIGNAL: u32 = 100;

/// The largest operation of a ping-pong that carries its bytes in the work request, as in `ib_write_lat`.
const PING_INLINE: u32 = 220;

impl Measurand {
    /// Returns the transport; none of a measurement of one host.
    pub(crate) fn medium(&self) -> Option<Medium> {
        match self {
            Self::Bandwidth { transport, .. }
            | Self::Latency { transport, .. }
            | Self::Connect { transport } => Some(*transport),
            Self::Operations(_) => Some(Medium::Rdma),
            Self::Read { .. } | Self::Write { .. } => None,
        }
    }

    /// Returns true if a larger value is a better one.
    pub(crate) fn is_rate(&self) -> bool {
        match self {
            Self::Bandwidth { .. } | Self::Read { .. } | Self::Write { .. } => true,
            Self::Operations(operations) => operations.figure == FigureName::Rate,
            Self::Latency { .. } | Self::Connect { .. } => false,
        }
    }

    /// Returns the task of two hosts that measures this for `millis`. Verbs use this pair of ports. Returns none if two
    /// hosts cannot measure it.
    pub(crate) fn task(&self, millis: u32, ports: Option<&PortPairProof>) -> Option<TaskKind> {
        match *self {
            Self::Bandwidth {
                carrier,
                traffic,
                streams,
                size,
                ..
            } => match carrier.layer() {
                Ok(layer) => Some(TaskKind::Bandwidth(BandwidthTask {
                    layer,
                    traffic: traffic.into(),
                    streams,
                    millis,
                })),
                Err(verb) => Some(TaskKind::Verbs(VerbsTask {
                    depth: BANDWIDTH_DEPTH,
                    signal_every: BANDWIDTH_SIGNAL,
                    inline_bytes: 0,
                    ..verbs(verb, WaitMode::Busy, size?, millis, ports?)
                })),
            },
            Self::Latency {
                carrier,
                wait,
                size,
                ..
            } => match carrier.layer() {
                Ok(layer) => Some(TaskKind::Latency(LatencyTask {
                    layer,
                    wait: wait.into(),
                    size,
                    millis,
                })),
                Err(verb) => Some(TaskKind::Verbs(VerbsTask {
                    is_pingpong: true,
                    ..verbs(verb, wait.into(), size, millis, ports?)
                })),
            },
            Self::Connect { .. } => Some(TaskKind::Connect { millis }),
            Self::Operations(operations) => Some(TaskKind::Verbs(operations.task(millis, ports?))),
            Self::Read { .. } | Self::Write { .. } => None,
        }
    }
}

fn verbs(verb: Verb, wait: WaitMode, size: u32, millis: u32, ports: &PortPairProof) -> VerbsTask {
    VerbsTask {
        verb,
        wait,
        is_pingpong: false,
        size,
        depth: 1,
        inline_bytes: PING_INLINE,
        signal_every: 1,
        millis,
        dialer: ports.dialer.clone(),
        listener: ports.listener.clone(),
        mtu: ports.mtu,
    }
}

impl Carrier {
    /// Returns the layer of a measurement without verbs, or the verb.
    fn layer(self) -> Result<Layer, Verb> {
        match self {
            Self::Stream => Ok(Layer::Stream),
            Self::Socket => Ok(Layer::Socket),
            Self::Write => Err(Verb::Write),
            Self::Send => Err(Verb::Send),
        }
    }
}

impl From<TrafficName> for Traffic {
    fn from(name: TrafficName) -> Self {
        match name {
            TrafficName::Forward => Self::Forward,
            TrafficName::Backward => Self::Backward,
            TrafficName::Both => Self::Both,
        }
    }
}

impl fmt::Display for Medium {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tcp => "TCP",
            Self::Rdma => "RDMA",
        })
    }
}

/// Shows a measurement without its transport: "stream, both ways".
impl fmt::Display for Measurand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bandwidth {
                carrier,
                traffic,
                streams,
                size,
                ..
            } => {
                match (carrier, streams) {
                    (Carrier::Stream, 1) => f.write_str("stream")?,
                    (Carrier::Stream, count) => write!(f, "{count} streams")?,
                    (Carrier::Socket, 1) => f.write_str("socket")?,
                    (Carrier::Socket, count) => write!(f, "{count} sockets")?,
                    (Carrier::Write, _) => f.write_str("verbs WRITE")?,
                    (Carrier::Send, _) => f.write_str("verbs SEND")?,
                }
                if let Some(size) = size {
                    write!(f, " of {}", SizeText(*size))?;
                }
                f.write_str(match traffic {
                    TrafficName::Forward => ", one way",
                    TrafficName::Backward => ", the other way",
                    TrafficName::Both => ", both ways",
                })
            }
            Self::Latency {
                carrier,
                wait,
                size,
                ..
            } => {
                write!(f, "{}, ", SizeText(*size))?;
                f.write_str(match carrier {
                    Carrier::Stream => "stream",
                    Carrier::Socket => "socket",
                    Carrier::Write => "verbs WRITE",
                    Carrier::Send => "verbs SEND",
                })?;
                f.write_str(match wait {
                    WaitName::Adaptive => "",
                    WaitName::Event => ", events",
                    WaitName::Busy => ", busy",
                })
            }
            Self::Connect { .. } => f.write_str("connect"),
            Self::Operations(operations) => operations.fmt(f),
            Self::Read { path } => write!(f, "read {path}"),
            Self::Write { path } => write!(f, "write {path}"),
        }
    }
}
