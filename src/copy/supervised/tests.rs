//! A copy in the supervisor's machine, driven by events and without I/O.

use std::time::Duration;

use super::*;
use crate::ssh::{
    outcome::Site,
    protocol::{
        AgentHello, AgentReport, EdgeDirection, EdgeLink, FromAgent, Order, StreamOrder, ToAgent,
        TransportOrder,
    },
    session::SessionEnd,
    supervisor::{Event, Notice, Settings, machine::SupervisorMachine},
};

struct CopyRig {
    machine: SupervisorMachine<CopyWork>,
    now: Duration,
}

fn host(name: &str) -> StageHost {
    StageHost::Host {
        destination: format!("me@{name}"),
        host: name.to_owned(),
    }
}

fn plan(lanes: usize) -> CopyPlan {
    CopyPlan {
        from: host("a"),
        paths: vec![b"x".to_vec(), b"y\xff".to_vec()],
        to: host("b"),
        path: b"z".to_vec(),
        sources: CopiedSources::Many,
        part: RunPart::default(),
        lanes,
        options: CopyOptions::default(),
    }
}

fn link() -> EdgeLink {
    EdgeLink {
        transport: "tcp".to_owned(),
        reason: "no RDMA device here".to_owned(),
        is_fallback: false,
        address: "10.0.0.9".to_owned(),
    }
}

impl CopyRig {
    fn new(lanes: usize) -> Self {
        let settings = Settings {
            stream: StreamOrder::over(TransportOrder::Auto),
            addresses: Vec::new(),
            here: None,
            machine: Some("m0".to_owned()),
        };
        let plan = plan(lanes);
        let keys = (0..plan.edges()).map(|edge| format!("key {edge}").into());
        let keys = keys.collect();
        Self {
            machine: SupervisorMachine::new(
                CopyWork::new(plan, WrittenEntries::default()),
                settings,
                keys,
            ),
            now: Duration::ZERO,
        }
    }

    fn event(&mut self, event: Event) -> Vec<Action> {
        let mut actions = self.machine.handle(self.now, event);
        actions.retain(|action| !matches!(action, Action::Notify(Notice::Detail(_))));
        actions
    }

    fn says(&mut self, agent: usize, message: FromAgent) -> Vec<Action> {
        self.event(Event::Message(agent, message))
    }

    /// Gives the machine a hello, and returns the order that follows from it.
    fn hello(&mut self, agent: usize) -> Order {
        let hello = AgentHello {
            host: format!("host{agent}"),
            machine: format!("m{}", agent + 1),
            addresses: vec![format!("10.0.0.{agent}").parse().unwrap()],
        };
        let actions = self.says(agent, FromAgent::Hello(hello));
        match &actions[..] {
            [Action::Send(to, ToAgent::Order(order))] if *to == agent => Order::clone(order),
            other => panic!("{other:?}"),
        }
    }

    /// Gives the machine all events up to Go.
    fn up(&mut self, lanes: usize) {
        let mut actions = Vec::new();
        for agent in [SOURCE, DESTINATION] {
            self.hello(agent);
        }
        for agent in [SOURCE, DESTINATION] {
            for edge in (0..=lanes).map(EdgeId::of_index) {
                assert_eq!(actions, [], "not all edges are connected");
                actions = self.says(agent, FromAgent::Connected { edge, link: link() });
            }
        }
        let go = |agent| Action::Send(agent, ToAgent::Go);
        assert_eq!(actions, [go(SOURCE), go(DESTINATION), Action::Go]);
    }

    fn copy(&mut self, agent: usize, message: &FromCopy) -> Vec<Action> {
        let message = Payload::encode(message).unwrap();
        self.says(agent, FromAgent::Application(message))
    }

    fn report(
        &mut self,
        agent: usize,
        report: &CopyReport,
        fault: Option<(FaultKind, &str)>,
    ) -> Vec<Action> {
        let fault = fault.map(|(kind, text)| WorkFault {
            kind,
            text: text.to_owned(),
        });
        let end = CopyEnd {
            report: report.clone(),
            gave_up: fault.as_ref().is_some_and(|f| f.text != TERMINATED),
        };
        let result = Payload::encode(&end).ok();
        self.says(agent, FromAgent::Report(AgentReport { fault, result }))
    }

    fn closed(&mut self, agent: usize) -> Vec<Action> {
        let why = format!("lost host{agent}");
        let killed = false;
        self.event(Event::Closed(agent, SessionEnd { why, killed }))
    }

