//! Brings the stages up, watches them, and merges their ends.
//!
//! What is to be done is decided by the [`machine`]: events in, actions out, no I/O. The [`driver`] carries
//! its actions out.

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

/// What the user wants of the whole pipeline, beside the stages.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    /// How the stream of every edge is set up.
    pub(crate) stream: StreamOrder,
    /// Whether files are fsynced before they are committed.
    pub(crate) fsync: bool,
    /// `--addr`.
    pub(crate) addresses: Vec<Addresses>,
    /// `-H`: where other hosts find this machine.
    pub(crate) here: Option<String>,
    /// The identity of this machine's network stack, as in [`AgentHello`](super::protocol::AgentHello).
    pub(crate) machine: Option<String>,
}

/// Something that happened.
#[derive(Debug, Clone)]
pub(crate) enum Event {
    /// An agent said this.
    Message(usize, FromAgent),
    /// A session is over, and so are its processes here.
    Closed(usize, SessionEnd),
    /// One of the controller's own edges: what the first stage reads, or what the last one writes.
    Local(EdgeId, LocalEdgeEvent),
    /// The user, or the system, wants it to end.
    Signal { number: u8, name: &'static str },
    /// Time went by.
    Tick,
}

/// Something to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Action {
    Send(usize, ToAgent),
    /// End the session of this stage, whatever it does.
    Kill(usize),
    /// Connect one of the controller's own edges.
    Dial {
        edge: EdgeId,
        addresses: Vec<String>,
        port: u16,
    },
    /// Move bytes on the controller's own edges.
    Go,
    /// Give up one of the controller's own edges, for this reason.
    Abort(EdgeId, String),
    /// Tell the user.
    Notify(Notice),
    /// All is over.
    Done,
}

/// Something to tell the user, by how much it matters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Notice {
    /// What a stage's command, its shell or ssh wrote to stderr.
    Words(usize, String),
    /// A file of this stage's that could not be opened, and why.
    Unreadable(usize, String),
    Warning(String),
    Note(String),
    Detail(String),
}

/// What is known in the end.
#[derive(Debug, Clone, Default)]
pub(crate) struct Summary {
    /// How the stages ended, and what broke.
    pub(crate) outcome: PipelineOutcome,
    /// The name that each stage's host has for itself.
    pub(crate) hosts: Vec<Option<String>>,
    /// What carried each edge.
    pub(crate) links: Vec<Option<EdgeLink>>,
}
