//! A copy as the supervisor runs it: two agents, a control edge and lanes between them. Pure, no I/O.

#[cfg(test)]
mod tests;

use super::{
    order::{CopyEnd, CopyNews, CopyOptions, CopyOrder, CopyReport, CopyRole, FromCopy, RunPart},
    path::CopiedSources,
    written::WrittenEntries,
};
use crate::ssh::{
    outcome::RunFault,
    plan::StageHost,
    protocol::{EdgeId, EdgeOrder, FaultKind, Payload, PayloadError, ToAgent, Work, WorkFault},
    supervisor::{
        Action, RunEnd, SupervisedWork,
        edge_setup::{EdgeSetup, Node},
    },
};

/// The index of the source among the agents of a copy.
pub(crate) const SOURCE: usize = 0;

/// The index of the destination among the agents of a copy.
pub(crate) const DESTINATION: usize = 1;

/// The index of the two-way edge. The lanes follow it.
const CONTROL_EDGE: usize = 0;

/// What is copied, from where to where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CopyPlan {
    /// The host of the sources.
    pub(crate) from: StageHost,
    /// The sources, at least one.
    pub(crate) paths: Vec<Vec<u8>>,
    /// The host of the destination.
    pub(crate) to: StageHost,
    /// The destination.
    pub(crate) path: Vec<u8>,
    /// What is copied to this destination, by this plan and others together.
    pub(crate) sources: CopiedSources,
    /// Which part of the run this copy is.
    pub(crate) part: RunPart,
    /// The number of lanes, at least one.
    pub(crate) lanes: usize,
    /// How files are copied.
    pub(crate) options: CopyOptions,
}

impl CopyPlan {
    /// Returns the number of edges: the lanes, and the two-way edge.
    pub(crate) fn edges(&self) -> usize {
        self.lanes + 1
    }
}

/// A copy: its plan, and what its agents have reported.
pub(crate) struct CopyWork {
    plan: CopyPlan,
    state: CopyState,
    news: Vec<(usize, CopyNews)>,
    failed: u64,
    ends: [Option<CopyEnd>; 2],
    /// What this copy and earlier ones of the run have written.
    written: WrittenEntries,
}

/// How far a copy is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct CopyState {
    /// The entries that the walk has found so far.
    pub(crate) found_files: u64,
    /// The bytes of contents that the walk has found so far.
    pub(crate) found_bytes: u64,
    /// True if the walk is complete.
    pub(crate) is_walked: bool,
    /// The entries under their final names.
    pub(crate) files: u64,
    /// The bytes of contents that were written.
    pub(crate) bytes: u64,
    /// The path of an entry that is being written.
    pub(crate) current: Vec<u8>,
}

/// How a copy ended, as far as the controller knows it.
#[derive(Debug, Clone, Default)]
pub(crate) struct CopyOutcome {
    /// The report of the source, if it has sent one.
    pub(crate) source: Option<CopyReport>,
    /// The report of the destination, if it has sent one.
    pub(crate) destination: Option<CopyReport>,
    /// The number of entries that either agent has reported as failed.
    pub(crate) failed: u64,
    /// Every fault, in the order in which the controller received them.
    pub(crate) causes: Vec<RunFault>,
    /// The signal that ended the run.
    pub(crate) signal: Option<u8>,
    /// What this copy and earlier ones of the run have written, for later copies.
    pub(crate) written: WrittenEntries,
}

/// How a copy counts for the exit status.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CopyVerdict {
    /// Everything was copied.
    Complete,
    /// Some entries were not copied, or the source or the destination cannot be used at all.
    Failed,
    /// ssh, an agent or the network failed.
    Broken,
    /// This signal ended the run.
    Interrupted(u8),
}

impl CopyWork {
    /// Returns a copy before its first message. `written` is what earlier copies of the run have written.
    pub(crate) fn new(plan: CopyPlan, written: WrittenEntries) -> Self {
        Self {
            plan,
            state: CopyState::default(),
            news: Vec::new(),
            failed: 0,
            ends: [None, None],
            written,
        }
    }

    /// Returns how far the copy is.
    pub(crate) fn state(&self) -> &CopyState {
        &self.state
    }

    /// Returns what the agents have reported for the user since the last call, each with the index of its agent.
    pub(crate) fn take_news(&mut self) -> Vec<(usize, CopyNews)> {
        std::mem::take(&mut self.news)
    }

    /// Returns the messages that tell an agent what earlier copies of the run have written.
    fn written_parts(&self, agent: usize) -> Result<Vec<Action>, PayloadError> {
        let parts = self.written.parts().into_iter();
        let sent = parts.map(|part| {
            let message = ToAgent::Application(Payload::encode(&part)?);
            Ok(Action::Send(agent, message))
        });
        sent.collect()
    }
}

impl SupervisedWork for CopyWork {
    type Outcome = CopyOutcome;

    const NOUN: &'static str = "copy";

    fn places(&self) -> Vec<&StageHost> {
        vec![&self.plan.from, &self.plan.to]
    }

