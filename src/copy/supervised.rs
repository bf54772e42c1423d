//! A copy as the supervisor runs it: two agents, a control edge and lanes between them. Pure, no I/O.

use super::{
    order::{CopyEnd, CopyNews, CopyOptions, CopyOrder, CopyReport, CopyRole, FromCopy, RunPart},
    path::CopiedSources,
    written::WrittenEntries,
};
use crate::ssh::{
    outcome::RunFault,
    plan::StageHost,
    protocol::{
        AgentHello, EdgeId, EdgeOrder, FaultKind, Payload, PayloadError, ToAgent, Work, WorkFault,
    },
    supervisor::{
        Action, Notice, RunOutcome, SupervisedWork,
        edge_setup::{EdgeSetup, Node},
    },
};

/// The index of the source among the agents of a copy.
pub(crate) const SOURCE: usize = 0;

/// The index of the destination among the agents of a copy.
pub(crate) const DESTINATION: usize = 1;

/// The fewest lanes that a copy has where the user gives no number. Two lanes let each end use two processors, and two
/// writers make a tree of small files in half the time of one.
pub(crate) const LEAST_LANES: u16 = 2;

/// The most lanes that a copy has where the user gives no number. Each lane costs a stream and a thread at both ends, and
/// over RDMA up to 16 MiB of pinned memory.
pub(crate) const MOST_LANES: u16 = 8;

/// Returns the number of lanes of a copy where the user gives none, for a host that this number of streams suits.
pub(crate) fn suitable_lanes(streams: u16) -> u16 {
    streams.clamp(LEAST_LANES, MOST_LANES)
}

/// The index of the two-way edge. The lanes follow it.
const CONTROL_EDGE: usize = 0;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CopyPlan {
    pub(crate) from: StageHost,
    /// The sources, at least one.
    pub(crate) paths: Vec<Vec<u8>>,
    pub(crate) to: StageHost,
    /// The destination.
    pub(crate) path: Vec<u8>,
    /// What is copied to this destination, by this plan and others together.
    pub(crate) sources: CopiedSources,
    pub(crate) part: RunPart,
    /// The number of lanes, at least one: at first the most that the copy may use.
    pub(crate) lanes: usize,
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
    /// The number of agents that have sent their hello.
    met: usize,
    /// The agent of a server that allows no more lanes.
    limited_by: Option<usize>,
    /// True if the destination was told what earlier copies have written.
    has_told_written: bool,
    /// What this copy and earlier ones of the run have written.
    written: WrittenEntries,
}

