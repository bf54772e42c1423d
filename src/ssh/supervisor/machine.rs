//! The supervisor's decisions: events in, actions out. Pure, no I/O and no clock.

mod answer;
mod connect;

use std::time::Duration;

use super::{
    Action, Closing, Event, Notice, OwnEvent, Settings, Summary,
    edge::{Joint, Node, index},
};
use crate::ssh::{
    outcome::{Cause, Ends, Site, StageEnd},
    plan::Plan,
    protocol::{End, Fault, FaultKind, FromAgent, Hello, Report, Status, ToAgent},
};

/// How long agents have to clean up and report after a failure, before their sessions are cut.
const ENDING_LIMIT: Duration = Duration::from_secs(5);

/// The same after ^C: somebody waits at the keyboard.
const INTERRUPT_LIMIT: Duration = Duration::from_secs(2);

/// How long a session that was cut may take to be gone.
const KILL_LIMIT: Duration = Duration::from_secs(1);

/// A pipeline from its first session to its last. It holds the keys, and is never printed.
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
    turn: Turn,
    cut: bool,
    closed: bool,
    bytes: u64,
}

/// Whether a file's stage has asked to go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Turn {
    #[default]
    NotYet,
    Waits,
    /// It was told to proceed, or to end.
    Answered,
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
            Event::Closed(stage, closing) => self.closed(now, stage, closing),
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
                let turn = &mut self.stages[stage].turn;
                if *turn == Turn::NotYet {
                    *turn = Turn::Waits;
                }
                self.answer();
            }
            FromAgent::Ended(status) => {
                self.stages[stage].ended = Some(status);
                self.answer();
            }
            FromAgent::Warning(text) => {
                let text = format!("{}: {text}", self.plan.site(stage));
                self.tell(Notice::Warning(text));
            }
            FromAgent::Progress {
                bytes_in,
                bytes_out,
            } => self.stages[stage].bytes = bytes_in.max(bytes_out),
            FromAgent::Report(report) => self.reported(now, stage, report),
            FromAgent::Pong => {}
            FromAgent::Unreadable { path, why } => {
                let text = format!("{}: {why}", String::from_utf8_lossy(&path));
                self.tell(Notice::Unreadable(stage, text));
            }
        }
    }

    fn reported(&mut self, now: Duration, stage: usize, report: Report) {
        let fault = report.fault.clone();
        let status = report.status;
        // After a fault a status may be the agent's own doing; what was told before is the command's.
        if fault.is_none() {
            self.stages[stage].ended = self.stages[stage].ended.or(status);
        }
        self.stages[stage].bytes = report.bytes_in.max(report.bytes_out);
        self.stages[stage].report = Some(report);
        let site = Site::Stage(stage);
        match fault {
            // Files are opened after that: what fails before it is the way there.
            Some(Fault { kind, text }) => {
                let is_trouble = self.phase == Phase::Connecting && kind <= FaultKind::Edge;
                self.fail(now, site, kind, text, is_trouble);
            }
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

    fn closed(&mut self, now: Duration, stage: usize, closing: Closing) {
        let Closing { why, killed } = closing;
        let ended = &mut self.stages[stage];
        ended.closed = true;
        let site = Site::Stage(stage);
        if ended.report.is_some() {
            // A worker whose guard was killed is told to end, and can say no more than that.
            let own = |cause: &&mut Cause| cause.site == site && cause.fault.kind == FaultKind::Own;
            if let (true, Some(cause)) = (killed, self.causes.iter_mut().find(own)) {
                cause.fault.text = format!("{why}; {}", cause.fault.text);
            }
            return;
        }
        if !ended.cut {
            self.fail(now, site, FaultKind::Own, why, true);
        } else if ended.hello.is_some() && self.signal.is_none() {
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
            Site::Stage(stage) => format!("{}: {text}", self.plan.site(stage)),
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
