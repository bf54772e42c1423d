//! The decisions of the supervisor, from the first hello until every edge is connected, and until all sessions have
//! ended: events in, actions out. Pure, no I/O and no clock.

use std::{collections::BTreeSet, fmt::Write, time::Duration};

use zeroize::{Zeroize, Zeroizing};

use super::{
    Action, Event, Notice, RunOutcome, Settings, Summary, SupervisedWork,
    edge_setup::{AddressBook, EdgeSetup, Next, Node},
    relay::RelayEvent,
};
use crate::{
    Transport, reach,
    ssh::{
        local_edge::LocalEdgeEvent,
        outcome::{RunFault, Site},
        plan::StageHost,
        protocol::{
            AgentHello, AgentReport, EdgeId, EdgeLink, EdgeOrder, FaultKind, FromAgent, Order,
            Payload, PayloadError, ToAgent, ViaSsh, WorkFault,
        },
        session::SessionEnd,
    },
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
    /// What was told about the edges.
    told: Vec<String>,
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
            told: Vec::new(),
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
            Event::Relay(edge, event) => self.relay_event(now, edge, event),
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
        let run = RunOutcome {
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
                if !self.local_edges.remove(&edge) {
                    // It was left out.
                    return;
                }
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
                if let Some((site, text)) = self.work.refusal() {
                    return self.fail(now, site, FaultKind::Local, text, false);
                }
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
        if all && !self.is_ending() && !self.work.waits_for_sessions() {
            self.phase = Phase::Ending(now + ENDING_LIMIT);
        }
    }
}

impl<W: SupervisedWork> SupervisorMachine<W> {
    fn hello(&mut self, now: Duration, agent: usize, hello: AgentHello) {
        if self.is_ending() {
            return;
        }
        if self.agents[agent].hello.is_some() {
            let text = "its agent reported its host twice".to_owned();
            return self.fail(now, Site::Agent(agent), FaultKind::Local, text, true);
        }
        // Other hosts connect to these addresses, so a hostile host must not choose any number of them.
        let hello = AgentHello {
            addresses: reach::usable(hello.addresses),
            ..hello
        };
        let addresses: Vec<_> = hello.addresses.iter().map(ToString::to_string).collect();
        self.notify(Notice::Minor(format!(
            "{} is on {}, which has the addresses {}",
            self.work.site(agent),
            hello.host,
            addresses.join(", ")
        )));
        let notices = self.work.meet(agent, &hello);
        self.actions.extend(notices);
        self.leave_out(self.work.edges().len());
        self.agents[agent].hello = Some(hello);
        match self.order(agent) {
            Ok(order) => self.send(agent, ToAgent::Order(Box::new(order))),
            Err(error) => {
                let text = format!("its order cannot be sent: {error}");
                return self.fail(now, Site::Agent(agent), FaultKind::Local, text, true);
            }
        }
        for edge in 0..self.edges.len() {
            self.forget_key(edge);
            self.dial(edge);
        }
        self.begin();
    }

    /// Leaves out the edges from this index on, and tells the ends that wait for them.
    fn leave_out(&mut self, count: usize) {
        let kept = count.min(self.edges.len());
        let left_out = self.edges.split_off(kept);
        for (edge, setup) in (kept..).zip(left_out) {
            self.keys[edge].zeroize();
            let edge = EdgeId::of_index(edge);
            for node in setup.iter().flat_map(|setup| [setup.from, setup.to]) {
                match node {
                    Node::Controller => {
                        let reason = "the edge is left out".to_owned();
                        self.local_edges.remove(&edge);
                        self.actions.push(Action::Abort(edge, reason));
                    }
                    Node::Agent(agent) if self.agents[agent].hello.is_some() => {
                        self.send(agent, ToAgent::LeaveOut { edge });
                    }
                    Node::Agent(_) => {}
                }
            }
        }
    }

    /// Starts the work if every agent has its order and every edge is connected.
    fn begin(&mut self) {
        let stands = |setup: &Option<EdgeSetup>| setup.as_ref().is_none_or(EdgeSetup::stands);
        let is_ready = self.agents.iter().all(|agent| agent.hello.is_some());
        if self.phase == Phase::Connecting && is_ready && self.edges.iter().all(stands) {
            self.phase = Phase::Running;
            for agent in 0..self.agents.len() {
                self.send(agent, ToAgent::Go);
            }
            self.actions.push(Action::Go);
        }
    }

