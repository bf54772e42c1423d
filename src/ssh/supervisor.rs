//! Starts the stages of a pipeline, watches them, and merges their results.
//!
//! The [`machine`] makes every decision: it receives events and returns actions, without I/O. The [`driver`]
//! carries the actions out.

pub(crate) mod driver;
pub(crate) mod edge_setup;
pub(crate) mod machine;
#[cfg(test)]
mod tests;

use super::{
    local_edge::LocalEdgeEvent,
    outcome::PipelineOutcome,
    plan::Addresses,
    protocol::{EdgeId, EdgeLink, FromAgent, StreamOrder, ToAgent},
    session::SessionEnd,
};

/// The user's options for the whole pipeline.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    /// How the stream of every edge is set up.
    pub(crate) stream: StreamOrder,
    /// Whether files are fsynced before they are committed.
    pub(crate) fsync: bool,
    /// The values of `--addr`.
    pub(crate) addresses: Vec<Addresses>,
    /// The value of `-H`: the address at which other hosts reach this machine.
    pub(crate) here: Option<String>,
    /// The identity of this machine's network stack, as in [`AgentHello`](super::protocol::AgentHello).
    pub(crate) machine: Option<String>,
}

/// An event that the pipeline's machine handles.
#[derive(Debug, Clone)]
pub(crate) enum Event {
    /// The agent of this stage has sent a message.
    Message(usize, FromAgent),
    /// The session of this stage has ended, and its processes on this machine have exited.
    Closed(usize, SessionEnd),
    /// An event of one of the controller's own edges: the input of the first stage, or the output of the last one.
    Local(EdgeId, LocalEdgeEvent),
    /// This program has received a signal to end.
    Signal { number: u8, name: &'static str },
    /// The deadline of the machine has passed.
    Tick,
}

/// An action that the pipeline's machine requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Action {
    /// Send this message to the agent of this stage.
    Send(usize, ToAgent),
    /// Kill the session of this stage.
    Kill(usize),
    /// Connect one of the controller's own edges.
    Dial {
        edge: EdgeId,
        addresses: Vec<String>,
        port: u16,
    },
    /// Move bytes on the controller's own edges.
    Go,
    /// Abort one of the controller's own edges, for this reason.
    Abort(EdgeId, String),
    /// Show this notice to the user.
    Notify(Notice),
    /// Return: the pipeline has ended.
    Done,
}

/// A text for the user. The variants are in the order of their weight, the heaviest first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Notice {
    /// A line that the stage's command, its shell or ssh wrote to stderr.
    Words(usize, String),
    /// A file of this stage that could not be opened, and the reason.
    Unreadable(usize, String),
    /// A problem that is not a failure.
    Warning(String),
    /// A fact that a user may want to act on: an edge goes over TCP, say.
    Note(String),
    /// A detail that is shown only with `-v`.
    Detail(String),
}

/// The final state of a pipeline.
#[derive(Debug, Clone, Default)]
pub(crate) struct Summary {
    /// How the stages ended, and what broke.
    pub(crate) outcome: PipelineOutcome,
    /// The name that each stage's host has for itself, if its agent has reported it.
    pub(crate) hosts: Vec<Option<String>>,
    /// What carried each edge.
    pub(crate) links: Vec<Option<EdgeLink>>,
}
