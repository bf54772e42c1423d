//! An edge that goes through ssh: the two sessions of its relay.

use std::{sync::Arc, time::Duration};

use tokio::sync::{
    Semaphore,
    mpsc::{UnboundedReceiver, unbounded_channel},
    oneshot,
};
use tokio_util::task::AbortOnDropHandle;

use crate::{
    options::StreamOptions,
    ssh::{
        launch::{Launch, Room},
        protocol::{FromAgent, Order, Payload, PayloadError, RelayOrder, Work},
        session::{AgentSession, RelaySession, SessionEnd, SessionEvent, SessionRoom},
    },
    threads,
};

/// The relays of a run that begin at once: so many logins at one host are no attack for any sshd.
const MOST_BEGINNING: usize = 3;

/// The room for the messages of a relay, in KiB: it sends one.
const ROOM_KIB: usize = 4;

/// An event of an edge that goes through ssh.
#[derive(Debug, Clone)]
pub(crate) enum RelayEvent {
    /// The end that dials reaches the other one at this port of 127.0.0.1.
    Ready(u16),
    /// A session has ended, or could not be opened.
    Ended(SessionEnd),
    /// A line that a host has written to stderr.
    Line(String),
}

/// What the relays of a run share.
#[derive(Clone)]
pub(super) struct RelayTerms {
    beginning: Arc<Semaphore>,
    /// The silence after which a host counts as lost.
    pub(super) silence: Duration,
    /// Waits until there is room for more lines of stderr.
    pub(super) room: Room,
}

/// The two sessions of an edge that goes through ssh. Dropping it ends them.
pub(super) struct Relay {
    _task: AbortOnDropHandle<()>,
}

impl RelayTerms {
    pub(super) fn new(silence: Duration, room: Room) -> Self {
        Self {
            beginning: Arc::new(Semaphore::new(MOST_BEGINNING)),
            silence,
            room,
        }
    }

    /// Opens the session of one end. Its events go to `events`.
    fn open(
        &self,
        launch: Launch,
        ends: RelaySession,
        events: impl Fn(SessionEvent) + Send + Sync + 'static,
    ) -> AgentSession {
        let room = SessionRoom {
            lines: Arc::clone(&self.room),
            messages: Arc::new(Semaphore::new(ROOM_KIB)),
        };
        AgentSession::open_relay(launch.for_relay(), ends, self.silence, room, events)
    }
}

impl Relay {
    /// Opens the sessions with the end that dials and the end that listens on `port`. Calls `events` for each event.
    pub(super) fn open(
        launches: [Launch; 2],
        port: u16,
        terms: RelayTerms,
        events: impl Fn(RelayEvent) + Send + Sync + 'static,
    ) -> Self {
        let task = threads::spawn(async move {
            let Ok(beginning) = Arc::clone(&terms.beginning).acquire_owned().await else {
                return;
            };
            let (sender, queue) = unbounded_channel();
            let (to_dialer, way_to_dialer) = oneshot::channel();
            let (to_listener, way_to_listener) = oneshot::channel();
            let orders = [None, Some(port)].map(|connect| order(connect, terms.silence));
            let [Ok(listens), Ok(connects)] = orders else {
                return;
            };
            let dialer = RelaySession {
                order: listens,
                own: to_dialer,
                peer: way_to_listener,
            };
            let listener = RelaySession {
                order: connects,
                own: to_listener,
                peer: way_to_dialer,
            };
            let ends = launches.into_iter().zip([dialer, listener]).enumerate();
            let open = |(end, (launch, session))| {
                let sender = sender.clone();
                terms.open(launch, session, move |event| {
                    // The task has ended when the edge is not needed any more.
                    let _ = sender.send((end, event));
                })
            };
            let _sessions: Vec<_> = ends.map(open).collect();
            watch(queue, beginning, events).await;
        });
        Self {
            _task: AbortOnDropHandle::new(task),
        }
    }
}

/// Returns the order of one end.
fn order(connect: Option<u16>, timeout: Duration) -> Result<Order, PayloadError> {
    let payload = Payload::encode(&RelayOrder { connect, timeout })?;
    Ok(Order {
        name: "relay".to_owned(),
        work: Work::Relay(payload),
        edges: Vec::new(),
        stream: StreamOptions::default(),
        ports: None,
    })
}

/// Passes on the events of the two sessions until one has ended. Drops `beginning` when both ends are ready.
async fn watch(
    mut queue: UnboundedReceiver<(usize, SessionEvent)>,
    beginning: impl Send,
    events: impl Fn(RelayEvent),
) {
    let mut beginning = Some(beginning);
    let mut ports = [None; 2];
    while let Some((end, event)) = queue.recv().await {
        match event {
            SessionEvent::Message(FromAgent::Listening { port, .. }, _) => {
                ports[end] = Some(port);
                if let [Some(port), Some(_)] = ports {
                    beginning = None;
                    events(RelayEvent::Ready(port));
                }
            }
            SessionEvent::Message(..) => {}
            SessionEvent::StderrLine(line) | SessionEvent::Note(line) => {
                events(RelayEvent::Line(line));
            }
            SessionEvent::Closed(end) => {
                events(RelayEvent::Ended(end));
                break;
            }
        }
    }
    drop(beginning);
}
