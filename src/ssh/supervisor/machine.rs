//! The supervisor's decisions: events in, actions out. Pure, no I/O and no clock.

mod answer;
mod connect;
mod messages;

use std::{collections::BTreeSet, time::Duration};

use zeroize::Zeroizing;

use super::{
    Action, Event, Notice, Settings, Summary,
    edge_setup::{EdgeSetup, Node},
};
use crate::ssh::{
    local_edge::LocalEdgeEvent,
    outcome::{RunFault, PipelineOutcome, Site, StageOutcome},
    plan::Plan,
    protocol::{AgentHello, EdgeId, FaultKind, ToAgent, WorkFault},
    session::SessionEnd,
    stage::{StageReport, Status},
};

/// How long agents have to clean up and report after a failure, before their sessions are cut.
const ENDING_LIMIT: Duration = Duration::from_secs(5);

/// How long agents have to clean up and report after ^C: a user waits at the keyboard.
const INTERRUPT_LIMIT: Duration = Duration::from_secs(2);

/// The most faults of one place that are kept. An agent that keeps to the protocol causes two: its own, and the end of
/// its session.
const MOST_CAUSES: usize = 4;

/// How long a session that was cut may take until its processes have exited.
const KILL_LIMIT: Duration = Duration::from_secs(1);

/// The state of a pipeline from its first session to its last. It holds the keys of the edges, so it has no `Debug`.
pub(crate) struct PipelineMachine {
    plan: Plan,
    settings: Settings,
    /// The texts of the edges' keys, each until both ends of its edge have their orders.
    keys: Vec<Zeroizing<String>>,
    stages: Vec<StageState>,
    edges: Vec<Option<EdgeSetup>>,
    /// The controller's own edges that have not ended.
    local_edges: BTreeSet<EdgeId>,
    phase: Phase,
    causes: Vec<RunFault>,
    reader_left: bool,
    signal: Option<u8>,
    actions: Vec<Action>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Some edge is not connected yet.
    Connecting,
    /// Every edge is connected, and bytes flow.
    Running,
    /// All agents have been told to end, or have reported. Sessions that are left at this time are cut.
    Ending(Duration),
    /// The sessions have been cut. At this time the pipeline ends even if a session is left.
    Cut(Duration),
}

#[derive(Debug, Default)]
struct StageState {
    hello: Option<AgentHello>,
    ended: Option<Status>,
    fault: Option<WorkFault>,
    report: Option<StageReport>,
    turn: ProceedState,
    cut: bool,
    closed: bool,
    bytes: u64,
}

/// Whether a stage waits for the earlier stages before it commits or opens its file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum ProceedState {
    /// The stage has not reported that its input is complete.
    #[default]
    NotYet,
    /// The stage waits for an answer.
    Waits,
    /// The stage was told to proceed, or to end.
    Answered,
}

impl PipelineMachine {
    /// Returns the machine of a pipeline whose sessions are being opened. `keys` has one key for each edge of the
    /// plan.
    pub(crate) fn new(plan: Plan, settings: Settings, keys: Vec<Zeroizing<String>>) -> Self {
        let count = plan.stages.len();
        let node = |stage| Node::Agent(stage);
        let setup = |edge: usize| {
            let from = edge.checked_sub(1).map_or(Node::Controller, node);
            let to = if edge < count {
                node(edge)
            } else {
                Node::Controller
            };
            (edge > 0 || plan.has_input).then(|| EdgeSetup::new(from, to))
        };
        let edges: Vec<_> = (0..=count).map(setup).collect();
        let is_local = |setup: &Option<EdgeSetup>| {
            let setup = setup.as_ref();
            setup.is_some_and(|setup| setup.touches(Node::Controller))
        };
        let local = (0..=count).filter(|&edge| is_local(&edges[edge]));
        Self {
            local_edges: local.map(EdgeId::of_index).collect(),
            stages: (0..count).map(|_| StageState::default()).collect(),
            edges,
            phase: Phase::Connecting,
            causes: Vec::new(),
            reader_left: false,
            signal: None,
            actions: Vec::new(),
            plan,
            settings,
            keys,
        }
    }

    /// Handles an event that happened at `now`, and returns the actions to carry out.
    pub(crate) fn handle(&mut self, now: Duration, event: Event) -> Vec<Action> {
        match event {
            Event::Message(stage, message) => self.handle_message(now, stage, message),
            Event::Closed(stage, end) => self.closed(now, stage, end),
            Event::Local(edge, event) => self.local(now, edge, event),
            Event::Signal { number, name } => {
                self.signal = Some(number);
                self.end(
                    now,
                    &format!("rdpipe was interrupted by {name}"),
                    INTERRUPT_LIMIT,
                );
            }
            Event::Tick => {}
        }
        self.watch_clock(now);
        std::mem::take(&mut self.actions)
    }

    /// Returns the time at which [`Event::Tick`] is due, if there is one.
    pub(crate) fn deadline(&self) -> Option<Duration> {
        match self.phase {
            Phase::Connecting | Phase::Running => None,
            Phase::Ending(at) | Phase::Cut(at) => Some(at),
        }
    }

    /// Returns the largest number of bytes that any stage has reported so far.
    pub(crate) fn bytes(&self) -> u64 {
        self.stages
            .iter()
            .map(|stage| stage.bytes)
            .max()
            .unwrap_or(0)
    }