    fn edges(&self) -> Vec<Option<EdgeSetup>> {
        let (from, to) = (Node::Agent(SOURCE), Node::Agent(DESTINATION));
        let lanes = (0..self.plan.lanes).map(|_| EdgeSetup::new(from, to));
        let edges = std::iter::once(EdgeSetup::two_way(from, to)).chain(lanes);
        // A server only listens, on one port: the other end always connects.
        let server = match (&self.plan.from, &self.plan.to) {
            (StageHost::Server { .. }, _) => Some(from),
            (_, StageHost::Server { .. }) => Some(to),
            _ => None,
        };
        let edges = edges.map(|edge| match server {
            Some(server) => edge.listening_only_at(server),
            None => edge,
        });
        edges.map(Some).collect()
    }

    fn site(&self, agent: usize) -> String {
        let (what, place) = if agent == SOURCE {
            ("source", &self.plan.from)
        } else {
            ("destination", &self.plan.to)
        };
        match place.host() {
            None => format!("the {what} here"),
            Some(host) => format!("the {what} on {host}"),
        }
    }

    fn program(&self) -> &'static str {
        "rdcp"
    }

    fn order(&self, agent: usize, _: &[EdgeOrder]) -> Result<Work, PayloadError> {
        let plan = &self.plan;
        let order = CopyOrder {
            role: if agent == SOURCE {
                CopyRole::Source(plan.paths.clone())
            } else {
                CopyRole::Destination {
                    path: plan.path.clone(),
                    sources: plan.sources,
                    part: plan.part,
                }
            },
            control: EdgeId::of_index(CONTROL_EDGE),
            lanes: (1..plan.edges()).map(EdgeId::of_index).collect(),
            options: plan.options.clone(),
        };
        Payload::encode(&order).map(Work::Copy)
    }

    fn handle(&mut self, agent: usize, message: &Payload) -> Result<Vec<Action>, PayloadError> {
        let news = match message.decode()? {
            FromCopy::Walked {
                files,
                bytes,
                complete,
            } => {
                self.state.found_files = files;
                self.state.found_bytes = bytes;
                self.state.is_walked = complete;
                return Ok(Vec::new());
            }
            FromCopy::Progress {
                files,
                bytes,
                current,
            } => {
                self.state.files = files;
                self.state.bytes = bytes;
                self.state.current = current;
                return Ok(Vec::new());
            }
            FromCopy::News(news) => news,
            FromCopy::AskWritten => return self.written_parts(agent),
            FromCopy::Written(part) => {
                if agent == DESTINATION {
                    self.written.add(part);
                }
                return Ok(Vec::new());
            }
        };
        if matches!(news, CopyNews::Failed { .. }) {
            self.failed += 1;
        }
        self.news.push((agent, news));
        Ok(Vec::new())
    }

    fn handle_report(
        &mut self,
        agent: usize,
        result: Option<&Payload>,
        _: Option<&WorkFault>,
    ) -> Result<(), PayloadError> {
        self.ends[agent] = result.map(Payload::decode::<CopyEnd>).transpose()?;
        Ok(())
    }

    fn is_infrastructure(&self, agent: usize, fault: &WorkFault, is_connecting: bool) -> bool {
        match fault.kind {
            // Without a result the order was refused: the source or the destination cannot be used.
            FaultKind::Local => self.ends[agent].as_ref().is_some_and(|end| !end.gave_up),
            FaultKind::Edge => is_connecting,
            FaultKind::PeerAborted | FaultKind::Ordered => false,
        }
    }

    fn outcome(&self, run: RunEnd) -> CopyOutcome {
        let [source, destination] = self.ends.clone().map(|end| end.map(|end| end.report));
        let reported = |report: &Option<CopyReport>| report.as_ref().map_or(0, |r| r.failed);
        // An agent may have counted failures whose messages are lost, and the other way round.
        let counted = reported(&source) + reported(&destination);
        CopyOutcome {
            failed: self.failed.max(counted),
            source,
            destination,
            causes: run.causes,
            signal: run.signal,
            written: self.written.clone(),
        }
    }
}

impl CopyOutcome {
    /// Returns how the copy counts for the exit status.
    pub(crate) fn verdict(&self) -> CopyVerdict {
        if let Some(signal) = self.signal {
            return CopyVerdict::Interrupted(signal);
        }
        let is_own =
            |cause: &RunFault| cause.fault.kind == FaultKind::Local && !cause.is_infrastructure;
        let is_lost = self.causes.iter().any(|cause| cause.is_infrastructure);
        let reports = [&self.source, &self.destination];
        let is_complete = reports
            .iter()
            .all(|report| report.as_ref().is_some_and(|report| report.complete));
        if is_lost {
            CopyVerdict::Broken
        } else if self.causes.iter().any(is_own) {
            CopyVerdict::Failed
        } else if !self.causes.is_empty() || !is_complete {
            CopyVerdict::Broken
        } else if self.failed > 0 {
            CopyVerdict::Failed
        } else {
            CopyVerdict::Complete
        }
    }
}