/// How far a copy is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct CopyState {
    /// The entries that the walk has found so far.
    pub(crate) found_files: u64,
    /// The number of those whose contents are counted in `found_bytes`.
    pub(crate) sized_files: u64,
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
            met: 0,
            limited_by: None,
            has_told_written: false,
            written,
        }
    }

    pub(crate) fn state(&self) -> &CopyState {
        &self.state
    }

    /// Returns what the agents have reported for the user since the last call, each with the index of its agent.
    pub(crate) fn take_news(&mut self) -> Vec<(usize, CopyNews)> {
        std::mem::take(&mut self.news)
    }

    /// Returns why the copy has the number of lanes that it has, in words.
    fn why_lanes(&self) -> String {
        let lanes = self.plan.lanes;
        let words = if lanes == 1 { "lane" } else { "lanes" };
        let why = match self.limited_by {
            Some(agent) => format!("{} allows no more", self.site(agent)),
            None if self.plan.options.chosen_lanes => "as -j says".to_owned(),
            None => "for the processors of the two hosts".to_owned(),
        };
        format!("the copy has {lanes} {words}, {why}")
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

    fn meet(&mut self, agent: usize, hello: &AgentHello) -> Vec<Action> {
        let CopyPlan { lanes, options, .. } = &mut self.plan;
        if !options.chosen_lanes {
            *lanes = (*lanes).min(suitable_lanes(hello.streams).into());
        }
        let allowed = hello.most_streams.map_or(usize::MAX, usize::from).max(1);
        if *lanes > allowed {
            *lanes = allowed;
            self.limited_by = Some(agent);
        }
        self.met += 1;
        if self.met < self.places().len() {
            return Vec::new();
        }
        vec![Action::Notify(Notice::Detail(self.why_lanes()))]
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
                sized,
                bytes,
                complete,
            } => {
                self.state.found_files = files;
                self.state.sized_files = sized;
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
            FromCopy::AskWritten if agent == DESTINATION && !self.has_told_written => {
                self.has_told_written = true;
                return self.written_parts(agent);
            }
            // An agent that asks again would fill the queue of messages to it.
            FromCopy::AskWritten => return Ok(Vec::new()),
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

    fn outcome(&self, run: RunOutcome) -> CopyOutcome {
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{
        Direction, Transport,
        options::StreamOptions,
        ssh::{
            outcome::Site,
            protocol::{AgentReport, EdgeLink, FromAgent, Order, ToAgent, ViaSsh},
            session::SessionEnd,
            supervisor::{Event, Settings, machine::SupervisorMachine},
        },
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
            options: CopyOptions {
                chosen_lanes: true,
                ..CopyOptions::default()
            },
        }
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

    impl CopyRig {
        fn new(lanes: usize) -> Self {
            Self::of(plan(lanes))
        }

        fn of(plan: CopyPlan) -> Self {
            let settings = Settings {
                stream: StreamOptions::default(),
                ports: None,
                addresses: Vec::new(),
                here: None,
                machine: Some("m0".to_owned()),
                via_ssh: ViaSsh::Auto,
            };
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
            let is_detail = |action: &Action| {
                matches!(action, Action::Notify(Notice::Detail(_) | Notice::Minor(_)))
            };
            actions.retain(|action| !is_detail(action));
            actions
        }

        fn says(&mut self, agent: usize, message: FromAgent) -> Vec<Action> {
            self.event(Event::Message(agent, message))
        }

        /// Gives the machine a hello, and returns the order that follows from it.
        fn hello(&mut self, agent: usize) -> Order {
            let (order, left_out) = self.hello_of(agent, 4, None);
            assert_eq!(left_out, []);
            order
        }

        /// Gives the machine the hello of a host that `streams` suit, and of a server that allows so many. Returns the
        /// order that follows from it, and the edges that the agent before it is told to leave out.
        fn hello_of(
            &mut self,
            agent: usize,
            streams: u16,
            most_streams: Option<u16>,
        ) -> (Order, Vec<(usize, EdgeId)>) {
            let hello = AgentHello {
                host: format!("host{agent}"),
                machine: format!("m{}", agent + 1),
                addresses: vec![format!("10.0.0.{agent}").parse().unwrap()],
                streams,
                most_streams,
            };
            let mut actions = self.says(agent, FromAgent::Hello(hello));
            let Some(Action::Send(to, ToAgent::Order(order))) = actions.pop() else {
                panic!("no order after {actions:?}");
            };
            assert_eq!(to, agent);
            let left_out = actions.into_iter().map(|action| match action {
                Action::Send(agent, ToAgent::LeaveOut { edge }) => (agent, edge),
                other => panic!("{other:?}"),
            });
            (*order, left_out.collect())
        }

        fn lanes(&self) -> usize {
            self.machine.summary().links.len() - 1
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
        use Direction::{Both, Receive, Send};
        let mut rig = CopyRig::new(3);
        let orders = [rig.hello(SOURCE), rig.hello(DESTINATION)];
        let [source, destination] = orders.clone().map(|order| match &order.work {
            Work::Copy(payload) => payload.decode::<CopyOrder>().unwrap(),
            Work::Stage(_) | Work::Measure(_) | Work::Forward(_) | Work::Relay(_) => {
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
        let lane =
            |direction, listens| (1..4).map(move |edge| (edge, direction, key(edge), listens));
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

    fn ordered_lanes(order: &Order) -> usize {
        let copy: CopyOrder = order.work.payload().decode().unwrap();
        assert_eq!(order.edges.len(), copy.lanes.len() + 1);
        copy.lanes.len()
    }

    #[test]
    fn the_lanes_follow_the_processors_of_the_host_that_has_fewer() {
        let unchosen = || CopyPlan {
            options: CopyOptions::default(),
            ..plan(MOST_LANES.into())
        };
        for (streams, lanes) in [
            ([1, 1], 2),
            ([1, 8], 2),
            ([8, 1], 2),
            ([3, 8], 3),
            ([8, 4], 4),
            ([8, 64], 8),
            ([0, u16::MAX], 2),
        ] {
            let mut rig = CopyRig::of(unchosen());
            let first = usize::from(suitable_lanes(streams[SOURCE]));
            let (source, left_out) = rig.hello_of(SOURCE, streams[SOURCE], None);
            assert_eq!((ordered_lanes(&source), left_out), (first, vec![]));
            let (destination, left_out) = rig.hello_of(DESTINATION, streams[DESTINATION], None);
            assert_eq!(ordered_lanes(&destination), lanes, "{streams:?}");
            // The source has its order already.
            let surplus = (lanes..first).map(|lane| (SOURCE, EdgeId::of_index(lane + 1)));
            assert_eq!(left_out, surplus.collect::<Vec<_>>());
            assert_eq!(rig.lanes(), lanes);
        }
    }

    #[test]
    fn a_copy_begins_without_the_lanes_that_were_left_out() {
        let mut rig = CopyRig::new(5);
        rig.hello_of(SOURCE, 1, None);
        let (_, left_out) = rig.hello_of(DESTINATION, 1, Some(2));
        assert_eq!(left_out, [3, 4, 5].map(|edge| (SOURCE, EdgeId(edge))));
        // An agent that has not handled the message yet may still report that it listens.
        let (edge, port) = (EdgeId(4), 7);
        let listening = FromAgent::Listening { edge, port };
        assert_eq!(rig.says(SOURCE, listening), []);
        let mut actions = Vec::new();
        for agent in [SOURCE, DESTINATION] {
            for edge in (0..=2).map(EdgeId) {
                assert_eq!(actions, []);
                actions = rig.says(agent, FromAgent::Connected { edge, link: link() });
            }
        }
        let go = |agent| Action::Send(agent, ToAgent::Go);
        assert_eq!(actions, [go(SOURCE), go(DESTINATION), Action::Go]);
    }

    #[test]
    fn a_server_that_allows_fewer_lanes_gets_as_many_as_it_allows() {
        for (asked, allowed, lanes) in [
            (9, Some(2), 2),
            (9, None, 9),
            (2, Some(4), 2),
            (3, Some(0), 1),
        ] {
            let mut rig = CopyRig::new(asked);
            rig.hello(SOURCE);
            let (order, _) = rig.hello_of(DESTINATION, 1, allowed);
            assert_eq!(ordered_lanes(&order), lanes);
            let words = if lanes == asked {
                "as -j says"
            } else {
                "the destination on b allows no more"
            };
            let why = rig.machine.work().why_lanes();
            assert!(why.ends_with(words), "{why}");
        }
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
            sized: 3,
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
}
