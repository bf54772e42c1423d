//! One host as the supervisor runs it: an agent without edges. Pure, no I/O.
//!
//! Each host is a run of its own, so a host that fails does not end the others.

use super::messages::{FromPerf, PerfOrder};
use crate::ssh::{
    outcome::RunFault,
    plan::StageHost,
    protocol::{EdgeOrder, Payload, PayloadError, Work, WorkFault},
    supervisor::{Action, RunEnd, SupervisedWork, edge_setup::EdgeSetup},
};

/// The index of the only agent of a run.
pub(crate) const ONLY_AGENT: usize = 0;

/// One host: its place, and what its agent has reported since the last look.
pub(crate) struct HostWork {
    place: StageHost,
    order: PerfOrder,
    messages: Vec<FromPerf>,
}

/// How the run of a host ended.
#[derive(Debug, Clone, Default)]
pub(crate) struct HostEnd {
    /// Every fault, in the order in which the controller received them.
    pub(crate) causes: Vec<RunFault>,
    /// The signal that ended the run.
    pub(crate) signal: Option<u8>,
}

impl HostWork {
    /// Returns a host before its first message.
    pub(crate) fn new(place: StageHost, order: PerfOrder) -> Self {
        Self {
            place,
            order,
            messages: Vec::new(),
        }
    }

    /// Returns what the agent has reported since the last call.
    pub(crate) fn take_messages(&mut self) -> Vec<FromPerf> {
        std::mem::take(&mut self.messages)
    }
}

impl SupervisedWork for HostWork {
    type Outcome = HostEnd;

    const NOUN: &'static str = "measurement";

    fn places(&self) -> Vec<&StageHost> {
        vec![&self.place]
    }

    fn edges(&self) -> Vec<Option<EdgeSetup>> {
        Vec::new()
    }

    fn site(&self, _: usize) -> String {
        match self.place.host() {
            None => "this machine".to_owned(),
            Some(host) => host.to_owned(),
        }
    }

    fn program(&self) -> &'static str {
        "rdperf"
    }

    fn order(&self, _: usize, _: &[EdgeOrder]) -> Result<Work, PayloadError> {
        Payload::encode(&self.order).map(Work::Measure)
    }

    fn handle(&mut self, _: usize, message: &Payload) -> Result<Vec<Action>, PayloadError> {
        self.messages.push(message.decode()?);
        Ok(Vec::new())
    }

    fn is_infrastructure(&self, _: usize, _: &WorkFault, _: bool) -> bool {
        // An agent that fails as a whole has measured nothing: tasks report their faults themselves.
        true
    }

    fn outcome(&self, run: RunEnd) -> HostEnd {
        HostEnd {
            causes: run.causes,
            signal: run.signal,
        }
    }
}
