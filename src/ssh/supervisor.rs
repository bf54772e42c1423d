//! Starts agents, connects them, watches them, and merges their results.
//!
//! The [`machine`] makes every decision that is the same for all work: it receives events and returns actions, without
//! I/O. The [`Driver`] carries the actions out: it drives sessions and the controller's own edges, waits for deadlines,
//! and shows notices to the user. The work of rdpipe and rdcat is a [`pipeline`]; that of other programs is above this
//! module.

pub(crate) mod edge_setup;
pub(crate) mod machine;
pub(crate) mod pipeline;
pub(crate) mod relay;
#[cfg(test)]
mod tests;

use std::{
    collections::BTreeMap,
    future::pending,
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::{
    sync::{
        OwnedSemaphorePermit, Semaphore,
        mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel},
        oneshot,
    },
    time::sleep_until,
};

use self::{
    edge_setup::{EdgeSetup, Node},
    machine::SupervisorMachine,
    relay::{Relay, RelayEvent, RelayTerms},
};
use super::{
    launch::{Launch, Room},
    local_edge::{LocalEdgeCommand, LocalEdgeEvent},
    outcome::{PipelineOutcome, RunFault, Site},
    plan::{Addresses, StageHost},
    protocol::{
        AgentHello, EdgeId, EdgeLink, EdgeOrder, FromAgent, Payload, PayloadError, ToAgent, ViaSsh,
        Work, WorkFault,
    },
    session::{AgentRoute, AgentSession, SessionEnd, SessionEvent, SessionRoom},
};

use crate::options::StreamOptions;

/// The user's options for the whole run.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    /// How the stream of every edge is set up.
    pub(crate) stream: StreamOptions,
    /// The first and the last port to listen on; none is any port.
    pub(crate) ports: Option<(u16, u16)>,
    /// The values of `--addr`.
    pub(crate) addresses: Vec<Addresses>,
    /// The value of `-H`: the address at which other hosts reach this machine.
    pub(crate) here: Option<String>,
    /// The identity of this machine's network stack, as in [`AgentHello`].
    pub(crate) machine: Option<String>,
    /// Whether edges go through ssh.
    pub(crate) via_ssh: ViaSsh,
}

/// An event that the machine of a run handles.
#[derive(Debug, Clone)]
pub(crate) enum Event {
    Message(usize, FromAgent),
    /// The session of this agent has ended, and its processes on this machine have exited.
    Closed(usize, SessionEnd),
    /// An event of one of the controller's own edges: of a pipeline, the input of the first stage or the output of the
    /// last one.
    Local(EdgeId, LocalEdgeEvent),
    /// An event of an edge that goes through ssh.
    Relay(EdgeId, RelayEvent),
    /// The controller's own program has this message for the application of this agent.
    Request(usize, Payload),
    /// This program has received a signal to end.
    Signal {
        number: u8,
        name: &'static str,
    },
    /// The deadline of the machine has passed.
    Tick,
}

/// An action that the machine of a run requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Action {
    Send(usize, ToAgent),
    /// Kill the session of this agent.
    CutSession(usize),
    /// Connect one of the controller's own edges.
    Dial {
        edge: EdgeId,
        addresses: Vec<String>,
        port: u16,
        is_relayed: bool,
    },
    /// Let an edge go through ssh: the end that listens has this port.
    Relay {
        edge: EdgeId,
        dialer: Node,
        listener: Node,
        port: u16,
    },
    /// Move bytes on the controller's own edges.
    Go,
    /// Abort one of the controller's own edges, for this reason.
    Abort(EdgeId, String),
    /// Show this notice to the user.
    Notify(Notice),
    /// Return: the run has ended.
    Done,
}

/// A text for the user. The variants are in the order of their weight, the heaviest first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Notice {
    /// A line that the agent's command, its shell or ssh wrote to stderr.
    StderrLine(usize, String),
    /// A file of this agent that could not be opened, and the reason.
    Unreadable(usize, String),
    /// A problem that is not a failure.
    Warning(String),
    /// A fact that a user may want to act on: an edge goes over TCP, say.
    Note(String),
    /// A detail that is shown only with `-v`.
    Detail(String),
    /// A minor detail that is shown only with `-vv`.
    Minor(String),
}

