//! Carries out the actions of the machine: drives sessions and the controller's own edges, waits for deadlines, and
//! shows notices to the user.

use std::{
    collections::BTreeMap,
    future::pending,
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::{
    sync::{
        mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel},
        oneshot,
    },
    time::sleep_until,
};

use super::{Action, Event, Notice, Summary, SupervisedWork, machine::SupervisorMachine};
use crate::ssh::{
    local_edge::{LocalEdgeCommand, LocalEdgeEvent},
    protocol::{EdgeId, Payload},
    route::AgentRoute,
    session::{AgentSession, Room, SessionEvent},
};

/// The sending end of the driver's event queue, for sessions and local edges.
#[derive(Clone)]
pub(crate) struct EventSender(UnboundedSender<Event>);

/// The receiving end of the driver's event queue.
pub(crate) struct EventQueue(UnboundedReceiver<Event>);

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
            let _ = sender.send(Event::Local(edge, event));
        }
    }

    /// Queues a message for the application of an agent.
    pub(crate) fn request(&self, agent: usize, message: Payload) {
        // The driver has returned when the run has ended: later messages are dropped.
        let _ = self.0.send(Event::Request(agent, message));
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
                SessionEvent::Message(message) => Event::Message(agent, message),
                SessionEvent::Closed(end) => Event::Closed(agent, end),
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
    /// The machine that makes every decision.
    pub(crate) machine: SupervisorMachine<W>,
    /// The way to each agent.
    pub(crate) routes: Vec<AgentRoute>,
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

/// The number and the name of a signal that ends the run.
pub(crate) type EndingSignal = (u8, &'static str);

impl<W: SupervisedWork> Driver<W> {
    /// Runs the work to its end, and returns its final state.
    pub(crate) async fn run(self, signal: oneshot::Receiver<EndingSignal>) -> Summary<W::Outcome> {
        let Self {
            mut machine,
            routes,
            silence,
            local_edges,
            events,
            mut queue,
            notify,
            room,
            mut observe,
        } = self;
        let started = Instant::now();
        let open = |(agent, route)| {
            let events = events.session(agent, Arc::clone(&notify));
            AgentSession::open(route, silence, Arc::clone(&room), events)
        };
        let sessions: Vec<_> = routes.into_iter().enumerate().map(open).collect();
        let runner = ActionRunner {
            sessions,
            local_edges,
            notify,
        };
        let mut signal = Box::pin(caught(signal));
        loop {
            let event = tokio::select! {
                Some(event) = queue.0.recv() => event,
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
    notify: NoticeSink,
}

impl ActionRunner {
    fn act(&self, action: Action) {
        match action {
            Action::Send(agent, message) => self.sessions[agent].send(message),
            Action::CutSession(agent) => self.sessions[agent].cut(),
            Action::Dial {
                edge,
                addresses,
                port,
            } => self.command(edge, LocalEdgeCommand::Dial { addresses, port }),
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
