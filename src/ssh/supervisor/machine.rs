//! The supervisor's decisions: events in, actions out. Pure, no I/O and no clock.

mod connect;

use std::{collections::BTreeSet, time::Duration};

use zeroize::Zeroizing;

use super::{
    Action, Event, Notice, RunEnd, Settings, Summary, SupervisedWork,
    edge_setup::{EdgeSetup, Node},
};
use crate::ssh::{
    local_edge::LocalEdgeEvent,
    outcome::{RunFault, Site},
    protocol::{
        AgentHello, AgentReport, EdgeId, FaultKind, FromAgent, Payload, PayloadError, ToAgent,
        WorkFault,
    },
    session::SessionEnd,
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

/// The state of a run from its first session to its last: what is the same for every kind of work. It holds the keys of
/// the edges, so it has no `Debug`.
pub(crate) struct SupervisorMachine<W> {
    work: W,
    settings: Settings,
    /// The texts of the edges' keys, each until both ends of its edge have their orders.
    keys: Vec<Zeroizing<String>>,
    agents: Vec<AgentState>,
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
struct AgentState {
    hello: Option<AgentHello>,
    fault: Option<WorkFault>,
    has_reported: bool,
    cut: bool,
    closed: bool,
}

impl<W: SupervisedWork> SupervisorMachine<W> {
    /// Returns the machine of work whose sessions are being opened. `keys` has one key for each edge of the work.
    pub(crate) fn new(work: W, settings: Settings, keys: Vec<Zeroizing<String>>) -> Self {
        let edges = work.edges();
        let is_local = |setup: &Option<EdgeSetup>| {
            let setup = setup.as_ref();
            setup.is_some_and(|setup| setup.touches(Node::Controller))
        };
        let local = (0..edges.len()).filter(|&edge| is_local(&edges[edge]));
        let agents = work.places().into_iter().map(|_| AgentState::default());
        Self {
            local_edges: local.map(EdgeId::of_index).collect(),
            agents: agents.collect(),
            edges,
            phase: Phase::Connecting,
            causes: Vec::new(),
            reader_left: false,
            signal: None,
            actions: Vec::new(),
            work,
            settings,
            keys,
        }
    }

    /// Returns the work with what its agents have reported so far.
    pub(crate) fn work(&mut self) -> &mut W {
        &mut self.work
    }

    /// Handles an event that happened at `now`, and returns the actions to carry out.
    pub(crate) fn handle(&mut self, now: Duration, event: Event) -> Vec<Action> {
        match event {
            Event::Message(agent, message) => self.handle_message(now, agent, message),
            Event::Closed(agent, end) => self.closed(now, agent, end),
            Event::Local(edge, event) => self.local(now, edge, event),
            Event::Request(agent, message) => {
                if !self.is_ending() {
                    self.send(agent, ToAgent::Application(message));
                }
            }
            Event::Signal { number, name } => {
                self.signal = Some(number);
                self.end(
                    now,
                    &format!("{} was interrupted by {name}", self.work.program()),
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

    /// Returns the state of the run as it is known now.
    pub(crate) fn summary(&self) -> Summary<W::Outcome> {
        let link = |setup: &Option<EdgeSetup>| setup.as_ref().and_then(|setup| setup.link.clone());
        let host = |agent: &AgentState| agent.hello.as_ref().map(|hello| hello.host.clone());
        let run = RunEnd {
            faults: self
                .agents
                .iter()
                .map(|agent| agent.fault.clone())
                .collect(),
            causes: self.causes.clone(),
            reader_left: self.reader_left,
            signal: self.signal,
        };
        Summary {
            outcome: self.work.outcome(run),
            hosts: self.agents.iter().map(host).collect(),
            links: self.edges.iter().map(link).collect(),
        }
    }

    fn closed(&mut self, now: Duration, agent: usize, end: SessionEnd) {
        let SessionEnd { why, killed } = end;
        let ended = &mut self.agents[agent];
        ended.closed = true;
        let site = Site::Agent(agent);
        if ended.has_reported {
            // A worker whose guard was killed reports SIGTERM and no more. The end of the session names the signal
            // that killed the guard.
            let own =
                |cause: &&mut RunFault| cause.site == site && cause.fault.kind == FaultKind::Local;
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
                    let setup = self.edges.get(edge.index()).and_then(Option::as_ref);
                    let site = if setup.is_some_and(|setup| setup.to == Node::Controller) {
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
    fn fail(
        &mut self,
        now: Duration,
        site: Site,
        kind: FaultKind,
        text: String,
        is_infrastructure: bool,
    ) {
        let reason = match site {
            Site::Agent(agent) => format!("{}: {text}", self.work.site(agent)),
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
                is_infrastructure,
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
        for agent in 0..self.agents.len() {
            let state = &self.agents[agent];
            if state.closed || state.has_reported {
                continue;
            }
            if state.hello.is_some() {
                let reason = reason.to_owned();
                self.send(agent, ToAgent::Kill { reason });
            } else {
                self.cut(agent);
            }
        }
        // An edge that is connected is ended by the agent at its other end, which sends the reason.
        if !was_running {
            self.abort_local(reason);
        }
    }

    fn abort_local(&mut self, reason: &str) {
        for &edge in &self.local_edges {
            self.actions.push(Action::Abort(edge, reason.to_owned()));
        }
    }

    fn cut(&mut self, agent: usize) {
        if !self.agents[agent].closed && !self.agents[agent].cut {
            self.agents[agent].cut = true;
            self.actions.push(Action::CutSession(agent));
        }
    }

    fn watch_clock(&mut self, now: Duration) {
        match self.phase {
            Phase::Ending(at) if now >= at => {
                self.phase = Phase::Cut(now + KILL_LIMIT);
                for agent in 0..self.agents.len() {
                    self.cut(agent);
                }
                self.abort_local(&format!("the {} has ended", W::NOUN));
            }
            Phase::Cut(at) if now >= at => return self.actions.push(Action::Done),
            _ => {}
        }
        let closed = self.agents.iter().all(|agent| agent.closed);
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

    fn send(&mut self, agent: usize, message: ToAgent) {
        self.actions.push(Action::Send(agent, message));
    }

    fn notify(&mut self, notice: Notice) {
        self.actions.push(Action::Notify(notice));
    }
}

impl<W: SupervisedWork> SupervisorMachine<W> {
    /// Handles a message of an agent. A report is the last one: what an agent sends after it is ignored.
    fn handle_message(&mut self, now: Duration, agent: usize, message: FromAgent) {
        if self.agents[agent].has_reported {
            return;
        }
        match message {
            FromAgent::Hello(hello) => self.hello(now, agent, hello),
            FromAgent::Listening { edge, port } => self.listening(Node::Agent(agent), edge, port),
            FromAgent::Unreachable { edge, tried } => {
                self.unreachable(now, edge, Node::Agent(agent), tried);
            }
            FromAgent::Connected { edge, link } => {
                self.connected(edge, Node::Agent(agent), link);
            }
            FromAgent::Application(message) => self.application(now, agent, &message),
            FromAgent::Warning(text) => {
                let text = format!("{}: {text}", self.work.site(agent));
                self.notify(Notice::Warning(text));
            }
            FromAgent::Report(report) => self.reported(now, agent, report),
            FromAgent::Pong => {}
        }
    }

    /// Handles a message that travelled inside the envelope: one of the work itself.
    fn application(&mut self, now: Duration, agent: usize, message: &Payload) {
        match self.work.handle(agent, message) {
            Ok(notices) => {
                self.actions.extend(notices);
                self.request();
            }
            Err(error) => self.fail_undecodable(now, agent, &error),
        }
    }

    /// Tells the agents what the work has for them.
    fn request(&mut self) {
        if !self.is_ending() {
            let requests = self.work.requests();
            self.actions.extend(requests);
        }
    }

    /// Fails the run because an agent's message cannot be decoded.
    fn fail_undecodable(&mut self, now: Duration, agent: usize, error: &PayloadError) {
        let text = format!("its agent sent a message that this version cannot decode ({error})");
        self.fail(now, Site::Agent(agent), FaultKind::Local, text, true);
    }

    fn reported(&mut self, now: Duration, agent: usize, report: AgentReport) {
        let AgentReport { fault, result } = report;
        let decoded = self
            .work
            .handle_report(agent, result.as_ref(), fault.as_ref());
        self.agents[agent].has_reported = true;
        self.agents[agent].fault.clone_from(&fault);
        if let Err(error) = decoded {
            self.fail_undecodable(now, agent, &error);
        }
        let site = Site::Agent(agent);
        match fault {
            Some(fault) => {
                let is_connecting = self.phase == Phase::Connecting;
                let is_infrastructure = self.work.is_infrastructure(agent, &fault, is_connecting);
                let WorkFault { kind, text } = fault;
                self.fail(now, site, kind, text, is_infrastructure);
            }
            None if self.phase == Phase::Connecting => {
                let text = format!("it ended before the {} began", W::NOUN);
                self.fail(now, site, FaultKind::Local, text, true);
            }
            None => self.request(),
        }
        let all = self.agents.iter().all(|agent| agent.has_reported);
        if all && !self.is_ending() {
            self.phase = Phase::Ending(now + ENDING_LIMIT);
        }
    }
}
