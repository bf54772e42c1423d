//! Starts agents, connects them, watches them, and merges their results.
//!
//! The [`machine`] makes every decision that is the same for all work: it receives events and returns actions,
//! without I/O. The [`driver`] carries the actions out. The work of rdpipe and rdcat is a [`pipeline`]; that of other
//! programs is above this module.
//!
//! | file | what it has |
//! |---|---|
//! | `machine` | every decision that is the same for all work: events in, actions out |
//! | `edge_setup` | which end of an edge listens and which dials, and how they swap if that fails |
//! | `pipeline` | a pipeline as such work |
//! | `driver` | carries the actions out: sessions, own edges, deadlines, notices |

pub(crate) mod driver;
pub(crate) mod edge_setup;
pub(crate) mod machine;
pub(crate) mod pipeline;
#[cfg(test)]
mod tests;

use self::edge_setup::EdgeSetup;
use super::{
    local_edge::LocalEdgeEvent,
    outcome::PipelineOutcome,
    plan::Addresses,
    protocol::{EdgeId, EdgeLink, FromAgent, Payload, StreamOrder, ToAgent},
    session::SessionEnd,
};
use crate::ssh::{
    outcome::RunFault,
    plan::StageHost,
    protocol::{EdgeOrder, PayloadError, Work, WorkFault},
};

/// The user's options for the whole run.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    /// How the stream of every edge is set up.
    pub(crate) stream: StreamOrder,
    /// The values of `--addr`.
    pub(crate) addresses: Vec<Addresses>,
    /// The value of `-H`: the address at which other hosts reach this machine.
    pub(crate) here: Option<String>,
    /// The identity of this machine's network stack, as in [`AgentHello`](super::protocol::AgentHello).
    pub(crate) machine: Option<String>,
}

/// An event that the machine of a run handles.
#[derive(Debug, Clone)]
pub(crate) enum Event {
    /// This agent has sent a message.
    Message(usize, FromAgent),
    /// The session of this agent has ended, and its processes on this machine have exited.
    Closed(usize, SessionEnd),
    /// An event of one of the controller's own edges: of a pipeline, the input of the first stage or the output of the
    /// last one.
    Local(EdgeId, LocalEdgeEvent),
    /// The controller's own program has this message for the application of this agent.
    Request(usize, Payload),
    /// This program has received a signal to end.
    Signal { number: u8, name: &'static str },
    /// The deadline of the machine has passed.
    Tick,
}

/// An action that the machine of a run requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Action {
    /// Send this message to this agent.
    Send(usize, ToAgent),
    /// Kill the session of this agent.
    CutSession(usize),
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
    /// Return: the run has ended.
    Done,
}

/// A text for the user. The variants are in the order of their weight, the heaviest first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Notice {
    /// A line that the agent's command, its shell or ssh wrote to stderr.
    StderrLine(usize, String),
    /// A file of this agent that could not be opened, and the reason.
    Unreadable(usize, String),
    /// A problem that is not a failure.
    Warning(String),
    /// A fact that a user may want to act on: an edge goes over TCP, say.
    Note(String),
    /// A detail that is shown only with `-v`.
    Detail(String),
}

/// The final state of a run; of a pipeline, unless `O` is the outcome of other work.
#[derive(Debug, Clone, Default)]
pub(crate) struct Summary<O = PipelineOutcome> {
    /// How the work ended, and what broke.
    pub(crate) outcome: O,
    /// The name that each agent's host has for itself, if its agent has reported it.
    pub(crate) hosts: Vec<Option<String>>,
    /// What carried each edge.
    pub(crate) links: Vec<Option<EdgeLink>>,
}

/// What the supervisor runs on agents. It decides what its agents do, and its machine
/// ([`SupervisorMachine`](self::machine::SupervisorMachine)) connects them, starts them and ends them.
pub(crate) trait SupervisedWork {
    /// How the work ended.
    type Outcome;

    /// What the work is, in messages: "pipeline".
    const NOUN: &'static str;

    /// Returns the place of each agent, in order.
    fn places(&self) -> Vec<&StageHost>;

    /// Returns the edges before their first attempt, by index. An index without an edge is none.
    fn edges(&self) -> Vec<Option<EdgeSetup>>;

    /// Returns the name of an agent's work as it stands in a sentence: "stage 2 (fs2)".
    fn site(&self, agent: usize) -> String;

    /// Returns the name of the controller's program.
    fn program(&self) -> &'static str;

    /// Returns the application's part of the order for an agent that has these edges.
    ///
    /// # Errors
    ///
    /// Fails if the order is too long.
    fn order(&self, agent: usize, edges: &[EdgeOrder]) -> Result<Work, PayloadError>;

    /// Handles the application's message of an agent. Returns the notices to show.
    ///
    /// # Errors
    ///
    /// Fails if the message cannot be decoded.
    fn handle(&mut self, agent: usize, message: &Payload) -> Result<Vec<Action>, PayloadError>;

    /// Handles the application's part of an agent's report, and the fault beside it. Without an implementation the
    /// report has no such part.
    ///
    /// # Errors
    ///
    /// Fails if the report cannot be decoded. The agent still counts as one that has reported.
    fn handle_report(
        &mut self,
        agent: usize,
        result: Option<&Payload>,
        fault: Option<&WorkFault>,
    ) -> Result<(), PayloadError> {
        let _ = (agent, result, fault);
        Ok(())
    }

    /// Returns true if the fault in an agent's report, which was handled before, is one of ssh, of the network or of
    /// the agent, and not one of the user's command or file. `is_connecting`: some edge is not connected yet.
    fn is_infrastructure(&self, agent: usize, fault: &WorkFault, is_connecting: bool) -> bool;

    /// Returns what the agents are to be told now. Called after each message and report, until the work ends.
    fn requests(&mut self) -> Vec<Action> {
        Vec::new()
    }

    /// Returns how the work ended, as far as it is known.
    fn outcome(&self, run: RunEnd) -> Self::Outcome;
}

/// How a run ended, apart from what its work knows itself.
#[derive(Debug, Clone, Default)]
pub(crate) struct RunEnd {
    /// The fault in each agent's report.
    pub(crate) faults: Vec<Option<WorkFault>>,
    /// Every fault, in the order in which the controller received them.
    pub(crate) causes: Vec<RunFault>,
    /// Whether the reader of the controller's output closed it before the end.
    pub(crate) reader_left: bool,
    /// The signal that ended the run.
    pub(crate) signal: Option<u8>,
}
