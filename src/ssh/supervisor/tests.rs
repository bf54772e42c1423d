//! The state machine of a pipeline, driven by events and without I/O.

mod connecting;
mod ending;
mod hostile;

use std::{ffi::OsString, time::Duration};

use super::{
    Action, Event, Notice, Settings,
    pipeline::{PipelineMachine, PipelineWork},
};
use crate::ssh::{
    local_edge::{LocalEdgeEnd, LocalEdgeEvent},
    plan::{Plan, PlanInput},
    protocol::{
        AgentHello, AgentReport, EdgeId, EdgeLink, FaultKind, FromAgent, Payload, StreamOrder,
        ToAgent, TransportOrder, WorkFault,
    },
    session::SessionEnd,
    stage::{FromStage, StageReport, Status, ToStage},
};

/// A machine, and the actions that it has requested so far.
struct Rig {
    machine: PipelineMachine,
    now: Duration,
    actions: Vec<Action>,
}

const OK: Status = Status::Exited(0);

impl Rig {
    fn new(segments: &[&str], input: bool) -> Self {
        Self::with(segments, input, |_| {})
    }

    fn with(segments: &[&str], input: bool, change: impl FnOnce(&mut Settings)) -> Self {
        let segments: Vec<_> = segments.iter().map(OsString::from).collect();
        let input = if input {
            PlanInput::Standard
        } else {
            PlanInput::Nothing
        };
        Self::of(Plan::parse(&segments, input).unwrap(), change)
    }

    fn of(plan: Plan, change: impl FnOnce(&mut Settings)) -> Self {
        let mut settings = Settings {
            stream: StreamOrder::over(TransportOrder::Auto),
            addresses: Vec::new(),
            here: None,
            machine: Some("m0".to_owned()),
        };
        change(&mut settings);
        let keys = (0..=plan.stages.len()).map(|edge| format!("key {edge}").into());
        let keys = keys.collect();
        Self {
            machine: PipelineMachine::new(PipelineWork::new(plan, false), settings, keys),
            now: Duration::ZERO,
            actions: Vec::new(),
        }
    }

    /// Gives the machine an event, and returns the actions that it requests, without details for the user.
    fn event(&mut self, event: Event) -> Vec<Action> {
        let mut actions = self.machine.handle(self.now, event);
        actions.retain(|action| !matches!(action, Action::Notify(Notice::Detail(_))));
        self.actions.extend(actions.iter().cloned());
        actions
    }

    fn says(&mut self, stage: usize, message: FromAgent) -> Vec<Action> {
        self.event(Event::Message(stage, message))
    }

    fn hello(&mut self, stage: usize, machine: &str) -> Vec<Action> {
        let hello = AgentHello {
            host: format!("host{stage}"),
            machine: machine.to_owned(),
            addresses: vec![format!("10.0.0.{stage}").parse().unwrap()],
        };
        self.says(stage, FromAgent::Hello(hello))
    }

    /// Gives the machine a message of the stage itself, which travels inside the envelope.
    fn stage(&mut self, stage: usize, message: &FromStage) -> Vec<Action> {
        let message = Payload::encode(message).unwrap();
        self.says(stage, FromAgent::Application(message))
    }

    fn connected(&mut self, stage: usize, edge: EdgeId) -> Vec<Action> {
        let link = link();
        self.says(stage, FromAgent::Connected { edge, link })
    }

    fn local(&mut self, edge: EdgeId, event: LocalEdgeEvent) -> Vec<Action> {
        self.event(Event::Local(edge, event))
    }

    /// Gives the machine all events up to [`ToAgent::Go`].
    fn up(&mut self, stages: usize, input: bool) {
        for stage in 0..stages {
            self.hello(stage, &format!("m{}", stage + 1));
        }
        for stage in 0..stages {
            if input || stage > 0 {
                self.connected(stage, edge(stage));
            }
            self.connected(stage, edge(stage + 1));
        }
        if input {
            self.local(edge(0), LocalEdgeEvent::Connected(link()));
        }
        let actions = self.local(edge(stages), LocalEdgeEvent::Connected(link()));
        assert!(actions.contains(&Action::Go), "{actions:?}");
        for stage in 0..stages {
            assert!(actions.contains(&send(stage, ToAgent::Go)));
        }
    }

    fn report(&mut self, stage: usize, status: Status) -> Vec<Action> {
        self.says(stage, report(&stage_report(status)))
    }

    fn faulty(&mut self, stage: usize, kind: FaultKind, text: &str) -> Vec<Action> {
        let text = text.to_owned();
        let result = Payload::encode(&stage_report(Status::Signaled(15)));
        let report = AgentReport {
            fault: Some(WorkFault { kind, text }),
            result: result.ok(),
        };
        self.says(stage, FromAgent::Report(report))
    }

    fn closed(&mut self, stage: usize) -> Vec<Action> {
        let why = format!("lost host{stage}");
        let killed = false;
        self.event(Event::Closed(stage, SessionEnd { why, killed }))
    }

    fn local_ended(&mut self, edge: EdgeId) -> Vec<Action> {
        self.local(edge, LocalEdgeEvent::Ended(LocalEdgeEnd::default()))
    }

    fn exit(&self) -> u8 {
        self.machine.summary().outcome.exit()
    }
}

/// Returns the edge with this index in the plan: the input of the stage with the same index.
fn edge(index: usize) -> EdgeId {
    EdgeId::of_index(index)
}

fn link() -> EdgeLink {
    EdgeLink {
        transport: "tcp".to_owned(),
        reason: "no RDMA device here".to_owned(),
        is_fallback: false,
        address: "10.0.0.9".to_owned(),
    }
}

fn stage_report(status: Status) -> StageReport {
    StageReport {
        status: Some(status),
        bytes_in: 5,
        bytes_out: 7,
        elapsed_us: 1,
        ..StageReport::default()
    }
}

/// Returns the report of an agent without a fault.
fn report(result: &StageReport) -> FromAgent {
    FromAgent::Report(AgentReport {
        fault: None,
        result: Some(Payload::encode(result).unwrap()),
    })
}

/// Returns the action that tells a stage to proceed.
fn proceed(stage: usize) -> Action {
    let message = Payload::encode(&ToStage::Proceed).unwrap();
    send(stage, ToAgent::Application(message))
}

fn send(stage: usize, message: ToAgent) -> Action {
    Action::Send(stage, message)
}

/// Returns the addresses and the port of the only request to dial.
fn dialed(actions: &[Action]) -> (Vec<&str>, u16) {
    let dial = actions.iter().find_map(|action| match action {
        Action::Send(
            _,
            ToAgent::Dial {
                addresses, port, ..
            },
        )
        | Action::Dial {
            addresses, port, ..
        } => Some((addresses.iter().map(String::as_str).collect(), *port)),
        _ => None,
    });
    dial.unwrap_or_else(|| panic!("no end dials: {actions:?}"))
}

fn killed(actions: &[Action]) -> Vec<usize> {
    let killed = actions.iter().filter_map(|action| match action {
        Action::Send(stage, ToAgent::Kill { .. }) => Some(*stage),
        _ => None,
    });
    killed.collect()
}
