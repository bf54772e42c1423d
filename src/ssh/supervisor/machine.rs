//! The supervisor's decisions: events in, actions out. Pure, no I/O and no clock.

use std::time::Duration;

use super::{
    Action, Event, Notice, OwnEvent, Settings, Summary,
    edge::{Joint, Next, Node, index},
};
use crate::ssh::{
    outcome::{Cause, Ends, SIGPIPE_STATUS, Site, StageEnd, describe, shell_status},
    plan::{Place, Plan},
    protocol::{
        Edge, End, Fault, FaultKind, FromAgent, Hello, Link, Order, Report, Status, ToAgent,
    },
};

/// How long agents have to clean up and report after a failure, before their sessions are cut.
const ENDING_LIMIT: Duration = Duration::from_secs(5);

/// The same after ^C: somebody waits at the keyboard.
const INTERRUPT_LIMIT: Duration = Duration::from_secs(2);

/// How long a session that was cut may take to be gone.
const KILL_LIMIT: Duration = Duration::from_secs(1);

/// A pipeline from its first session to its last.
#[derive(Debug)]
pub(crate) struct Machine {
    plan: Plan,
    settings: Settings,
    /// The texts of the edges' keys.
    keys: Vec<String>,
    stages: Vec<Stage>,
    joints: Vec<Option<Joint>>,
    /// Whether rdpipe's own ends are done with: input, output.
    own_ended: [bool; 2],
    phase: Phase,
    causes: Vec<Cause>,
    reader_left: bool,
    signal: Option<u8>,
    actions: Vec<Action>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Until every edge stands.
    Connecting,
    /// Bytes flow.
    Running,
    /// All have been told to end, or have reported; sessions left at this time are cut.
    Ending(Duration),
    /// Sessions were cut; at this time nobody waits any longer.
    Cut(Duration),
}

#[derive(Debug, Default)]
struct Stage {
    hello: Option<Hello>,
    ended: Option<Status>,
    report: Option<Report>,
    is_at_end: bool,
    /// It was told to proceed, or to end.
    answered: bool,
    cut: bool,
    closed: bool,
    bytes: u64,
}