    /// Wipes the key of an edge if both of its ends have it.
    fn forget_key(&mut self, edge: usize) {
        let has_order = |node| match node {
            Node::Controller => true,
            Node::Agent(agent) => self.agents[agent].hello.is_some(),
        };
        let setup = self.edges[edge].as_ref();
        if setup.is_none_or(|setup| has_order(setup.from) && has_order(setup.to)) {
            self.keys[edge].zeroize();
        }
    }

    fn order(&self, agent: usize) -> Result<Order, PayloadError> {
        let edges = (0..self.edges.len()).filter_map(|edge| self.edge(agent, edge));
        let edges: Vec<_> = edges.collect();
        Ok(Order {
            name: self.work.site(agent),
            work: self.work.order(agent, &edges)?,
            edges,
            stream: self.settings.stream.clone(),
            ports: self.settings.ports,
        })
    }

    /// Returns an agent's end of an edge, for its order, if the edge is one of the agent's.
    fn edge(&self, agent: usize, edge: usize) -> Option<EdgeOrder> {
        let own = Node::Agent(agent);
        let setup = self.edges[edge].as_ref()?;
        let setup = setup.touches(own).then_some(setup)?;
        let peer = if setup.to == own {
            setup.from
        } else {
            setup.to
        };
        Some(EdgeOrder {
            id: EdgeId::of_index(edge),
            direction: setup.direction(own),
            peer: self.name(peer),
            key: self.keys[edge].to_string(),
            listens: setup.listens(own),
        })
    }

    /// Returns the name of a node in messages.
    fn name(&self, node: Node) -> String {
        match node {
            Node::Controller => self.work.program().to_owned(),
            Node::Agent(agent) => self.work.site(agent),
        }
    }

    /// Returns the names of the two ends of an edge: the end that sends and the end that receives.
    fn ends(&self, edge: usize) -> (String, String) {
        let ends = self.edges[edge]
            .as_ref()
            .map(|setup| (setup.from, setup.to));
        ends.map_or_else(Default::default, |(from, to)| {
            (self.name(from), self.name(to))
        })
    }

    /// Returns the index and the state of an edge, or none if `node` is not one of its ends.
    fn edge_of(&mut self, edge: EdgeId, node: Node) -> Option<(usize, &mut EdgeSetup)> {
        let edge = edge.index();
        let setup = self.edges.get_mut(edge)?.as_mut()?;
        setup.touches(node).then_some((edge, setup))
    }

    fn listening(&mut self, node: Node, edge: EdgeId, port: u16) {
        if let Some((edge, setup)) = self.edge_of(edge, node) {
            setup.listening(node, port);
            self.dial(edge);
        }
    }

    /// Requests that the edge be dialed, if both agents have sent their hello and one end listens.
    fn dial(&mut self, edge: usize) {
        let Some(setup) = &mut self.edges[edge] else {
            return;
        };
        let (dialer, listener) = (setup.dialer(), setup.listener());
        let is_there = |node| match node {
            Node::Controller => true,
            Node::Agent(agent) => self.agents[agent].hello.is_some(),
        };
        if self.phase != Phase::Connecting || !is_there(dialer) {
            return;
        }
        let Some(port) = setup.take_port() else {
            return;
        };
        if self.settings.via_ssh == ViaSsh::Always && self.may_relay(dialer, listener) {
            return self.relay(edge);
        }
        let addresses = self.addresses(dialer, listener);
        self.dial_at(edge, dialer, addresses, port);
    }

    /// Requests that `dialer` connects to the other end of the edge at these addresses.
    fn dial_at(&mut self, edge: usize, dialer: Node, addresses: Vec<String>, port: u16) {
        let setup = self.edges[edge].as_ref();
        let is_relayed = setup.is_some_and(EdgeSetup::is_relayed);
        let edge = EdgeId::of_index(edge);
        match dialer {
            Node::Agent(agent) => {
                let dial = ToAgent::Dial {
                    edge,
                    addresses,
                    port,
                    is_relayed,
                };
                self.send(agent, dial);
            }
            Node::Controller => self.actions.push(Action::Dial {
                edge,
                addresses,
                port,
                is_relayed,
            }),
        }
    }