    fn outcome(&self) -> CopyOutcome {
        self.machine.summary().outcome
    }
}

/// The fault of an agent that a signal ended.
const TERMINATED: &str = "the agent was ended by SIGTERM";

fn complete(files: u64) -> CopyReport {
    CopyReport {
        files,
        complete: true,
        ..CopyReport::default()
    }
}

#[test]
fn the_two_agents_receive_orders_that_fit_together() {
    use EdgeDirection::{Both, Receive, Send};
    let mut rig = CopyRig::new(3);
    let orders = [rig.hello(SOURCE), rig.hello(DESTINATION)];
    let [source, destination] = orders.clone().map(|order| match &order.work {
        Work::Copy(payload) => payload.decode::<CopyOrder>().unwrap(),
        Work::Stage(_) | Work::Measure(_) | Work::Forward(_) => {
            panic!("an order of another program")
        }
    });
    assert_eq!(
        source.role,
        CopyRole::Source(vec![b"x".to_vec(), b"y\xff".to_vec()])
    );
    let path = b"z".to_vec();
    let sources = CopiedSources::Many;
    let part = RunPart::default();
    let expected = CopyRole::Destination {
        path,
        sources,
        part,
    };
    assert_eq!(destination.role, expected);
    assert_eq!(source.control, EdgeId(0));
    assert_eq!(source.lanes, [1, 2, 3].map(EdgeId));
    assert_eq!(
        (source.control, &source.lanes),
        (destination.control, &destination.lanes)
    );

    let shown = |order: &Order| {
        let edge = |edge: &crate::ssh::protocol::EdgeOrder| {
            (edge.id.0, edge.direction, edge.key.clone(), edge.listens)
        };
        order.edges.iter().map(edge).collect::<Vec<_>>()
    };
    let key = |edge: u32| format!("key {edge}");
    let [from, to] = &orders;
    let lane = |direction, listens| (1..4).map(move |edge| (edge, direction, key(edge), listens));
    let sends: Vec<_> = [(0, Both, key(0), false)]
        .into_iter()
        .chain(lane(Send, false))
        .collect();
    let receives = [(0, Both, key(0), true)]
        .into_iter()
        .chain(lane(Receive, true));
    assert_eq!(shown(from), sends);
    assert_eq!(shown(to), receives.collect::<Vec<_>>());
    assert_eq!(from.edges[0].peer, "the destination on b");
    assert_eq!(
        (&*from.name, &*to.name),
        ("the source on a", "the destination on b")
    );
}

#[test]
fn a_copy_ends_when_both_agents_have_reported_and_closed() {
    let mut rig = CopyRig::new(2);
    rig.up(2);
    let progress = FromCopy::Progress {
        files: 2,
        bytes: 9,
        current: b"d/e".to_vec(),
    };
    assert_eq!(rig.copy(DESTINATION, &progress), []);
    let walked = FromCopy::Walked {
        files: 3,
        bytes: 10,
        complete: true,
    };
    assert_eq!(rig.copy(SOURCE, &walked), []);
    let state = rig.machine.work().state();
    assert_eq!(
        (state.files, state.found_files, state.is_walked),
        (2, 3, true)
    );
    for agent in [SOURCE, DESTINATION] {
        assert_eq!(rig.report(agent, &complete(3), None), []);
    }
    assert_eq!(rig.closed(SOURCE), []);
    assert_eq!(rig.closed(DESTINATION), [Action::Done]);
    assert_eq!(rig.outcome().verdict(), CopyVerdict::Complete);
    assert_eq!(rig.outcome().destination.unwrap().files, 3);
}

#[test]
fn failed_entries_are_passed_on_and_do_not_end_the_copy() {
    let mut rig = CopyRig::new(1);
    rig.up(1);
    let (path, why) = (b"x/\xff".to_vec(), "permission denied".to_owned());
    let news = CopyNews::Failed { path, why };
    assert_eq!(rig.copy(SOURCE, &FromCopy::News(news.clone())), []);
    assert_eq!(rig.machine.work().take_news(), [(SOURCE, news)]);
    assert_eq!(rig.machine.work().take_news(), []);
    for agent in [SOURCE, DESTINATION] {
        rig.report(agent, &complete(3), None);
    }
    assert_eq!(rig.outcome().verdict(), CopyVerdict::Failed);
    assert_eq!(rig.outcome().failed, 1);
}