impl Machine {
    /// A pipeline whose sessions are being opened. There is one key for each edge that the plan has.
    pub(crate) fn new(plan: Plan, settings: Settings, keys: Vec<String>) -> Self {
        let count = plan.stages.len();
        let node = |stage| Node::Stage(stage);
        let joint = |edge: usize| {
            let from = edge.checked_sub(1).map_or(Node::Own, node);
            let to = if edge < count { node(edge) } else { Node::Own };
            (edge > 0 || plan.has_input).then(|| Joint::new(from, to))
        };
        Self {
            stages: (0..count).map(|_| Stage::default()).collect(),
            joints: (0..=count).map(joint).collect(),
            own_ended: [!plan.has_input, false],
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

    /// Takes note of what happened at `now`, and says what is to be done.
    pub(crate) fn handle(&mut self, now: Duration, event: Event) -> Vec<Action> {
        match event {
            Event::Message(stage, message) => self.heard(now, stage, message),
            Event::Closed(stage, why) => self.closed(now, stage, why),
            Event::Own(end, event) => self.own(now, end, event),
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

    /// When [`Event::Tick`] is due.
    pub(crate) fn deadline(&self) -> Option<Duration> {
        match self.phase {
            Phase::Connecting | Phase::Running => None,
            Phase::Ending(at) | Phase::Cut(at) => Some(at),
        }
    }

    /// The most that any edge has carried, as far as it is known.
    pub(crate) fn bytes(&self) -> u64 {
        self.stages
            .iter()
            .map(|stage| stage.bytes)
            .max()
            .unwrap_or(0)
    }

    /// What is known now.
    pub(crate) fn summary(&self) -> Summary {
        let stages = self.stages.iter().zip(&self.plan.stages);
        let stages = stages.map(|(stage, planned)| StageEnd {
            ended: stage.ended,
            report: stage.report.clone(),
            is_file: planned.is_file(),
        });
        let link = |joint: &Option<Joint>| joint.as_ref().and_then(|joint| joint.link.clone());
        let host = |stage: &Stage| stage.hello.as_ref().map(|hello| hello.host.clone());
        Summary {
            ends: Ends {
                stages: stages.collect(),
                causes: self.causes.clone(),
                reader_left: self.reader_left,
                signal: self.signal,
            },
            hosts: self.stages.iter().map(host).collect(),
            links: self.joints.iter().map(link).collect(),
        }
    }

    fn heard(&mut self, now: Duration, stage: usize, message: FromAgent) {
        match message {
            FromAgent::Hello(hello) => self.hello(stage, hello),
            FromAgent::Listening { end, port } => self.listening(stage, end, port),
            FromAgent::Unreachable { end, tried } => {
                self.unreachable(now, index(stage, end), Node::Stage(stage), tried);
            }
            FromAgent::Connected { end, link } => {
                self.connected(index(stage, end), Node::Stage(stage), link);
            }
            FromAgent::AtEnd => {
                self.stages[stage].is_at_end = true;
                self.answer();
            }
            FromAgent::Ended(status) => {
                self.stages[stage].ended = Some(status);
                self.answer();
            }
            FromAgent::Warning(text) => {
                let text = format!("stage {}: {text}", self.plan.name(stage));
                self.tell(Notice::Warning(text));
            }
            FromAgent::Progress {
                bytes_in,
                bytes_out,
            } => self.stages[stage].bytes = bytes_in.max(bytes_out),
            FromAgent::Report(report) => self.reported(now, stage, report),
            FromAgent::Pong => {}
        }
    }

    fn hello(&mut self, stage: usize, hello: Hello) {
        if self.is_ending() {
            return;
        }
        let addresses: Vec<_> = hello.addresses.iter().map(ToString::to_string).collect();
        self.tell(Notice::Detail(format!(
            "stage {} is on {}, which has the addresses {}",
            self.plan.name(stage),
            hello.host,
            addresses.join(", ")
        )));
        self.stages[stage].hello = Some(hello);
        let order = Order {
            number: u32::try_from(stage + 1).unwrap_or(u32::MAX),
            name: self.plan.name(stage),
            work: self.plan.stages[stage].work.clone(),
            input: self.edge(stage, End::Input),
            output: self.edge(stage, End::Output),
            stream: self.settings.stream.clone(),
            fsync: self.settings.fsync,
        };
        self.send(stage, ToAgent::Order(Box::new(order)));
        for edge in 0..self.joints.len() {
            self.dial(edge);
        }
    }

    /// An end of an edge, as its agent is told of it.
    fn edge(&self, stage: usize, end: End) -> Option<Edge> {
        let edge = index(stage, end);
        let joint = self.joints[edge].as_ref()?;
        let (from, to) = self.plan.ends(edge);
        Some(Edge {
            peer: if end == End::Input { from } else { to },
            key: self.keys[edge].clone(),
            listens: joint.listens(Node::Stage(stage)),
        })
    }

    fn listening(&mut self, stage: usize, end: End, port: u16) {
        let edge = index(stage, end);
        if let Some(joint) = &mut self.joints[edge] {
            joint.listening(Node::Stage(stage), port);
            self.dial(edge);
        }
    }

    /// Has the edge dialled, once there is somebody at both ends.
    fn dial(&mut self, edge: usize) {
        let Some(joint) = &mut self.joints[edge] else {
            return;
        };
        let (dialler, listener) = (joint.dialler(), joint.listener());
        let is_there = |node| match node {
            Node::Own => true,
            Node::Stage(stage) => self.stages[stage].hello.is_some(),
        };
        if self.phase != Phase::Connecting || !is_there(dialler) {
            return;
        }
        let Some(port) = joint.take_port() else {
            return;
        };
        let addresses = self.addresses(dialler, listener);
        match dialler {
            Node::Stage(stage) => {
                let end = end_of(edge, stage);
                self.send(
                    stage,
                    ToAgent::Dial {
                        end,
                        addresses,
                        port,
                    },
                );
            }
            Node::Own => {
                let end = own_end(edge);
                self.actions.push(Action::Dial {
                    end,
                    addresses,
                    port,
                });
            }
        }
    }

    /// Where `dialler` may find `listener`, the best first.
    fn addresses(&self, dialler: Node, listener: Node) -> Vec<String> {
        let Node::Stage(stage) = listener else {
            return Vec::new();
        };
        let place = &self.plan.stages[stage].place;
        if let Place::Host { host, .. } = place {
            let given = &self.settings.addresses;
            if let Some(given) = given.iter().find(|given| given.host == *host) {
                return given.addresses.clone();
            }
        }
        let mut addresses = Vec::new();
        let there = self.machine(listener);
        if there.is_some() && there == self.machine(dialler) {
            addresses.push("127.0.0.1".to_owned());
        }
        let hello = self.stages[stage].hello.as_ref();
        let said = hello.map_or(&[][..], |hello| &hello.addresses);
        let said = said.iter().map(ToString::to_string);
        match place {
            // The user knows better than the machine which of its addresses is good.
            Place::Here => addresses.extend(self.settings.here.clone().into_iter().chain(said)),
            Place::Host { host, .. } => addresses.extend(said.chain([host.clone()])),
        }
        let mut unique = Vec::with_capacity(addresses.len());
        for address in addresses {
            if !unique.contains(&address) {
                unique.push(address);
            }
        }
        unique
    }

    /// Which machine that is.
    fn machine(&self, node: Node) -> Option<&str> {
        match node {
            Node::Own => self.settings.machine.as_deref(),
            Node::Stage(stage) => self.stages[stage].hello.as_ref().map(|h| &*h.machine),
        }
    }

    fn unreachable(
        &mut self,
        now: Duration,
        edge: usize,
        node: Node,
        tried: Vec<(String, String)>,
    ) {
        let Some(joint) = &mut self.joints[edge] else {
            return;
        };
        match joint.unreachable(node, tried) {
            Some(Next::Listen(Node::Stage(stage))) => {
                let end = end_of(edge, stage);
                self.send(stage, ToAgent::Listen { end });
            }
            Some(Next::Listen(Node::Own) | Next::GiveUp) => {
                let text = self.blocked(edge);
                self.fail(now, Site::Edge(edge), FaultKind::Own, text, true);
            }
            None => {}
        }
    }

    /// Which two, which ports, and what was tried.
    fn blocked(&self, edge: usize) -> String {
        let (from, to) = self.plan.ends(edge);
        let mut text = format!("{from} and {to} cannot reach each other");
        let name = |node| match node {
            Node::Own => "rdpipe".to_owned(),
            Node::Stage(stage) => self.plan.stages[stage].place.to_string(),
        };
        let failed = self.joints[edge].as_ref().map_or(&[][..], |j| &j.failed);
        for attempt in failed {
            let tried: Vec<_> = attempt
                .tried
                .iter()
                .map(|(address, what)| format!("{address}: {what}"))
                .collect();
            let (dialler, listener) = (name(attempt.dialler), name(attempt.listener));
            let port = attempt.port;
            text += &format!("; from {dialler} to {listener}, port {port}: ");
            text += &tried.join(", ");
        }
        text + " (-p PORT-PORT pins the ports for a firewall, --addr HOST=ADDR says where a host is)"
    }

    fn connected(&mut self, edge: usize, node: Node, link: Link) {
        let Some(joint) = &mut self.joints[edge] else {
            return;
        };
        let Link {
            transport,
            reason,
            is_fallback,
            address,
        } = link.clone();
        let was_fallback = joint.link.as_ref().is_some_and(|link| link.is_fallback);
        let is_first = joint.connected(node, link);
        let (from, to) = self.plan.ends(edge);
        if is_fallback && !was_fallback {
            let text = format!("from {from} to {to} the data goes over TCP: {reason}");
            self.tell(Notice::Note(text));
        } else if is_first {
            let text = format!("{from} to {to}: {transport} ({reason}), {address}");
            self.tell(Notice::Detail(text));
        }
        let stands = |joint: &Option<Joint>| joint.as_ref().is_none_or(Joint::stands);
        if self.phase == Phase::Connecting && self.joints.iter().all(stands) {
            self.phase = Phase::Running;
            for stage in 0..self.stages.len() {
                self.send(stage, ToAgent::Go);
            }
            self.actions.push(Action::Go);
        }
    }

    /// Answers the stages that wait for those before them.
    fn answer(&mut self) {
        for stage in 0..self.stages.len() {
            let waits = self.stages[stage].is_at_end && !self.stages[stage].answered;
            if !waits || self.is_ending() {
                continue;
            }
            match self.before(stage) {
                None => {}
                Some(Ok(())) => {
                    self.stages[stage].answered = true;
                    self.send(stage, ToAgent::Proceed);
                }
                Some(Err(reason)) => {
                    self.stages[stage].answered = true;
                    self.send(stage, ToAgent::Kill { reason });
                }
            }
        }
    }

    /// Whether everything before the stage has succeeded, or what has not; none while it is open.
    fn before(&self, stage: usize) -> Option<Result<(), String>> {
        let mut successor_is_fine = true;
        let mut failure = None;
        for index in (0..stage).rev() {
            let Stage { ended, report, .. } = &self.stages[index];
            let status = (*ended)?;
            let is_fine = match shell_status(status) {
                0 => true,
                SIGPIPE_STATUS => report.as_ref()?.output_stopped && successor_is_fine,
                _ => false,
            };
            if !is_fine {
                let name = self.plan.name(index);
                failure = Some(format!("stage {name} {}", describe(status)));
            }
            successor_is_fine = is_fine;
        }
        Some(failure.map_or(Ok(()), Err))
    }

    fn reported(&mut self, now: Duration, stage: usize, report: Report) {
        let fault = report.fault.clone();
        let status = report.status;
        self.stages[stage].ended = self.stages[stage].ended.or(status);
        self.stages[stage].bytes = report.bytes_in.max(report.bytes_out);
        self.stages[stage].report = Some(report);
        let site = Site::Stage(stage);
        match fault {
            Some(Fault { kind, text }) => self.fail(now, site, kind, text, false),
            None if self.phase == Phase::Connecting => {
                let text = "it ended before the pipeline began".to_owned();
                self.fail(now, site, FaultKind::Own, text, true);
            }
            None => self.answer(),
        }
        let all = self.stages.iter().all(|stage| stage.report.is_some());
        if all && !self.is_ending() {
            self.phase = Phase::Ending(now + ENDING_LIMIT);
        }
    }

    fn closed(&mut self, now: Duration, stage: usize, why: String) {
        let state = &mut self.stages[stage];
        state.closed = true;
        if state.report.is_some() {
            return;
        }
        let site = Site::Stage(stage);
        if !state.cut {
            self.fail(now, site, FaultKind::Own, why, true);
        } else if state.hello.is_some() && self.signal.is_none() {
            let text = "its agent did not end in time".to_owned();
            self.fail(now, site, FaultKind::Ordered, text, false);
        }
    }

    fn own(&mut self, now: Duration, end: End, event: OwnEvent) {
        let edge = match end {
            End::Input => 0,
            End::Output => self.stages.len(),
        };
        match event {
            OwnEvent::Connected(link) => self.connected(edge, Node::Own, link),
            OwnEvent::Unreachable(tried) => self.unreachable(now, edge, Node::Own, tried),
            OwnEvent::Ended(ended) => {
                let side = usize::from(end == End::Output);
                self.own_ended[side] = true;
                self.reader_left |= ended.reader_left;
                if let Some(Fault { kind, text }) = ended.fault {
                    self.fail(now, Site::Own(end), kind, text, false);
                }
            }
        }
    }

    /// Something broke: all are told to end.
    fn fail(&mut self, now: Duration, site: Site, kind: FaultKind, text: String, is_trouble: bool) {
        let reason = match site {
            Site::Stage(stage) => format!("stage {}: {text}", self.plan.name(stage)),
            Site::Own(_) | Site::Edge(_) => text.clone(),
        };
        self.causes.push(Cause {
            site,
            fault: Fault { kind, text },
            is_trouble,
        });
        self.end(now, &reason, ENDING_LIMIT);
    }

    /// Has everything end within `limit`.
    fn end(&mut self, now: Duration, reason: &str, limit: Duration) {
        let was_running = match self.phase {
            Phase::Connecting => false,
            Phase::Running => true,
            // Sooner, if anything: a ^C after a failure.
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
        // Edges that stand are ended by their other ends, which know why.
        if !was_running {
            self.abort_own(reason);
        }
    }

    fn abort_own(&mut self, reason: &str) {
        for (side, end) in [End::Input, End::Output].into_iter().enumerate() {
            if !self.own_ended[side] {
                self.actions.push(Action::Abort(end, reason.to_owned()));
            }
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
                self.abort_own("the pipeline has ended");
            }
            Phase::Cut(at) if now >= at => return self.actions.push(Action::Done),
            _ => {}
        }
        let closed = self.stages.iter().all(|stage| stage.closed);
        if closed && self.own_ended == [true; 2] {
            self.actions.push(Action::Done);
        } else if closed && !self.is_ending() {
            // Nobody is left who could say anything to rdpipe's own ends.
            self.phase = Phase::Ending(now + ENDING_LIMIT);
        }
    }

    fn is_ending(&self) -> bool {
        matches!(self.phase, Phase::Ending(_) | Phase::Cut(_))
    }

    fn send(&mut self, stage: usize, message: ToAgent) {
        self.actions.push(Action::Send(stage, message));
    }

    fn tell(&mut self, notice: Notice) {
        self.actions.push(Action::Tell(notice));
    }
}

/// Which of its ends the edge is for a stage that it touches.
fn end_of(edge: usize, stage: usize) -> End {
    if edge == stage {
        End::Input
    } else {
        End::Output
    }
}

/// Which of rdpipe's own the edge is.
fn own_end(edge: usize) -> End {
    if edge == 0 { End::Input } else { End::Output }
}
