//! The supervisor without a host: agents connect, end, and break the protocol.

use std::{ffi::OsString, net::IpAddr, time::Duration};

use super::{
    Action, Event, Notice, Settings,
    pipeline::{OwnFiles, PipelineMachine, PipelineOptions, PipelineWork},
    relay::RelayEvent,
};
use crate::{
    Direction, Transport,
    options::StreamOptions,
    ssh::{
        local_edge::{LocalEdgeEnd, LocalEdgeEvent},
        plan::{Addresses, Plan, PlanInput},
        protocol::{
            AgentHello, AgentReport, EdgeId, EdgeLink, EdgeOrder, FaultKind, FromAgent, Order,
            Payload, ToAgent, ViaSsh, WorkFault,
        },
        session::SessionEnd,
        stage::{FromStage, StageOrder, StageReport, Status, ToStage},
    },
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
        let mut plan = Plan::parse(&segments, PlanInput::Standard).unwrap();
        plan.has_input &= input;
        Self::of(plan, change)
    }

    fn of(plan: Plan, change: impl FnOnce(&mut Settings)) -> Self {
        let mut settings = Settings {
            stream: StreamOptions::default(),
            ports: None,
            addresses: Vec::new(),
            here: None,
            machine: Some("m0".to_owned()),
            via_ssh: ViaSsh::Never,
        };
        change(&mut settings);
        let keys = (0..=plan.stages.len()).map(|edge| format!("key {edge}").into());
        let keys = keys.collect();
        Self {
            machine: PipelineMachine::new(
                PipelineWork::new(plan, PipelineOptions::default(), OwnFiles::default()),
                settings,
                keys,
            ),
            now: Duration::ZERO,
            actions: Vec::new(),
        }
    }

    /// Gives the machine an event, and returns the actions that it requests, without details for the user.
    fn event(&mut self, event: Event) -> Vec<Action> {
        let mut actions = self.machine.handle(self.now, event);
        actions.retain(|action| {
            !matches!(action, Action::Notify(Notice::Detail(_) | Notice::Minor(_)))
        });
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
            streams: 4,
            most_streams: None,
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
        transport: Transport::Tcp,
        reason: "no RDMA device here".to_owned(),
        is_fallback: false,
        cipher: None,
        rails: 1,
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

#[test]
fn orders_say_which_end_listens_and_both_ends_of_an_edge_share_its_id_and_key() {
    use Direction::{Receive, Send};
    let mut rig = Rig::new(&["a:x", "b:y"], true);
    let mut order = |stage| match rig.hello(stage, "m9").remove(0) {
        Action::Send(at, ToAgent::Order(order)) if at == stage => order,
        other => panic!("{other:?}"),
    };
    let (first, second) = (order(0), order(1));
    let edges = |order: &Order| {
        let edge = |edge: &EdgeOrder| {
            let (peer, key) = (edge.peer.clone(), edge.key.clone());
            (edge.id, edge.direction, peer, key, edge.listens)
        };
        order.edges.iter().map(edge).collect::<Vec<_>>()
    };
    let expected = |index, direction, peer: &str, key: &str, listens| {
        let (peer, key) = (peer.to_owned(), key.to_owned());
        (edge(index), direction, peer, key, listens)
    };
    assert_eq!(
        edges(&first),
        [
            expected(0, Receive, "rdpipe", "key 0", true),
            expected(1, Send, "stage 2 (b)", "key 1", false)
        ]
    );
    assert_eq!(
        edges(&second),
        [
            expected(1, Receive, "stage 1 (a)", "key 1", true),
            expected(2, Send, "rdpipe", "key 2", true)
        ]
    );
    let stage = second.work.payload();
    let stage: StageOrder = stage.decode().unwrap();
    assert_eq!((stage.input, stage.output), (Some(edge(1)), Some(edge(2))));
    assert_eq!(second.name, "stage 2 (b)");
}

#[test]
fn a_file_that_is_read_and_written_at_once_ends_the_pipeline_before_it_begins() {
    let scratch = tempfile::NamedTempFile::new().unwrap();
    let file = crate::fd::EntryIdentity::of_file(scratch.path()).unwrap();
    let opens = |is_written| FromStage::Opens { file, is_written };
    let mut rig = Rig::new(&["a:< f", "b:cat", "a:>> f"], false);
    for stage in 0..3 {
        rig.hello(stage, "m1");
    }
    assert_eq!(rig.stage(0, &opens(false)), []);
    let actions = rig.stage(2, &opens(true));
    let kill = |action: &Action| matches!(action, Action::Send(_, ToAgent::Kill { .. }));
    assert!(
        actions.iter().filter(|action| kill(action)).count() == 3,
        "{actions:?}"
    );
    let cause = &rig.machine.summary().outcome.causes[0].fault.text;
    assert!(
        cause.starts_with("f is the file that stage 1 (a) reads, as f: "),
        "{cause}"
    );
    // A stage that reads after the one that writes reads the complete file.
    let mut rig = Rig::new(&["a:x", "a:>> f", "a:< f"], false);
    for stage in 0..3 {
        rig.hello(stage, "m1");
    }
    assert_eq!(rig.stage(1, &opens(true)), []);
    assert_eq!(rig.stage(2, &opens(false)), []);
}

#[test]
fn a_sender_dials_once_both_agents_have_said_hello() {
    let mut rig = Rig::new(&["a:x", "b:y"], false);
    rig.hello(1, "m2");
    let port = 4711;
    let listening = FromAgent::Listening {
        edge: edge(1),
        port,
    };
    assert_eq!(rig.says(1, listening), []);
    let actions = rig.hello(0, "m1");
    assert_eq!(dialed(&actions), (vec!["10.0.0.1", "b"], 4711));
    let output = FromAgent::Listening {
        edge: edge(2),
        port: 5,
    };
    let actions = rig.says(1, output);
    assert_eq!(dialed(&actions), (vec!["10.0.0.1", "b"], 5));
    assert!(matches!(
        actions[0],
        Action::Dial {
            edge: EdgeId(2),
            ..
        }
    ));
}

#[test]
fn a_host_is_dialled_at_its_own_addresses_or_at_those_that_the_user_gave() {
    let order = |change: fn(&mut Settings), segments: &[&str], machine| {
        let mut rig = Rig::with(segments, false, change);
        rig.hello(0, "m1");
        rig.hello(1, machine);
        let edge = edge(1);
        let actions = rig.says(1, FromAgent::Listening { edge, port: 1 });
        let (addresses, _) = dialed(&actions);
        addresses.join(" ")
    };
    let nothing: fn(&mut Settings) = |_| {};
    let remote = ["a:x", "me@b:y"];
    assert_eq!(order(nothing, &remote, "m2"), "10.0.0.1 b");
    assert_eq!(order(nothing, &remote, "m1"), "127.0.0.1 10.0.0.1 b");
    assert_eq!(
        order(nothing, &["a:x", "10.0.0.1:y"], "m2"),
        "10.0.0.1",
        "each once"
    );
    let here: fn(&mut Settings) = |settings| settings.here = Some("me.net".to_owned());
    assert_eq!(order(here, &["a:x", ":y"], "m2"), "me.net 10.0.0.1");
    assert_eq!(order(nothing, &["a:x", ":y"], "m2"), "10.0.0.1");
    let given: fn(&mut Settings) = |settings| {
        settings.addresses = vec![Addresses::parse("b=192.168.0.7,::1").unwrap()];
    };
    assert_eq!(order(given, &remote, "m1"), "192.168.0.7 ::1");
}

#[test]
fn a_hostile_agent_cannot_make_other_hosts_connect_to_any_number_of_addresses() {
    let mut rig = Rig::new(&["a:x", "b:y"], false);
    rig.hello(0, "m1");
    let hello = |first: u8| {
        let own = [IpAddr::from([127, 0, 0, 1]), IpAddr::from([169, 254, 0, 1])];
        let many = (0..3000_u16).map(|number| {
            let [high, low] = number.to_be_bytes();
            IpAddr::from([first, 0, high, low])
        });
        FromAgent::Hello(AgentHello {
            host: "host1".to_owned(),
            machine: "m2".to_owned(),
            addresses: own.into_iter().chain(many).collect(),
            streams: 4,
            most_streams: None,
        })
    };
    rig.says(1, hello(10));
    let edge = edge(1);
    let listening = |port| FromAgent::Listening { edge, port };
    let actions = rig.says(1, listening(1));
    let (addresses, _) = dialed(&actions);
    assert_eq!(addresses.len(), 17, "16 and the name of the host");
    assert_eq!((addresses[0], addresses[16]), ("10.0.0.0", "b"));
    // A second port, or a second list of addresses, connects to nothing more.
    assert_eq!(rig.says(1, listening(2)), []);
    let actions = rig.says(1, hello(11));
    assert_eq!(killed(&actions), [0, 1]);
    assert_eq!(rig.says(1, listening(3)), []);
}

#[test]
fn if_an_edge_cannot_be_dialled_in_one_direction_the_other_is_tried() {
    let mut rig = Rig::new(&["a:x", "b:y"], false);
    rig.hello(0, "m1");
    rig.hello(1, "m2");
    let edge = edge(1);
    rig.says(1, FromAgent::Listening { edge, port: 40001 });
    let tried = vec![("10.0.0.1".to_owned(), "no answer within 2s".to_owned())];
    let unreachable = FromAgent::Unreachable {
        edge,
        tried: tried.clone(),
    };
    let actions = rig.says(0, unreachable);
    assert_eq!(actions, [send(0, ToAgent::Listen { edge })]);
    let listening = FromAgent::Listening { edge, port: 40002 };
    let actions = rig.says(0, listening);
    assert!(matches!(
        actions[..],
        [Action::Send(
            1,
            ToAgent::Dial {
                edge: EdgeId(1),
                port: 40002,
                ..
            }
        )]
    ));
    let actions = rig.says(1, FromAgent::Unreachable { edge, tried });
    assert_eq!(killed(&actions), [0, 1]);
    let text = rig.machine.summary().outcome.causes[0].fault.text.clone();
    for part in [
        "stage 1 (a) and stage 2 (b)",
        "from a to b: 10.0.0.1 does not answer on port 40001",
        "from b to a: 10.0.0.1 does not answer on port 40002; a firewall? Open",
        "give -p 7691-7699",
    ] {
        assert!(text.contains(part), "{text}");
    }
    assert_eq!(rig.exit(), 255);
}

/// Returns a run of two hosts whose edge cannot be connected in either direction, and the actions that follow.
fn unreached(via_ssh: ViaSsh) -> (Rig, Vec<Action>) {
    let mut rig = Rig::with(&["a:x", "b:y"], false, |settings| {
        settings.via_ssh = via_ssh;
    });
    rig.hello(0, "m1");
    rig.hello(1, "m2");
    let edge = edge(1);
    let unreachable = || FromAgent::Unreachable {
        edge,
        tried: vec![("10.0.0.1".to_owned(), "refused".to_owned())],
    };
    rig.says(1, FromAgent::Listening { edge, port: 40001 });
    rig.says(0, unreachable());
    rig.says(0, FromAgent::Listening { edge, port: 40002 });
    let actions = rig.says(1, unreachable());
    (rig, actions)
}

/// Returns the actions after the relay of the edge between the two hosts has ended.
fn relay_ends(rig: &mut Rig) -> Vec<Action> {
    let end = SessionEnd {
        why: "lost b".to_owned(),
        killed: false,
    };
    rig.event(Event::Relay(edge(1), RelayEvent::Ended(end)))
}

#[test]
fn an_edge_that_no_port_connects_goes_through_ssh() {
    let (mut rig, actions) = unreached(ViaSsh::Auto);
    let edge = edge(1);
    let relay = Action::Relay {
        edge,
        dialer: super::Node::Agent(1),
        listener: super::Node::Agent(0),
        port: 40002,
    };
    assert_eq!(actions, [relay]);
    // A host may say what it likes: the other one connects only to the relay, once.
    assert_eq!(rig.says(0, FromAgent::Listening { edge, port: 22 }), []);
    let ready = |port| Event::Relay(edge, RelayEvent::Ready(port));
    let dial = ToAgent::Dial {
        edge,
        addresses: vec!["127.0.0.1".to_owned()],
        port: 7,
        is_relayed: true,
    };
    assert_eq!(rig.event(ready(7)), [send(1, dial)]);
    assert_eq!(rig.event(ready(8)), []);
    let [Action::Notify(Notice::Note(text))] = &rig.connected(0, edge)[..] else {
        panic!("no note");
    };
    for part in ["stage 1 (a) and stage 2 (b)", "through ssh", "on a", "-p "] {
        assert!(text.contains(part), "{text}");
    }
    assert_eq!(rig.connected(1, edge), []);
    let link = rig.machine.summary().links[1].clone().unwrap();
    assert_eq!(link.reason, "through ssh");
}

#[test]
fn the_end_of_a_relay_is_named_while_its_edge_is_needed() {
    // Before the edge is connected.
    let (mut rig, _) = unreached(ViaSsh::Auto);
    assert_eq!(killed(&relay_ends(&mut rig)), [0, 1]);
    let text = rig.machine.summary().outcome.causes[0].fault.text.clone();
    for part in ["port 40001", "port 40002", "through ssh: lost b"] {
        assert!(text.contains(part), "{text}");
    }
    // While bytes flow, and after an end of the edge has succeeded.
    for ended in [false, true] {
        let mut rig = Rig::new(&["a:x", "b:y"], false);
        rig.up(2, false);
        if ended {
            rig.report(0, OK);
        }
        let expected: &[usize] = if ended { &[] } else { &[0, 1] };
        assert_eq!(killed(&relay_ends(&mut rig)), expected);
    }
}

#[test]
fn an_edge_goes_through_ssh_at_once_if_the_user_wants_it() {
    let mut rig = Rig::with(&["a:x", ":y"], false, |settings| {
        settings.via_ssh = ViaSsh::Always;
    });
    rig.hello(0, "m1");
    rig.hello(1, "m0");
    let listens = |edge, port| FromAgent::Listening { edge, port };
    let actions = rig.says(1, listens(edge(1), 1));
    assert!(matches!(actions[..], [Action::Relay { .. }]), "{actions:?}");
    // Both ends are on this machine.
    let actions = rig.says(1, listens(edge(2), 2));
    assert!(matches!(actions[..], [Action::Dial { .. }]), "{actions:?}");
}

#[test]
fn a_fallback_to_tcp_is_reported_once_for_an_edge() {
    let mut rig = Rig::new(&["a:x"], false);
    rig.hello(0, "m1");
    let link = EdgeLink {
        is_fallback: true,
        ..link()
    };
    let edge = edge(1);
    let connected = FromAgent::Connected {
        edge,
        link: link.clone(),
    };
    let told = rig.says(0, connected);
    assert!(
        matches!(told[..], [Action::Notify(Notice::Note(_))]),
        "{told:?}"
    );
    let told = rig.local(edge, LocalEdgeEvent::Connected(link));
    assert!(
        !told
            .iter()
            .any(|action| matches!(action, Action::Notify(_)))
    );
}

/// Agents send any messages in any order, and the machine still ends the pipeline without a panic.
#[test]
fn any_messages_in_any_order_end_the_pipeline_without_a_panic() {
    let events = |stage: usize| {
        let about = |edge| {
            [
                FromAgent::Listening { edge, port: 1 },
                FromAgent::Unreachable {
                    edge,
                    tried: vec![],
                },
                FromAgent::Connected { edge, link: link() },
            ]
        };
        // The two edges of the stage, one of another stage, and one that does not exist.
        let mut all: Vec<_> = [0, 1, 2, u32::MAX].map(EdgeId).map(about).concat();
        let messages = [FromStage::InputComplete, FromStage::Ended(OK)];
        let messages = messages.map(|message| Payload::encode(&message).unwrap());
        all.extend(messages.map(FromAgent::Application));
        all.push(FromAgent::Pong);
        all.push(report(&stage_report(OK)));
        all.into_iter().map(move |message| (stage, message))
    };
    for skip in 0..20 {
        let mut rig = Rig::new(&["a:x", "b:< f"], false);
        let all: Vec<_> = events(1).chain(events(0)).collect();
        for (stage, message) in all.iter().cycle().skip(skip).take(all.len()) {
            rig.says(*stage, message.clone());
        }
        rig.closed(0);
        rig.closed(1);
        rig.now = Duration::from_secs(60);
        rig.event(Event::Tick);
        rig.now = Duration::from_secs(62);
        rig.event(Event::Tick);
        assert!(rig.actions.contains(&Action::Done), "{:?}", rig.actions);
    }
}

#[test]
fn messages_about_the_edges_of_another_agent_are_ignored() {
    let mut rig = Rig::new(&["a:x", "b:y", "c:z"], false);
    for stage in 0..3 {
        rig.hello(stage, &format!("m{stage}"));
    }
    let (stranger, port) = (edge(3), 9);
    let listening = FromAgent::Listening {
        edge: stranger,
        port,
    };
    assert_eq!(rig.says(0, listening.clone()), []);
    assert_eq!(dialed(&rig.says(2, listening)).1, port);
}

#[test]
fn unreadable_files_are_reported_and_the_status_is_that_of_the_agent() {
    let mut rig = Rig::of(
        Plan::files(&["a:x".into(), "a:y".into()])
            .unwrap()
            .remove(0),
        |_| {},
    );
    rig.up(1, false);
    let path = b"x\xff".to_vec();
    let why = "No such file".to_owned();
    let told = Notice::Unreadable(0, "x\u{fffd}: No such file".to_owned());
    let actions = rig.stage(0, &FromStage::Unreadable { path, why });
    assert_eq!(actions, [Action::Notify(told)]);
    rig.stage(0, &FromStage::Ended(Status::Exited(1)));
    rig.local_ended(edge(1));
    rig.report(0, Status::Exited(1));
    assert!(rig.closed(0).contains(&Action::Done));
    assert_eq!(rig.exit(), 1);
    assert!(rig.machine.summary().outcome.causes.is_empty());
}

#[test]
fn a_pipeline_ends_when_all_agents_have_reported_and_all_sessions_have_closed() {
    let mut rig = Rig::new(&["a:x", "b:y"], true);
    rig.up(2, true);
    rig.local_ended(edge(0));
    for stage in 0..2 {
        assert_eq!(rig.stage(stage, &FromStage::Ended(OK)), []);
        assert_eq!(rig.report(stage, OK), []);
        assert_eq!(rig.closed(stage), []);
    }
    assert_eq!(rig.local_ended(edge(2)), [Action::Done]);
    assert_eq!(rig.exit(), 0);
    assert_eq!(rig.machine.work().bytes(), 7);
}

#[test]
fn a_file_is_committed_only_when_all_earlier_stages_have_succeeded() {
    let mut rig = Rig::new(&["a:x", "b:y", "c:> f"], false);
    rig.up(3, false);
    assert_eq!(rig.stage(2, &FromStage::InputComplete), []);
    assert_eq!(rig.stage(0, &FromStage::Ended(OK)), []);
    let actions = rig.stage(1, &FromStage::Ended(OK));
    assert_eq!(actions, [proceed(2)]);
    assert_eq!(rig.report(1, OK), [], "it is told once");

    let mut rig = Rig::new(&["a:x", "b:y", "c:> f"], false);
    rig.up(3, false);
    rig.stage(0, &FromStage::Ended(Status::Exited(3)));
    rig.stage(1, &FromStage::Ended(OK));
    let actions = rig.stage(2, &FromStage::InputComplete);
    let reason = "stage 1 (a) exited with 3".to_owned();
    assert_eq!(actions, [send(2, ToAgent::Kill { reason })]);
    rig.report(0, Status::Exited(3));
    rig.report(1, OK);
    rig.faulty(2, FaultKind::Ordered, "told to end");
    assert_eq!(rig.exit(), 3);

    let mut rig = Rig::new(&["a:> f"], false);
    rig.up(1, false);
    assert_eq!(
        rig.stage(0, &FromStage::InputComplete),
        [proceed(0)],
        "no stage is before it"
    );
}

#[test]
fn a_stage_that_ended_after_a_stop_does_not_keep_a_file_from_its_commit() {
    let mut rig = Rig::new(&["a:yes", "b:head -1", "c:> f"], false);
    rig.up(3, false);
    rig.stage(0, &FromStage::Ended(Status::Signaled(13)));
    rig.stage(1, &FromStage::Ended(OK));
    assert_eq!(
        rig.stage(2, &FromStage::InputComplete),
        [],
        "why the first ended is not known yet"
    );
    let stopped = StageReport {
        output_stopped: true,
        ..stage_report(Status::Signaled(13))
    };
    let actions = rig.says(0, report(&stopped));
    assert_eq!(actions, [proceed(2)]);

    let mut rig = Rig::new(&["a:yes", "b:head -1", "c:> f"], false);
    rig.up(3, false);
    rig.stage(1, &FromStage::Ended(OK));
    rig.stage(2, &FromStage::InputComplete);
    rig.stage(0, &FromStage::Ended(Status::Signaled(13)));
    let actions = rig.report(0, Status::Signaled(13));
    assert_eq!(killed(&actions), [2], "no stage had told it to stop");
}

#[test]
fn a_session_that_cannot_be_opened_ends_the_pipeline() {
    let mut rig = Rig::new(&["a:x", "b:y", "c:z"], true);
    rig.hello(0, "m1");
    let actions = rig.closed(1);
    assert_eq!(killed(&actions), [0]);
    assert!(
        actions.contains(&Action::CutSession(2)),
        "it has not even begun: {actions:?}"
    );
    for edge in [edge(0), edge(3)] {
        let gave_up = |action: &Action| matches!(action, Action::Abort(at, _) if *at == edge);
        assert!(actions.iter().any(gave_up), "{actions:?}");
    }
    rig.faulty(0, FaultKind::Ordered, "told to end");
    rig.closed(0);
    rig.closed(2);
    rig.local_ended(edge(0));
    assert_eq!(rig.local_ended(edge(3)), [Action::Done]);
    let outcome = rig.machine.summary().outcome;
    assert_eq!(outcome.ranked()[0].fault.text, "lost host1");
    assert_eq!(outcome.exit(), 255);
}

#[test]
fn a_late_hello_is_not_answered_after_a_failure() {
    let mut rig = Rig::new(&["a:x", "b:y"], false);
    rig.closed(0);
    assert_eq!(rig.hello(1, "m2"), []);
}

#[test]
fn agents_that_do_not_end_are_cut_after_five_seconds() {
    let mut rig = Rig::new(&["a:x", "b:y"], false);
    rig.up(2, false);
    let actions = rig.faulty(0, FaultKind::Local, "no such file");
    assert_eq!(killed(&actions), [1]);
    rig.closed(0);
    assert_eq!(rig.machine.deadline(), Some(Duration::from_secs(5)));
    rig.now = Duration::from_secs(5);
    let actions = rig.event(Event::Tick);
    assert!(actions.contains(&Action::CutSession(1)), "{actions:?}");
    rig.now = Duration::from_secs(6);
    assert_eq!(rig.event(Event::Tick), [Action::Done], "whatever is left");
}

#[test]
fn a_session_that_stays_after_its_report_is_cut() {
    let mut rig = Rig::new(&["a:x"], false);
    rig.up(1, false);
    rig.report(0, OK);
    rig.local_ended(edge(1));
    let deadline = rig.machine.deadline().unwrap();
    rig.now = deadline;
    assert_eq!(rig.event(Event::Tick)[0], Action::CutSession(0));
    assert_eq!(rig.closed(0), [Action::Done]);
    assert_eq!(rig.exit(), 0);
}

#[test]
fn an_interrupt_ends_the_pipeline_within_two_seconds() {
    let mut rig = Rig::new(&["a:x", "b:y"], false);
    rig.up(2, false);
    let (number, name) = (2, "SIGINT");
    let actions = rig.event(Event::Signal { number, name });
    assert_eq!(killed(&actions), [0, 1]);
    assert_eq!(rig.machine.deadline(), Some(Duration::from_secs(2)));
    assert_eq!(rig.exit(), 130);
    let mut rig = Rig::new(&["a:x"], false);
    rig.up(1, false);
    rig.faulty(0, FaultKind::Local, "x");
    rig.event(Event::Signal { number, name });
    assert_eq!(rig.machine.deadline(), Some(Duration::from_secs(2)));
}

#[test]
fn the_first_cause_is_found_behind_its_consequences() {
    let mut rig = Rig::new(&["a:x", "b:> f", "c:z"], false);
    rig.up(3, false);
    rig.faulty(0, FaultKind::PeerAborted, "stage 2 gave up");
    rig.faulty(2, FaultKind::Edge, "the other end died");
    rig.faulty(1, FaultKind::Local, "no space left on device");
    let outcome = rig.machine.summary().outcome;
    assert_eq!(outcome.ranked()[0].fault.text, "no space left on device");
}

#[test]
fn the_message_names_the_signal_that_killed_a_guard() {
    let mut rig = Rig::new(&["a:x"], false);
    rig.up(1, false);
    rig.faulty(0, FaultKind::Local, "the agent was ended by SIGTERM");
    let why = "the agent on a was killed by signal 9 (SIGKILL)".to_owned();
    let killed = true;
    rig.event(Event::Closed(0, SessionEnd { why, killed }));
    let text = &rig.machine.summary().outcome.causes[0].fault.text;
    assert!(text.starts_with("the agent on a was killed"), "{text}");
}

#[test]
fn a_fault_before_all_edges_are_connected_counts_as_infrastructure() {
    let mut rig = Rig::new(&["a:> f"], false);
    rig.hello(0, "m1");
    rig.faulty(0, FaultKind::Local, "cannot listen");
    assert_eq!(rig.exit(), 255);
    let mut rig = Rig::new(&["a:> f"], false);
    rig.up(1, false);
    rig.faulty(0, FaultKind::Local, "no space left on device");
    assert_eq!(rig.exit(), 1);
}

#[test]
fn a_failure_of_rdpipes_own_output_ends_the_pipeline() {
    let mut rig = Rig::new(&["a:x"], false);
    rig.up(1, false);
    let fault = Some(WorkFault {
        kind: FaultKind::Local,
        text: "cannot write standard output".to_owned(),
    });
    let ended = LocalEdgeEnd {
        fault,
        ..LocalEdgeEnd::default()
    };
    let actions = rig.local(edge(1), LocalEdgeEvent::Ended(ended));
    assert_eq!(killed(&actions), [0]);
    rig.faulty(0, FaultKind::PeerAborted, "rdpipe gave up");
    assert_eq!(rig.closed(0), [Action::Done]);
    assert_eq!(rig.exit(), 1);
}

#[test]
fn a_message_that_is_not_one_of_a_stage_ends_the_pipeline() {
    let nonsense = Payload::encode(&(u8::MAX, "?")).unwrap();
    let mut rig = Rig::new(&["a:x", "b:y"], false);
    rig.up(2, false);
    let actions = rig.says(0, FromAgent::Application(nonsense.clone()));
    assert_eq!(killed(&actions), [0, 1]);
    assert_eq!(rig.exit(), 255);

    let mut rig = Rig::new(&["a:x", "b:y"], false);
    rig.up(2, false);
    let report = AgentReport {
        fault: None,
        result: Some(nonsense),
    };
    let actions = rig.says(0, FromAgent::Report(report));
    assert_eq!(killed(&actions), [1]);
    assert_eq!(rig.exit(), 255);
}

#[test]
fn an_agent_that_gives_up_again_and_again_is_not_listened_to() {
    let mut rig = Rig::new(&["a:x", "b:y"], false);
    rig.hello(0, "m1");
    rig.hello(1, "m2");
    for _ in 0..3000 {
        for stage in 0..2 {
            let (edge, tried) = (edge(1), Vec::new());
            rig.says(stage, FromAgent::Unreachable { edge, tried });
        }
    }
    let text = &rig.machine.summary().outcome.causes[0].fault.text;
    assert_eq!(text.matches("; from ").count(), 2, "{text}");
    assert_eq!(rig.machine.summary().outcome.causes.len(), 1);
}

#[test]
fn an_agent_that_fails_again_and_again_takes_no_memory() {
    let mut rig = Rig::new(&["a:x", "b:y"], false);
    rig.up(2, false);
    for _ in 0..3000 {
        let nonsense = Payload::encode(&(77_u8, 77_u8)).unwrap();
        rig.says(0, FromAgent::Application(nonsense));
    }
    rig.faulty(0, FaultKind::Edge, "broken");
    // The fault of another stage is still recorded.
    rig.faulty(1, FaultKind::Local, "it fails too");
    let causes = rig.machine.summary().outcome.causes;
    assert!(causes.len() < 10, "{} causes", causes.len());
    assert!(
        causes
            .iter()
            .any(|cause| cause.fault.text == "it fails too")
    );
}

#[test]
fn a_report_that_is_taken_back_is_no_success() {
    let mut rig = Rig::new(&["a:x"], false);
    rig.up(1, false);
    rig.says(0, report(&stage_report(Status::Exited(3))));
    rig.says(0, report(&stage_report(OK)));
    rig.closed(0);
    assert_eq!(rig.exit(), 3);
}
