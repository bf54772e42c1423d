//! A tunnel as the supervisor runs it: one agent, and an edge between it and the controller. Pure, no I/O.

use super::job::ForwardOrder;
use crate::ssh::{
    outcome::RunFault,
    plan::StageHost,
    protocol::{EdgeId, EdgeOrder, Payload, PayloadError, Work, WorkFault},
    supervisor::{
        Action,
        edge_setup::{EdgeSetup, Node},
        work::{RunEnd, SupervisedWork},
    },
};

/// The index of the only edge.
pub(crate) const TUNNEL_EDGE: usize = 0;

/// A tunnel to one host.
pub(crate) struct ForwardWork {
    place: StageHost,
}

/// How the run of a tunnel ended.
#[derive(Debug, Clone, Default)]
pub(crate) struct ForwardEnd {
    /// Every fault, in the order in which the controller received them.
    pub(crate) causes: Vec<RunFault>,
    /// The signal that ended the run.
    pub(crate) signal: Option<u8>,
}

impl ForwardWork {
    /// Returns a tunnel before its first message.
    pub(crate) fn new(place: StageHost) -> Self {
        Self { place }
    }
}

impl SupervisedWork for ForwardWork {
    type Outcome = ForwardEnd;

    const NOUN: &'static str = "tunnel";

    fn places(&self) -> Vec<&StageHost> {
        vec![&self.place]
    }

    fn edges(&self) -> Vec<Option<EdgeSetup>> {
        vec![Some(EdgeSetup::two_way(Node::Agent(0), Node::Controller))]
    }

    fn site(&self, _: usize) -> String {
        self.place.to_string()
    }

    fn program(&self) -> &'static str {
        "rdforward"
    }

    fn order(&self, _: usize, _: &[EdgeOrder]) -> Result<Work, PayloadError> {
        let order = ForwardOrder {
            edge: EdgeId::of_index(TUNNEL_EDGE),
        };
        Payload::encode(&order).map(Work::Forward)
    }

    fn handle(&mut self, _: usize, message: &Payload) -> Result<Vec<Action>, PayloadError> {
        // An agent of a tunnel sends no messages of its own.
        message.decode::<()>()?;
        Ok(Vec::new())
    }

    fn is_infrastructure(&self, _: usize, _: &WorkFault, _: bool) -> bool {
        true
    }

    fn outcome(&self, run: RunEnd) -> ForwardEnd {
        ForwardEnd {
            causes: run.causes,
            signal: run.signal,
        }
    }
}