    /// Returns true if an edge between these two ends may go through ssh: one of them is reached over ssh, and none is a
    /// server. Two ends on one machine always reach each other.
    fn may_relay(&self, one: Node, other: Node) -> bool {
        let place = |node| match node {
            Node::Controller => &StageHost::Here,
            Node::Agent(agent) => self.work.places()[agent],
        };
        let places = [place(one), place(other)];
        let is_host = |place: &&StageHost| matches!(place, StageHost::Host { .. });
        let is_server = |place: &&StageHost| matches!(place, StageHost::Server { .. });
        let is_one_machine =
            self.machine(one).is_some() && self.machine(one) == self.machine(other);
        self.settings.via_ssh != ViaSsh::Never
            && places.iter().any(is_host)
            && !places.iter().any(is_server)
            && !is_one_machine
    }

    /// Lets an edge go through ssh.
    fn relay(&mut self, edge: usize) {
        if let Some(setup) = &mut self.edges[edge] {
            self.actions.push(Action::Relay {
                edge: EdgeId::of_index(edge),
                dialer: setup.dialer(),
                listener: setup.listener(),
                port: setup.relay(),
            });
        }
    }

    fn relay_event(&mut self, now: Duration, id: EdgeId, event: RelayEvent) {
        let edge = id.index();
        let Some(setup) = self.edges.get_mut(edge).and_then(Option::as_mut) else {
            return;
        };
        let (dialer, ends) = (setup.dialer(), [setup.from, setup.to]);
        match event {
            RelayEvent::Ready(port) => {
                if setup.relay_listens(port) && self.phase == Phase::Connecting {
                    self.dial_at(edge, dialer, vec!["127.0.0.1".to_owned()], port);
                }
            }
            RelayEvent::Line(line) => {
                let (from, to) = self.ends(edge);
                let text = format!("{from} to {to}, through ssh: {line}");
                self.notify(Notice::Detail(text));
            }
            RelayEvent::Ended(end) => self.relay_ended(now, edge, ends, &end.why),
        }
    }

    /// Handles the end of a session through which an edge goes.
    fn relay_ended(&mut self, now: Duration, edge: usize, ends: [Node; 2], why: &str) {
        let (from, to) = self.ends(edge);
        let text = if self.phase == Phase::Connecting {
            let failed = self.edges[edge]
                .as_ref()
                .map_or(0, |setup| setup.failed.len());
            match failed {
                0 => format!("{from} and {to} are not connected through ssh: {why}"),
                _ => format!("{}; and through ssh: {why}", self.blocked(edge)),
            }
        } else {
            format!("{from} and {to} are not connected through ssh any more: {why}")
        };
        // After the success of an end the edge is not needed any more.
        let has_succeeded = |node: &Node| match node {
            Node::Controller => false,
            Node::Agent(agent) => {
                self.agents[*agent].has_reported && self.agents[*agent].fault.is_none()
            }
        };
        if self.signal.is_none() && !ends.iter().any(has_succeeded) {
            self.fail(now, Site::Edge(edge), FaultKind::Local, text, true);
        }
    }

    /// Tells the user that the data of an edge goes through ssh, once for two hosts, and what to do about it.
    fn tell_relay(&mut self, edge: usize) {
        let Some(setup) = &self.edges[edge] else {
            return;
        };
        let ends = [setup.from, setup.to];
        let is_same = |other: &Option<EdgeSetup>| {
            let other = other.as_ref().filter(|other| other.is_relayed());
            let told = other.filter(|other| other.link.is_some());
            told.is_some_and(|other| ends.iter().all(|&end| other.touches(end)))
        };
        let is_told = self.edges.iter().filter(|other| is_same(other)).count() > 1;
        if is_told || setup.failed.is_empty() {
            return;
        }
        let (from, to) = self.ends(edge);
        let open = self.opened(edge);
        self.notify(Notice::Note(format!(
            "{from} and {to} cannot reach each other, so their data goes through ssh and this machine, which is slower; open {open}, or give an address with --addr"
        )));
    }

    /// Returns the ports and the host on which they let the edge be connected if they are open, and what to give then.
    fn opened(&self, edge: usize) -> String {
        let listeners = self.edges[edge].iter().flat_map(|setup| &setup.failed);
        let listener = listeners.rev().find_map(|attempt| match attempt.listener {
            Node::Agent(agent) => Some(self.work.places()[agent].to_string()),
            Node::Controller => None,
        });
        let host = listener.unwrap_or_else(|| self.ends(edge).1);
        match self.settings.ports {
            None => format!("7691-7699/tcp on {host} and give -p 7691-7699"),
            Some((first, last)) if first == last => format!("{first}/tcp on {host}"),
            Some((first, last)) => format!("{first}-{last}/tcp on {host}"),
        }
    }