/// The final state of a run; of a pipeline, unless `O` is the outcome of other work.
#[derive(Debug, Clone, Default)]
pub(crate) struct Summary<O = PipelineOutcome> {
    /// How the work ended, and what broke.
    pub(crate) outcome: O,
    /// The name that each agent's host has for itself, if its agent has reported it.
    pub(crate) hosts: Vec<Option<String>>,
    /// What carried each edge.
    pub(crate) links: Vec<Option<EdgeLink>>,
}

/// What the supervisor runs on agents. It decides what its agents do, and its machine
/// ([`SupervisorMachine`]) connects them, starts them and ends them.
pub(crate) trait SupervisedWork {
    /// How the work ended.
    type Outcome;

    /// What the work is, in messages: "pipeline".
    const NOUN: &'static str;

    /// Returns the place of each agent, in order.
    fn places(&self) -> Vec<&StageHost>;

    /// Returns the edges before their first attempt, by index. An index without an edge is none.
    fn edges(&self) -> Vec<Option<EdgeSetup>>;

    /// Handles the hello of an agent, before its order. After it [`edges`](Self::edges) may have fewer at the end of the
    /// list, which are then left out. Returns the notices to show.
    fn meet(&mut self, agent: usize, hello: &AgentHello) -> Vec<Action> {
        let _ = (agent, hello);
        Vec::new()
    }

    /// Returns the name of an agent's work as it stands in a sentence: "stage 2 (fs2)".
    fn site(&self, agent: usize) -> String;

    /// Returns the name of the controller's program.
    fn program(&self) -> &'static str;

    /// Returns the application's part of the order for an agent that has these edges.
    /// Fails if the order is too long.
    fn order(&self, agent: usize, edges: &[EdgeOrder]) -> Result<Work, PayloadError>;

    /// Handles the application's message of an agent. Returns the notices to show.
    /// Fails if the message cannot be decoded.
    fn handle(&mut self, agent: usize, message: &Payload) -> Result<Vec<Action>, PayloadError>;

    /// Handles the application's part of an agent's report, and the fault beside it. Without an implementation the
    /// report has no such part.
    /// Fails if the report cannot be decoded. The agent still counts as one that has reported.
    fn handle_report(
        &mut self,
        agent: usize,
        result: Option<&Payload>,
        fault: Option<&WorkFault>,
    ) -> Result<(), PayloadError> {
        let _ = (agent, result, fault);
        Ok(())
    }

    /// Returns true if the fault in an agent's report, which was handled before, is one of ssh, of the network or of
    /// the agent, and not one of the user's command or file. `is_connecting`: some edge is not connected yet.
    fn is_infrastructure(&self, agent: usize, fault: &WorkFault, is_connecting: bool) -> bool;

    /// Returns what the agents are to be told now. Called after each message and report, until the work ends.
    fn requests(&mut self) -> Vec<Action> {
        Vec::new()
    }

    /// Returns why the work cannot go on, and the place that the reason is about. Called after each message of an
    /// application.
    fn refusal(&mut self) -> Option<(Site, String)> {
        None
    }

    /// Returns true if the run waits for the sessions of all agents that have reported, however long they last.
    fn waits_for_sessions(&self) -> bool {
        false
    }

    /// Returns how the work ended, as far as it is known.
    fn outcome(&self, run: RunOutcome) -> Self::Outcome;
}

/// How a run ended, apart from what its work knows itself.
#[derive(Debug, Clone, Default)]
pub(crate) struct RunOutcome {
    /// The fault in each agent's report.
    pub(crate) faults: Vec<Option<WorkFault>>,
    /// Every fault, in the order in which the controller received them.
    pub(crate) causes: Vec<RunFault>,
    /// Whether the reader of the controller's output closed it before the end.
    pub(crate) reader_left: bool,
    /// The signal that ended the run.
    pub(crate) signal: Option<u8>,
}

/// The most messages of agents that wait for the driver, in KiB: some of the longest. A session that has no room for its
/// next message reads no more.
const WAITING_KIB: usize = 4 << 10;

/// An event, and the room that it takes in the queue.
type QueuedEvent = (Event, Option<OwnedSemaphorePermit>);