#[test]
fn a_destination_that_cannot_be_used_is_no_failure_of_the_network() {
    let mut rig = CopyRig::new(1);
    rig.hello(SOURCE);
    rig.hello(DESTINATION);
    let report = AgentReport {
        fault: Some(WorkFault {
            kind: FaultKind::Local,
            text: "z is not a directory".to_owned(),
        }),
        result: None,
    };
    let actions = rig.says(DESTINATION, FromAgent::Report(report));
    let reason = "the destination on b: z is not a directory".to_owned();
    assert_eq!(actions, [Action::Send(SOURCE, ToAgent::Kill { reason })]);
    assert_eq!(rig.outcome().verdict(), CopyVerdict::Failed);
}

#[test]
fn a_broken_edge_or_a_lost_agent_is_a_failure_of_the_network() {
    let mut rig = CopyRig::new(1);
    rig.up(1);
    let fault = (FaultKind::Edge, "the connection broke");
    rig.report(SOURCE, &CopyReport::default(), Some(fault));
    assert_eq!(rig.outcome().verdict(), CopyVerdict::Broken);

    let mut rig = CopyRig::new(1);
    rig.up(1);
    let actions = rig.closed(DESTINATION);
    assert!(matches!(
        actions[..],
        [Action::Send(SOURCE, ToAgent::Kill { .. })]
    ));
    let fault = (FaultKind::Ordered, "told to end");
    rig.report(SOURCE, &CopyReport::default(), Some(fault));
    assert_eq!(rig.closed(SOURCE), [Action::Done]);
    let outcome = rig.outcome();
    assert_eq!(outcome.verdict(), CopyVerdict::Broken);
    let first = crate::ssh::outcome::ranked(&outcome.causes)[0];
    assert_eq!(
        (first.site, &*first.fault.text),
        (Site::Agent(1), "lost host1")
    );
}

#[test]
fn an_agent_that_was_terminated_is_no_failure_of_files() {
    let mut rig = CopyRig::new(1);
    rig.up(1);
    rig.report(
        SOURCE,
        &CopyReport::default(),
        Some((FaultKind::Local, TERMINATED)),
    );
    assert_eq!(rig.outcome().verdict(), CopyVerdict::Broken);
}

#[test]
fn a_full_disk_is_the_cause_and_the_broken_edge_its_consequence() {
    let mut rig = CopyRig::new(1);
    rig.up(1);
    let aborted = (FaultKind::PeerAborted, "the destination gave up");
    rig.report(SOURCE, &CopyReport::default(), Some(aborted));
    let full = (FaultKind::Local, "cannot write the map");
    rig.report(DESTINATION, &CopyReport::default(), Some(full));
    let outcome = rig.outcome();
    assert_eq!(outcome.verdict(), CopyVerdict::Failed);
    let first = crate::ssh::outcome::ranked(&outcome.causes)[0];
    assert_eq!(first.fault.text, "cannot write the map");
}

#[test]
fn a_copy_that_stopped_early_without_a_fault_is_no_success() {
    let mut rig = CopyRig::new(1);
    rig.up(1);
    rig.report(SOURCE, &complete(1), None);
    rig.report(DESTINATION, &CopyReport::default(), None);
    assert_eq!(rig.outcome().verdict(), CopyVerdict::Broken);
}

#[test]
fn an_interrupt_ends_both_agents_within_two_seconds() {
    let mut rig = CopyRig::new(1);
    rig.up(1);
    let (number, name) = (2, "SIGINT");
    let actions = rig.event(Event::Signal { number, name });
    let reason = "rdcp was interrupted by SIGINT".to_owned();
    let kill = |agent| {
        let reason = reason.clone();
        Action::Send(agent, ToAgent::Kill { reason })
    };
    assert_eq!(actions, [kill(SOURCE), kill(DESTINATION)]);
    assert_eq!(rig.machine.deadline(), Some(Duration::from_secs(2)));
    assert_eq!(rig.outcome().verdict(), CopyVerdict::Interrupted(2));
    rig.now = Duration::from_secs(2);
    let actions = rig.event(Event::Tick);
    assert_eq!(
        actions,
        [Action::CutSession(SOURCE), Action::CutSession(DESTINATION)]
    );
}

#[test]
fn a_message_of_another_application_ends_the_copy() {
    let mut rig = CopyRig::new(1);
    rig.up(1);
    let nonsense = Payload::encode(&(u8::MAX, "?")).unwrap();
    let actions = rig.says(SOURCE, FromAgent::Application(nonsense));
    assert_eq!(actions.len(), 2, "{actions:?}");
    assert_eq!(rig.outcome().verdict(), CopyVerdict::Broken);
}