    /// Returns the addresses at which `dialer` can reach `listener`, the best first.
    fn addresses(&self, dialer: Node, listener: Node) -> Vec<String> {
        let Node::Agent(agent) = listener else {
            return Vec::new();
        };
        let there = self.machine(listener);
        AddressBook {
            given: &self.settings.addresses,
            here: self.settings.here.as_deref(),
        }
        .addresses(
            self.work.places()[agent],
            self.agents[agent].hello.as_ref(),
            there.is_some() && there == self.machine(dialer),
        )
    }

    /// Returns the identity of the node's network stack, if it is known.
    fn machine(&self, node: Node) -> Option<&str> {
        match node {
            Node::Controller => self.settings.machine.as_deref(),
            Node::Agent(agent) => self.agents[agent].hello.as_ref().map(|h| &*h.machine),
        }
    }

    fn unreachable(&mut self, now: Duration, id: EdgeId, node: Node, tried: Vec<(String, String)>) {
        let Some((edge, setup)) = self.edge_of(id, node) else {
            return;
        };
        match setup.unreachable(node, tried) {
            Some(Next::Listen(Node::Agent(agent))) => {
                self.send(agent, ToAgent::Listen { edge: id });
            }
            Some(Next::Listen(Node::Controller) | Next::GiveUp) => {
                let (dialer, listener) = (setup.dialer(), setup.listener());
                if !setup.is_relayed() && self.may_relay(dialer, listener) {
                    return self.relay(edge);
                }
                let text = self.blocked(edge);
                self.fail(now, Site::Edge(edge), FaultKind::Local, text, true);
            }
            None => {}
        }
    }

    /// Returns the message for an edge that cannot be connected in either direction. It names both ends, both ports
    /// and every address that was tried.
    fn blocked(&self, edge: usize) -> String {
        let (from, to) = self.ends(edge);
        let mut text = format!("{from} and {to} cannot reach each other");
        let name = |node| match node {
            Node::Controller => self.work.program().to_owned(),
            Node::Agent(agent) => self.work.places()[agent].to_string(),
        };
        let failed = self.edges[edge].as_ref().map_or(&[][..], |j| &j.failed);
        for attempt in failed {
            // A name that no server knows says nothing where an address was tried.
            let is_unknown = |what: &str| what.contains("failed to lookup");
            let has_address = attempt.tried.iter().any(|(_, what)| !is_unknown(what));
            let tried = attempt.tried.iter();
            let tried = tried.filter(|(_, what)| !(has_address && is_unknown(what)));
            let port = attempt.port;
            let tried = tried.map(|(address, what)| {
                if what.starts_with("no answer") {
                    format!("{address} does not answer on port {port}")
                } else {
                    format!("{address}, port {port}: {what}")
                }
            });
            let tried: Vec<_> = tried.collect();
            let (dialer, listener) = (name(attempt.dialer), name(attempt.listener));
            let _ = write!(text, "; from {dialer} to {listener}: {}", tried.join(", "));
        }
        let open = self.opened(edge);
        let _ = write!(
            text,
            "; a firewall? Open {open}; rdperf --check says more, and --addr HOST=ADDR sets the address of a host"
        );
        text
    }

    fn connected(&mut self, edge: EdgeId, node: Node, mut link: EdgeLink) {
        let Some((edge, setup)) = self.edge_of(edge, node) else {
            return;
        };
        let is_through_ssh = setup.is_relayed() && link.transport == Transport::Tcp;
        if is_through_ssh {
            "through ssh".clone_into(&mut link.reason);
        }
        let EdgeLink {
            transport,
            reason,
            is_fallback,
            cipher,
            rails,
            address,
        } = link.clone();
        let was_fallback = setup.link.as_ref().is_some_and(|link| link.is_fallback);
        let is_first = setup.connected(node, link);
        let (from, to) = self.ends(edge);
        if is_first && is_through_ssh {
            self.tell_relay(edge);
        }
        if is_fallback && !was_fallback {
            let text = format!("from {from} to {to} the data goes over TCP: {reason}");
            self.notify(Notice::Note(text));
        } else if is_first {
            let cipher = cipher.map_or("not encrypted".to_owned(), |cipher| cipher.to_string());
            let rails = match rails {
                0 | 1 => String::new(),
                rails => format!(", {rails} rails"),
            };
            let text =
                format!("{from} to {to}: {transport} ({reason}){rails}, {cipher}, {address}");
            // The streams of a copy have the same text.
            if !self.told.contains(&text) {
                self.told.push(text.clone());
                self.notify(Notice::Detail(text));
            }
        }
        self.begin();
    }
}
