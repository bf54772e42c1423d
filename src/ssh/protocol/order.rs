//! The order that an agent receives: its work, and the edges that the work uses.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use zeroize::Zeroize;

use super::Payload;
use crate::{Direction, RdmaConfig, StreamConfig, TransportPolicy};

/// One piece of work for one agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Order {
    /// How messages name this work to the peers on its edges: "stage 2 (fs2)".
    pub(crate) name: String,
    /// What the agent does.
    pub(crate) work: Work,
    /// The edges that the work uses: any number, all with different ids.
    pub(crate) edges: Vec<EdgeOrder>,
    /// How the stream of every edge is set up.
    pub(crate) stream: StreamOrder,
}

/// Which application an order is for, and the application's own part of the order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Work {
    /// A stage of a pipeline, or the files that rdcat reads: a [`StageOrder`](crate::ssh::stage::StageOrder).
    Stage(Payload),
    /// One side of a copy of files: a `CopyOrder` of rdcp.
    Copy(Payload),
    /// The measurements of one host: a `PerfOrder` of rdperf. It has no edges: each measurement makes its own streams.
    Measure(Payload),
    /// The far end of a tunnel: a `ForwardOrder` of rdforward. It has one edge, to the controller.
    Forward(Payload),
}

impl Work {
    /// Returns the application's part of the order.
    pub(crate) fn payload(&self) -> &Payload {
        match self {
            Self::Stage(payload)
            | Self::Copy(payload)
            | Self::Measure(payload)
            | Self::Forward(payload) => payload,
        }
    }
}

/// The name of an edge. All agents of one run use the same id for the same edge.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct EdgeId(pub(crate) u32);

impl EdgeId {
    /// Returns the id of the edge at this index in a list of all edges.
    pub(crate) fn of_index(index: usize) -> Self {
        Self(u32::try_from(index).unwrap_or(u32::MAX))
    }

    /// Returns the index of the edge in a list of all edges.
    pub(crate) fn index(self) -> usize {
        usize::try_from(self.0).unwrap_or(usize::MAX)
    }
}

impl std::fmt::Display for EdgeId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// One end of an edge.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct EdgeOrder {
    /// The id that all messages about the edge use.
    pub(crate) id: EdgeId,
    /// The directions in which bytes travel, seen from this end.
    pub(crate) direction: EdgeDirection,
    /// The name of the other end in messages: "stage 1 (fs1)", "rdpipe", "rdcat".
    pub(crate) peer: String,
    /// The text of the key that only the two ends of this edge have.
    pub(crate) key: String,
    /// True if this end listens from the start. Otherwise it waits for
    /// [`ToAgent::Dial`](super::ToAgent::Dial).
    pub(crate) listens: bool,
}

impl Drop for EdgeOrder {
    fn drop(&mut self) {
        self.key.zeroize();
    }
}

impl std::fmt::Debug for EdgeOrder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EdgeOrder")
            .field("id", &self.id)
            .field("direction", &self.direction)
            .field("peer", &self.peer)
            .field("listens", &self.listens)
            .finish_non_exhaustive()
    }
}

/// The directions in which the bytes of an edge travel, seen from one end: [`Direction`] in the wire format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum EdgeDirection {
    /// This end sends.
    Send,
    /// This end receives.
    Receive,
    /// Both ends send and receive.
    Both,
}

impl From<EdgeDirection> for Direction {
    fn from(direction: EdgeDirection) -> Self {
        match direction {
            EdgeDirection::Send => Self::Send,
            EdgeDirection::Receive => Self::Receive,
            EdgeDirection::Both => Self::Both,
        }
    }
}

/// How the stream of every edge of an order is set up.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StreamOrder {
    /// `--transport`.
    pub(crate) transport: TransportOrder,
    /// The size of a chunk, if the user gave one.
    pub(crate) chunk_bytes: Option<u64>,
    /// The number of chunks, if the user gave one.
    pub(crate) depth: Option<u32>,
    /// A peer, or the controller, counts as dead after this many milliseconds of silence.
    pub(crate) timeout_ms: u64,
    /// The first and the last port to listen on; none is any port.
    pub(crate) ports: Option<(u16, u16)>,
    /// `--device`.
    pub(crate) device: Option<String>,
    /// `--ib-port`.
    pub(crate) ib_port: Option<u8>,
    /// `--gid-index`.
    pub(crate) gid_index: Option<u8>,
    /// `--traffic-class`.
    pub(crate) traffic_class: u8,
    /// `--service-level`.
    pub(crate) service_level: u8,
    /// `--pkey-index`.
    pub(crate) pkey_index: u16,
    /// `--busy-poll`, in microseconds.
    pub(crate) busy_poll_us: Option<u32>,
}

impl StreamOrder {
    /// Returns the settings that the order gives for an edge, with the current runtime.
    pub(crate) fn config(&self, direction: EdgeDirection) -> StreamConfig {
        let default = StreamConfig::default();
        let chunk_bytes = self
            .chunk_bytes
            .and_then(|bytes| usize::try_from(bytes).ok());
        let depth = self.depth.and_then(|depth| usize::try_from(depth).ok());
        StreamConfig {
            chunk_bytes: chunk_bytes.unwrap_or(default.chunk_bytes),
            depth: depth.unwrap_or(default.depth),
            timeout: Duration::from_millis(self.timeout_ms),
            transport: self.transport.into(),
            rdma: RdmaConfig {
                chunk_bytes: chunk_bytes.unwrap_or(default.rdma.chunk_bytes),
                depth: depth.unwrap_or(default.rdma.depth),
                device: self.device.clone(),
                port: self.ib_port,
                gid_index: self.gid_index,
                traffic_class: self.traffic_class,
                service_level: self.service_level,
                pkey_index: self.pkey_index,
                busy_poll: self
                    .busy_poll_us
                    .map(|time| Duration::from_micros(time.into())),
                ..default.rdma
            },
            direction: direction.into(),
            ..default
        }
    }
}

#[cfg(any(test, fuzzing))]
impl StreamOrder {
    /// Returns the order of a user who chose this transport, and gave no other option.
    pub(crate) fn over(transport: TransportOrder) -> Self {
        Self {
            transport,
            chunk_bytes: None,
            depth: None,
            timeout_ms: 30_000,
            ports: None,
            device: None,
            ib_port: None,
            gid_index: None,
            traffic_class: 0,
            service_level: 0,
            pkey_index: 0,
            busy_poll_us: None,
        }
    }
}

/// The transports that an edge may use: [`TransportPolicy`] in the wire format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum TransportOrder {
    /// RDMA where both ends have it, otherwise TCP.
    Auto,
    /// RDMA only; an edge that cannot use it fails.
    Rdma,
    /// TCP only.
    Tcp,
}

impl From<TransportPolicy> for TransportOrder {
    fn from(policy: TransportPolicy) -> Self {
        match policy {
            TransportPolicy::Auto => Self::Auto,
            TransportPolicy::Rdma => Self::Rdma,
            TransportPolicy::Tcp => Self::Tcp,
        }
    }
}

impl From<TransportOrder> for TransportPolicy {
    fn from(order: TransportOrder) -> Self {
        match order {
            TransportOrder::Auto => Self::Auto,
            TransportOrder::Rdma => Self::Rdma,
            TransportOrder::Tcp => Self::Tcp,
        }
    }
}
