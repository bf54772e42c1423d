//! The interface of what the supervisor runs on agents: a pipeline, or a copy. Pure, no I/O.

use super::{Action, edge_setup::EdgeSetup};
use crate::ssh::{
    outcome::RunFault,
    plan::StageHost,
    protocol::{EdgeOrder, Payload, PayloadError, Work, WorkFault},
};

/// What the supervisor runs on agents. It decides what its agents do, and its machine
/// ([`SupervisorMachine`](super::machine::SupervisorMachine)) connects them, starts them and ends them.
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

    /// Handles the application's part of an agent's report, and the fault beside it. Without an implementation the report has no
    /// such part.
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

    /// Returns true if the fault in an agent's report, which was handled before, is one of ssh, of the network or of the
    /// agent, and not one of the user's command or file. `is_connecting`: some edge is not connected yet.
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