/// The sending end of the driver's event queue, for sessions and local edges.
#[derive(Clone)]
pub(crate) struct EventSender(UnboundedSender<QueuedEvent>);

/// The receiving end of the driver's event queue.
pub(crate) struct EventQueue(UnboundedReceiver<QueuedEvent>);

/// Returns both ends of a new event queue.
pub(crate) fn event_queue() -> (EventSender, EventQueue) {
    let (sender, receiver) = unbounded_channel();
    (EventSender(sender), EventQueue(receiver))
}

impl EventSender {
    /// Returns a function that queues the events of one of the controller's own edges.
    pub(crate) fn local_edge(
        &self,
        edge: EdgeId,
    ) -> impl Fn(LocalEdgeEvent) + Send + Sync + 'static + use<> {
        let Self(sender) = self.clone();
        move |event| {
            // The driver has returned when the run has ended: later events are dropped.
            let _ = sender.send((Event::Local(edge, event), None));
        }
    }

    /// Returns a function that queues the events of an edge that goes through ssh.
    fn relay(&self, edge: EdgeId) -> impl Fn(RelayEvent) + Send + Sync + 'static + use<> {
        let Self(sender) = self.clone();
        move |event| {
            let _ = sender.send((Event::Relay(edge, event), None));
        }
    }

    /// Queues a message for the application of an agent.
    pub(crate) fn request(&self, agent: usize, message: Payload) {
        // The driver has returned when the run has ended: later messages are dropped.
        let _ = self.0.send((Event::Request(agent, message), None));
    }

    /// Returns a function that queues the events of a session. Lines of stderr are shown to the user directly.
    fn session(
        &self,
        agent: usize,
        notify: NoticeSink,
    ) -> impl Fn(SessionEvent) + Send + Sync + 'static + use<> {
        let Self(sender) = self.clone();
        move |event| {
            let event = match event {
                SessionEvent::StderrLine(line) => return notify(Notice::StderrLine(agent, line)),
                SessionEvent::Note(text) => return notify(Notice::Note(text)),
                SessionEvent::Message(message, room) => {
                    (Event::Message(agent, message), Some(room))
                }
                SessionEvent::Closed(end) => (Event::Closed(agent, end), None),
            };
            let _ = sender.send(event);
        }
    }
}

/// A function that shows a notice to the user.
pub(crate) type NoticeSink = Arc<dyn Fn(Notice) + Send + Sync>;

/// A function that receives the work after each event.
pub(crate) type Observer<W> = Box<dyn FnMut(&mut W) + Send>;

/// The senders for the commands of the controller's own edges, by edge.
pub(crate) type LocalEdges = BTreeMap<EdgeId, UnboundedSender<LocalEdgeCommand>>;

/// Runs one piece of work: holds its machine and everything that the machine's actions need.
pub(crate) struct Driver<W> {
    pub(crate) machine: SupervisorMachine<W>,
    /// The way to each agent.
    pub(crate) routes: Vec<AgentRoute>,
    /// The command that starts an agent on this machine.
    pub(crate) own_launch: Option<Launch>,
    /// An agent counts as lost after this much silence.
    pub(crate) silence: Duration,
    /// The senders for the commands of the controller's own edges.
    pub(crate) local_edges: LocalEdges,
    /// The sending end of the event queue, for sessions and local edges.
    pub(crate) events: EventSender,
    /// The receiving end of the event queue.
    pub(crate) queue: EventQueue,
    /// Shows notices to the user.
    pub(crate) notify: NoticeSink,
    /// Waits until there is room for more lines of stderr.
    pub(crate) room: Room,
    /// Receives the work after each event: for progress, and for what the work has collected for the user.
    pub(crate) observe: Observer<W>,
}

