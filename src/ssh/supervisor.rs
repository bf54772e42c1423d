//! Brings the stages up, watches them, and merges their ends.
//!
//! What is to be done is decided by the [`machine`]: events in, actions out, no I/O. The [`driver`] carries
//! its actions out.

pub(crate) mod driver;
pub(crate) mod edge;
pub(crate) mod machine;
#[cfg(test)]
mod tests;

use super::{
    outcome::Ends,
    plan::Addresses,
    protocol::{End, Fault, FromAgent, Link, StreamOrder, ToAgent},
};

/// What the user wants of the whole pipeline, beside the stages.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub(crate) stream: StreamOrder,
    pub(crate) fsync: bool,
    /// `--addr`.
    pub(crate) addresses: Vec<Addresses>,
    /// `-H`: where other hosts find this machine.
    pub(crate) here: Option<String>,
    /// What an agent on this machine would say in [`Hello`](super::protocol::Hello).
    pub(crate) machine: Option<String>,
}

/// Something that happened.
#[derive(Debug, Clone)]
pub(crate) enum Event {
    /// An agent said this.
    Message(usize, FromAgent),
    /// A session is over, and so are its processes here.
    Closed(usize, Closing),
    /// One of rdpipe's own edges: its input is what the first stage reads.
    Own(End, OwnEvent),
    /// The user, or the system, wants it to end.
    Signal { number: u8, name: &'static str },
    /// Time went by.
    Tick,
}

/// The end of a session.
#[derive(Debug, Clone)]
pub(crate) struct Closing {
    /// Why, if that was too early.
    pub(crate) why: String,
    /// Whether a signal that nobody here had sent ended the agent.
    pub(crate) killed: bool,
}

/// What happens to one of rdpipe's own edges.
#[derive(Debug, Clone)]
pub(crate) enum OwnEvent {
    Connected(Link),
    /// No address could be reached: each with what happened there.
    Unreachable(Vec<(String, String)>),
    Ended(OwnEnd),
}

/// How one of rdpipe's own edges ended.
#[derive(Debug, Clone, Default)]
pub(crate) struct OwnEnd {
    pub(crate) fault: Option<Fault>,
    /// Whoever read rdpipe's output wants no more.
    pub(crate) reader_left: bool,
}

/// Something to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Action {
    Send(usize, ToAgent),
    /// End the session of this stage, whatever it does.
    Kill(usize),
    /// Connect one of rdpipe's own edges.
    Dial {
        end: End,
        addresses: Vec<String>,
        port: u16,
    },
    /// Let rdpipe's own bytes flow.
    Go,
    /// Give one of rdpipe's own edges up.
    Abort(End, String),
    Tell(Notice),
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
    pub(crate) ends: Ends,
    /// The name that each stage's host has for itself.
    pub(crate) hosts: Vec<Option<String>>,
    /// What carried each edge.
    pub(crate) links: Vec<Option<Link>>,
}