    /// Returns the state of the pipeline as it is known now.
    pub(crate) fn summary(&self) -> Summary {
        let stages = self.stages.iter().zip(&self.plan.stages);
        let stages = stages.map(|(stage, planned)| StageOutcome {
            ended: stage.ended,
            report: stage.report.clone(),
            fault: stage.fault.clone(),
            is_file: planned.is_file(),
        });
        let link = |setup: &Option<EdgeSetup>| setup.as_ref().and_then(|setup| setup.link.clone());
        let host = |stage: &StageState| stage.hello.as_ref().map(|hello| hello.host.clone());
        Summary {
            outcome: PipelineOutcome {
                stages: stages.collect(),
                causes: self.causes.clone(),
                reader_left: self.reader_left,
                signal: self.signal,
            },
            hosts: self.stages.iter().map(host).collect(),
            links: self.edges.iter().map(link).collect(),
        }
    }

    fn closed(&mut self, now: Duration, stage: usize, end: SessionEnd) {
        let SessionEnd { why, killed } = end;
        let ended = &mut self.stages[stage];
        ended.closed = true;
        let site = Site::Agent(stage);
        if ended.report.is_some() {
            // A worker whose guard was killed reports SIGTERM and no more. The end of the session names the signal
            // that killed the guard.
            let own = |cause: &&mut RunFault| {
                cause.site == site && cause.fault.kind == FaultKind::Local
            };
            if let (true, Some(cause)) = (killed, self.causes.iter_mut().find(own)) {
                cause.fault.text = format!("{why}; {}", cause.fault.text);
            }
            return;
        }
        if !ended.cut {
            self.fail(now, site, FaultKind::Local, why, true);
        } else if ended.hello.is_some() && self.signal.is_none() {
            let text = "its agent did not end in time".to_owned();
            self.fail(now, site, FaultKind::Ordered, text, false);
        }
    }

    fn local(&mut self, now: Duration, edge: EdgeId, event: LocalEdgeEvent) {
        match event {
            LocalEdgeEvent::Connected(link) => self.connected(edge, Node::Controller, link),
            LocalEdgeEvent::Unreachable(tried) => {
                self.unreachable(now, edge, Node::Controller, tried);
            }
            LocalEdgeEvent::Ended(ended) => {
                self.local_edges.remove(&edge);
                self.reader_left |= ended.reader_left;
                if let Some(WorkFault { kind, text }) = ended.fault {
                    let site = if edge.index() == self.stages.len() {
                        Site::Output
                    } else {
                        Site::Input
                    };
                    self.fail(now, site, kind, text, false);
                }
            }
        }
    }

    /// Records a fault, and tells all agents to end.
    fn fail(&mut self, now: Duration, site: Site, kind: FaultKind, text: String, is_trouble: bool) {
        let reason = match site {
            Site::Agent(stage) => format!("{}: {text}", self.plan.site(stage)),
            Site::Input | Site::Output | Site::Edge(_) => text.clone(),
        };
        // A compromised agent can report any number of faults.
        if self
            .causes
            .iter()
            .filter(|cause| cause.site == site)
            .count()
            < MOST_CAUSES
        {
            self.causes.push(RunFault {
                site,
                fault: WorkFault { kind, text },
                is_trouble,
            });
        }
        self.end(now, &reason, ENDING_LIMIT);
    }

    /// Tells all agents to end, and cuts the sessions that are left after `limit`.
    fn end(&mut self, now: Duration, reason: &str, limit: Duration) {
        let was_running = match self.phase {
            Phase::Connecting => false,
            Phase::Running => true,
            // A second reason, such as ^C after a failure, can only move the deadline forward.
            Phase::Ending(at) => {
                self.phase = Phase::Ending(at.min(now + limit));
                return;
            }
            Phase::Cut(_) => return,
        };
        self.phase = Phase::Ending(now + limit);
        for stage in 0..self.stages.len() {
            let state = &self.stages[stage];
            if state.closed || state.report.is_some() {
                continue;
            }
            if state.hello.is_some() {
                let reason = reason.to_owned();
                self.send(stage, ToAgent::Kill { reason });
            } else {
                self.cut(stage);
            }
        }
        // An edge that is connected is ended by the stage at its other end, which sends the reason.
        if !was_running {
            self.abort_local(reason);
        }
    }

    fn abort_local(&mut self, reason: &str) {
        for &edge in &self.local_edges {
            self.actions.push(Action::Abort(edge, reason.to_owned()));
        }
    }

    fn cut(&mut self, stage: usize) {
        if !self.stages[stage].closed && !self.stages[stage].cut {
            self.stages[stage].cut = true;
            self.actions.push(Action::Kill(stage));
        }
    }

    fn watch_clock(&mut self, now: Duration) {
        match self.phase {
            Phase::Ending(at) if now >= at => {
                self.phase = Phase::Cut(now + KILL_LIMIT);
                for stage in 0..self.stages.len() {
                    self.cut(stage);
                }
                self.abort_local("the pipeline has ended");
            }
            Phase::Cut(at) if now >= at => return self.actions.push(Action::Done),
            _ => {}
        }
        let closed = self.stages.iter().all(|stage| stage.closed);
        if closed && self.local_edges.is_empty() {
            self.actions.push(Action::Done);
        } else if closed && !self.is_ending() {
            // Every agent has gone, so the controller must end its own edges itself.
            self.phase = Phase::Ending(now + ENDING_LIMIT);
        }
    }

    fn is_ending(&self) -> bool {
        matches!(self.phase, Phase::Ending(_) | Phase::Cut(_))
    }

    fn send(&mut self, stage: usize, message: ToAgent) {
        self.actions.push(Action::Send(stage, message));
    }

    fn notify(&mut self, notice: Notice) {
        self.actions.push(Action::Notify(notice));
    }
}
