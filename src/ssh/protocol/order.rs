//! The order that an agent receives: its work, and the edges that the work uses.

use serde::{Deserialize, Serialize};
use zeroize::Zeroize;

use super::Payload;
use crate::{Direction, options::StreamOptions};

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
    pub(crate) stream: StreamOptions,
    /// The first and the last port to listen on; none is any port.
    pub(crate) ports: Option<(u16, u16)>,
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
    pub(crate) direction: Direction,
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