pub(crate) type EndingSignal = (u8, &'static str);

impl<W: SupervisedWork> Driver<W> {
    /// Runs the work to its end, and returns its final state.
    pub(crate) async fn run(self, signal: oneshot::Receiver<EndingSignal>) -> Summary<W::Outcome> {
        let Self {
            mut machine,
            routes,
            own_launch,
            silence,
            local_edges,
            events,
            mut queue,
            notify,
            room,
            mut observe,
        } = self;
        let started = Instant::now();
        let waiting = Arc::new(Semaphore::new(WAITING_KIB));
        let launch = |route: &AgentRoute| match route {
            AgentRoute::Process(launch) => Some(launch.clone()),
            AgentRoute::Server(_) => None,
        };
        let launches = routes.iter().map(launch).collect();
        let relay_events = events.clone();
        let relay_terms = RelayTerms::new(silence, Arc::clone(&room));
        let open = |(agent, route)| {
            let events = events.session(agent, Arc::clone(&notify));
            let room = SessionRoom {
                lines: Arc::clone(&room),
                messages: Arc::clone(&waiting),
            };
            AgentSession::open(route, silence, room, events)
        };
        let sessions: Vec<_> = routes.into_iter().enumerate().map(open).collect();
        let mut runner = ActionRunner {
            sessions,
            local_edges,
            relays: Vec::new(),
            launches,
            own_launch,
            relay_terms,
            events: relay_events,
            notify,
        };
        let mut signal = Box::pin(caught(signal));
        loop {
            let event = tokio::select! {
                Some((event, _room)) = queue.0.recv() => event,
                event = &mut signal => {
                    signal = Box::pin(caught(never()));
                    event
                }
                () = alarm(started, machine.deadline()) => Event::Tick,
            };
            let mut is_done = false;
            for action in machine.handle(started.elapsed(), event) {
                is_done |= action == Action::Done;
                runner.act(action);
            }
            observe(machine.work());
            if is_done {
                break;
            }
        }
        machine.summary()
    }
}

/// What the driver needs in order to carry out actions.
struct ActionRunner {
    sessions: Vec<AgentSession>,
    local_edges: LocalEdges,
    /// The edges that go through ssh, until the run ends.
    relays: Vec<Relay>,
    /// The command that starts each agent; none for a server.
    launches: Vec<Option<Launch>>,
    own_launch: Option<Launch>,
    relay_terms: RelayTerms,
    events: EventSender,
    notify: NoticeSink,
}

impl ActionRunner {
    fn act(&mut self, action: Action) {
        match action {
            Action::Send(agent, message) => self.sessions[agent].send(message),
            Action::CutSession(agent) => self.sessions[agent].cut(),
            Action::Dial {
                edge,
                addresses,
                port,
                is_relayed,
            } => {
                let dial = LocalEdgeCommand::Dial {
                    addresses,
                    port,
                    is_relayed,
                };
                self.command(edge, dial);
            }
            Action::Relay {
                edge,
                dialer,
                listener,
                port,
            } => self.relay(edge, [dialer, listener], port),
            Action::Go => {
                for &edge in self.local_edges.keys() {
                    self.command(edge, LocalEdgeCommand::Go);
                }
            }
            Action::Abort(edge, reason) => self.command(edge, LocalEdgeCommand::Abort(reason)),
            Action::Notify(notice) => (self.notify)(notice),
            Action::Done => {}
        }
    }

    /// Opens the sessions through which an edge goes. The machine asks for none with a server.
    fn relay(&mut self, edge: EdgeId, ends: [Node; 2], port: u16) {
        let launch = |node| match node {
            Node::Controller => self.own_launch.clone(),
            Node::Agent(agent) => self.launches[agent].clone(),
        };
        if let [Some(dialer), Some(listener)] = ends.map(launch) {
            let (terms, events) = (self.relay_terms.clone(), self.events.relay(edge));
            self.relays
                .push(Relay::open([dialer, listener], port, terms, events));
        }
    }

    fn command(&self, edge: EdgeId, command: LocalEdgeCommand) {
        if let Some(commands) = self.local_edges.get(&edge) {
            // An edge that has ended takes no commands: it has reported its end as an event.
            let _ = commands.send(command);
        }
    }
}

async fn caught(signal: oneshot::Receiver<EndingSignal>) -> Event {
    match signal.await {
        Ok((number, name)) => Event::Signal { number, name },
        Err(_) => pending().await,
    }
}

fn never() -> oneshot::Receiver<EndingSignal> {
    oneshot::channel().1
}

async fn alarm(started: Instant, deadline: Option<Duration>) {
    match deadline {
        Some(deadline) => sleep_until((started + deadline).into()).await,
        None => pending().await,
    }
}
