//! Carries out what the machine decides: sessions, rdpipe's own edges, time, and words for the user.

use std::{
    collections::BTreeMap,
    future::pending,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use tokio::{
    sync::{
        mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel},
        oneshot,
    },
    time::sleep_until,
};

use super::{Action, Event, Notice, Summary, machine::Machine};
use crate::ssh::{
    local_edge::{LocalEdgeCommand, LocalEdgeEvent},
    plan::launch::Launch,
    protocol::EdgeId,
    session::{Session, SessionEvent},
};

/// Where everything that happens comes together.
#[derive(Clone)]
pub(crate) struct Inbox(UnboundedSender<Event>);

/// What the driver takes from there.
pub(crate) struct Happenings(UnboundedReceiver<Event>);

/// An inbox, and its other end.
pub(crate) fn inbox() -> (Inbox, Happenings) {
    let (sender, receiver) = unbounded_channel();
    (Inbox(sender), Happenings(receiver))
}

impl Inbox {
    /// Returns where one of the controller's own edges reports its events.
    pub(crate) fn local_edge(
        &self,
        edge: EdgeId,
    ) -> impl Fn(LocalEdgeEvent) + Send + Sync + 'static + use<> {
        let Self(sender) = self.clone();
        move |event| {
            // The driver is gone when all is over.
            let _ = sender.send(Event::Local(edge, event));
        }
    }

    /// What a session says; its words go to the user directly.
    fn session(
        &self,
        stage: usize,
        tell: Tell,
    ) -> impl Fn(SessionEvent) + Send + Sync + 'static + use<> {
        let Self(sender) = self.clone();
        move |event| {
            let event = match event {
                SessionEvent::Words(line) => return tell(Notice::Words(stage, line)),
                SessionEvent::Message(message) => Event::Message(stage, message),
                SessionEvent::Closed(end) => Event::Closed(stage, end),
            };
            let _ = sender.send(event);
        }
    }
}

/// Tells the user.
pub(crate) type Tell = Arc<dyn Fn(Notice) + Send + Sync>;

/// The way to each of the controller's own edges.
pub(crate) type LocalEdges = BTreeMap<EdgeId, UnboundedSender<LocalEdgeCommand>>;

/// All that a run needs.
pub(crate) struct Driver {
    pub(crate) machine: Machine,
    /// How to start the agent of each stage.
    pub(crate) launches: Vec<Launch>,
    /// After how long a silence an agent counts as lost.
    pub(crate) silence: Duration,
    /// The way to each of the controller's own edges.
    pub(crate) local_edges: LocalEdges,
    pub(crate) inbox: Inbox,
    pub(crate) happenings: Happenings,
    pub(crate) tell: Tell,
    /// How many bytes the busiest stage has moved, for a progress bar.
    pub(crate) moved: Arc<AtomicU64>,
}

/// A signal that ended the run: number and name.
pub(crate) type Caught = (u8, &'static str);

impl Driver {
    /// Runs the pipeline to its end.
    pub(crate) async fn run(self, signal: oneshot::Receiver<Caught>) -> Summary {
        let Self {
            mut machine,
            launches,
            silence,
            local_edges,
            inbox,
            mut happenings,
            tell,
            moved,
        } = self;
        let started = Instant::now();
        let open = |(stage, launch)| {
            let events = inbox.session(stage, Arc::clone(&tell));
            Session::open(launch, silence, events)
        };
        let sessions: Vec<_> = launches.into_iter().enumerate().map(open).collect();
        let hands = Hands {
            sessions,
            local_edges,
            tell,
        };
        let mut signal = Box::pin(caught(signal));
        loop {
            let event = tokio::select! {
                Some(event) = happenings.0.recv() => event,
                event = &mut signal => {
                    signal = Box::pin(caught(never()));
                    event
                }
                () = alarm(started, machine.deadline()) => Event::Tick,
            };
            let mut is_done = false;
            for action in machine.handle(started.elapsed(), event) {
                is_done |= action == Action::Done;
                hands.act(action);
            }
            moved.store(machine.bytes(), Ordering::Relaxed);
            if is_done {
                break;
            }
        }
        machine.summary()
    }
}

/// What actions are done with.
struct Hands {
    sessions: Vec<Session>,
    local_edges: LocalEdges,
    tell: Tell,
}

impl Hands {
    fn act(&self, action: Action) {
        match action {
            Action::Send(stage, message) => self.sessions[stage].send(message),
            Action::Kill(stage) => self.sessions[stage].cut(),
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
            Action::Tell(notice) => (self.tell)(notice),
            Action::Done => {}
        }
    }

    fn command(&self, edge: EdgeId, command: LocalEdgeCommand) {
        if let Some(commands) = self.local_edges.get(&edge) {
            // An edge that has ended reports that by itself.
            let _ = commands.send(command);
        }
    }
}

async fn caught(signal: oneshot::Receiver<Caught>) -> Event {
    match signal.await {
        Ok((number, name)) => Event::Signal { number, name },
        Err(_) => pending().await,
    }
}

fn never() -> oneshot::Receiver<Caught> {
    oneshot::channel().1
}

async fn alarm(started: Instant, deadline: Option<Duration>) {
    match deadline {
        Some(deadline) => sleep_until((started + deadline).into()).await,
        None => pending().await,
    }
}
