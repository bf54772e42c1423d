//! Carries out one order, from its edges to its report: in a worker, or for a client of a server. The work itself is
//! that of an application of the agent, which takes the order, runs on connected edges, and reports.

use std::{
    collections::BTreeMap,
    pin::pin,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU8, Ordering},
    },
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite},
    runtime::Handle,
    sync::{OwnedSemaphorePermit, Semaphore, mpsc},
    time::{sleep, timeout},
};
use tokio_util::{sync::CancellationToken, task::task_tracker::TaskTrackerToken};

use super::{
    ControlReader,
    edges::{self, ConnectedEdge, EdgeAcceptance, EdgeRequest, EdgeRoutes, Meter, PendingEdges},
    outbox::Outbox,
    relay::RelayEnd,
};
use crate::{
    Direction, Error,
    carry::CarryThread,
    ssh::{
        edge::{EdgePlan, about_peer},
        protocol::{AgentReport, EdgeId, FaultKind, Order, Payload, ToAgent, WorkFault},
    },
    threads,
};

/// How long work that has failed may take to end. Then the agent reports. The guard of a worker kills the processes
/// that are left, so that all of it takes less than 5 s.
const END_LIMIT: Duration = Duration::from_secs(4);

/// The exit status of the worker. It is 0 until a task stores another one.
pub(super) type SharedExitCode = Arc<AtomicU8>;

/// What an order is carried out with.
pub(super) struct OrderRun {
    pub(super) context: JobContext,
    /// How the order's edges are accepted.
    pub(super) acceptance: EdgeAcceptance,
    /// How long the other ends may take to connect the edges, and then the controller to start the work. `None` waits
    /// without a limit.
    pub(super) connect_limit: Option<Duration>,
    pub(super) exit: SharedExitCode,
}

impl OrderRun {
    /// Carries out the order, and handles the controller's messages at the same time. `prepare` makes the job. Returns
    /// the report.
    pub(super) async fn carry_out<J, R>(
        &self,
        mut order: Order,
        inbox: ControlReader<R>,
        prepare: impl FnOnce(&JobContext, &Payload, &OrderedEdges) -> Result<J, String>,
    ) -> AgentReport
    where
        J: Job,
        R: AsyncRead + Unpin + Send + 'static,
    {
        let context = &self.context;
        let threads = &context.threads;
        let runtime = Handle::current();
        let prepared = PendingEdges::prepare(&mut order, &self.acceptance, &runtime, threads)
            .and_then(|edges| {
                let job = prepare(context, order.work.payload(), &edges.ordered())?;
                Ok((edges, job))
            });
        let (edges, mut job) = match prepared {
            Ok(prepared) => prepared,
            Err(text) => {
                context.fail_local(&text);
                return self.report(None);
            }
        };
        let go = CancellationToken::new();
        let (sender, messages) = application_messages();
        let routes = Routes {
            edges: edges.routes(),
            go: go.clone(),
            application: sender,
        };
        let handling = handle_messages(context.clone(), inbox, routes, Arc::clone(&self.exit));
        let handling = threads::spawn(handling);
        let working = async {
            let connecting = edges.establish(context);
            let edges = self.within_limit("connect", connecting).await?;
            let starting = edges::wait_for(go, context, edges);
            let edges = self.within_limit("start the work", starting).await?;
            job.run(edges, messages).await;
            Some(())
        };
        tokio::select! {
            _ = working => {}
            () = overdue(&context.first_fault) => {}
        }
        handling.abort();
        self.report(job.report())
    }

    /// Waits for what the other end must do, and fails the work after the limit.
    async fn within_limit<T>(&self, what: &str, waiting: impl Future<Output = T>) -> T {
        let Some(limit) = self.connect_limit else {
            return waiting.await;
        };
        let mut waiting = pin!(waiting);
        if let Ok(done) = timeout(limit, waiting.as_mut()).await {
            return done;
        }
        let text = format!("the other end did not {what} within {limit:.0?}");
        self.context.fail(FaultKind::Edge, &text);
        // Ends at once, because the work has failed.
        waiting.await
    }

    fn report(&self, result: Option<Payload>) -> AgentReport {
        AgentReport {
            fault: self.context.first_fault.fault(),
            result,
        }
    }
}

async fn overdue(first_fault: &FirstFault) {
    first_fault.failed().await;
    sleep(END_LIMIT).await;
}

/// The receivers of the controller's messages: the edges, the start of the work, and the application.
struct Routes {
    edges: EdgeRoutes,
    go: CancellationToken,
    application: MessageSender,
}

/// Carries out the controller's messages, until the session with the controller ends.
async fn handle_messages<R: AsyncRead + Unpin>(
    context: JobContext,
    mut inbox: ControlReader<R>,
    routes: Routes,
    exit: SharedExitCode,
) {
    loop {
        match inbox.next().await {
            Ok(ToAgent::Dial {
                edge,
                addresses,
                port,
                is_relayed,
            }) => {
                let request = EdgeRequest::Dial {
                    addresses,
                    port,
                    is_relayed,
                };
                routes.edges.send(edge, request);
            }
            Ok(ToAgent::Listen { edge }) => routes.edges.send(edge, EdgeRequest::Listen),
            Ok(ToAgent::LeaveOut { edge }) => routes.edges.send(edge, EdgeRequest::LeaveOut),
            Ok(ToAgent::Go) => routes.go.cancel(),
            Ok(ToAgent::Application(message)) => {
                if let Err(why) = routes.application.send(message).await {
                    exit.store(1, Ordering::Relaxed);
                    return context.fail(FaultKind::Ordered, why);
                }
            }
            Ok(ToAgent::Kill { reason }) => {
                context
                    .first_fault
                    .fail(FaultKind::Ordered, reason.clone(), reason);
            }
            Ok(ToAgent::Ping | ToAgent::Order(_)) => {}
            Err(error) => {
                exit.store(1, Ordering::Relaxed);
                return context.fail(FaultKind::Ordered, &error.to_string());
            }
        }
    }
}

/// The applications that the worker does not have itself: those of the layers above it.
pub(crate) trait Applications {
    /// Carries out the orders of [`Work::Copy`](crate::ssh::protocol::Work::Copy).
    type Copy: Job;
    /// Carries out the orders of [`Work::Measure`](crate::ssh::protocol::Work::Measure).
    type Measure: Job;
    /// Carries out the orders of [`Work::Forward`](crate::ssh::protocol::Work::Forward).
    type Forward: Job;

    /// Moves the bytes of a relay's connections over `input` and `output`, in the frames of two relays, until `input`
    /// ends.
    /// Fails if the session breaks, or the other relay is silent or breaks the protocol.
    fn relay<R, W>(
        end: RelayEnd,
        input: R,
        output: W,
    ) -> impl Future<Output = std::io::Result<()>> + Send
    where
        R: AsyncRead + Unpin + Send,
        W: AsyncWrite + Unpin + Send;
}

/// An application of the agent: carries out the orders of one [`Work`](crate::ssh::protocol::Work).
pub(crate) trait Job: Sized {
    /// Decodes and checks the application's part of an order. `edges` are the edges of the order; none is connected
    /// yet.
    /// Fails if the order is invalid.
    fn prepare(context: &JobContext, order: &Payload, edges: &OrderedEdges)
    -> Result<Self, String>;

    /// Does the work. Returns when all of its processes have exited and every edge is closed.
    /// Dropping the future may leave processes running. The guard kills them after the worker has exited.
    async fn run(&mut self, edges: ConnectedEdges, messages: Messages);

    /// Returns the application's report, after [`run`](Self::run) has returned or was dropped.
    fn report(&self) -> Option<Payload>;
}

/// What all tasks that work on one order share.
#[derive(Clone)]
pub(crate) struct JobContext {
    /// The name of the work in messages to peers: "stage 2 (fs2)".
    pub(crate) name: String,
    /// The first failure of the order.
    pub(crate) first_fault: Arc<FirstFault>,
    /// The queue of messages to the controller.
    pub(crate) outbox: Outbox,
    /// Held by each thread that works on the order, until the thread ends.
    pub(crate) threads: TaskTrackerToken,
}

impl JobContext {
    /// Fails the work because of a failure in this process.
    pub(crate) fn fail_local(&self, text: &str) {
        self.fail(FaultKind::Local, text);
    }

    /// Fails the work because the edge to `peer` broke. The peers on all edges receive the reason.
    pub(crate) fn broken(&self, error: Error, peer: &str) {
        self.first_fault.broken(error, peer, &self.name);
    }

    /// Fails the work. The peers on the edges receive `text` with the name of the work before it.
    pub(crate) fn fail(&self, kind: FaultKind, text: &str) {
        let reason = format!("{}: {text}", self.name);
        self.first_fault.fail(kind, text, reason);
    }
}

/// The most bytes of an application's messages that wait for it, in KiB: four of the longest.
const UNREAD_KIB: usize = 1 << 10;

/// How long the controller's next message waits until the application has read earlier ones.
const UNREAD_LIMIT: Duration = Duration::from_secs(5);

/// Returns both ends of a new queue for an application's messages.
fn application_messages() -> (MessageSender, Messages) {
    let (sender, queue) = mpsc::unbounded_channel();
    let sender = MessageSender {
        queue: sender,
        room: Arc::new(Semaphore::new(UNREAD_KIB)),
    };
    (sender, Messages(queue))
}

/// Passes messages of the controller on to the application. Those that wait have at most [`UNREAD_KIB`].
struct MessageSender {
    queue: mpsc::UnboundedSender<(Payload, OwnedSemaphorePermit)>,
    room: Arc<Semaphore>,
}

impl MessageSender {
    /// Queues a message. An application that has ended receives no more messages.
    /// Fails with a sentence if the application has not read earlier messages within [`UNREAD_LIMIT`].
    async fn send(&self, message: Payload) -> Result<(), &'static str> {
        let kib = u32::try_from(message.len() / 1024 + 1).unwrap_or(u32::MAX);
        let room = Arc::clone(&self.room).acquire_many_owned(kib);
        tokio::select! {
            biased;
            room = timeout(UNREAD_LIMIT, room) => {
                let Ok(Ok(room)) = room else {
                    return Err("received more messages for this work than it reads");
                };
                let _ = self.queue.send((message, room));
            }
            () = self.queue.closed() => {}
        }
        Ok(())
    }
}

/// The application's messages from the controller, in order.
pub(crate) struct Messages(mpsc::UnboundedReceiver<(Payload, OwnedSemaphorePermit)>);

impl Messages {
    /// Returns the next message; none if the session has ended.
    /// Cancel safe: a message that was not returned is returned by the next call.
    pub(crate) async fn recv(&mut self) -> Option<Payload> {
        self.0.recv().await.map(|(message, _)| message)
    }
}

/// An edge, and the thread whose runtime its stream belongs to.
pub(crate) type PlacedEdge = (CarryThread, ConnectedEdge);

/// The edges of an order that are connected.
#[derive(Default)]
pub(crate) struct ConnectedEdges(pub(crate) BTreeMap<EdgeId, PlacedEdge>);

impl ConnectedEdges {
    /// Removes an edge and returns it, if it is there.
    pub(crate) fn take(&mut self, id: EdgeId) -> Option<PlacedEdge> {
        self.0.remove(&id)
    }

    /// Returns the name of the other end of an edge in messages.
    pub(crate) fn peer(&self, id: EdgeId) -> String {
        let edge = self.0.get(&id);
        edge.map(|(_, edge)| edge.peer.clone()).unwrap_or_default()
    }

    /// Closes every edge that was not taken. If the work has failed, the peers receive the reason.
    pub(crate) async fn close(self) {
        let closing = self.0.into_values().map(|(thread, edge)| async move {
            thread.run(edge.close()).await;
        });
        futures::future::join_all(closing).await;
    }
}

pub(crate) struct OrderedEdges(pub(crate) BTreeMap<EdgeId, OrderedEdge>);

pub(crate) struct OrderedEdge {
    pub(super) direction: Direction,
    pub(super) meter: Arc<Meter>,
    pub(super) plan: EdgePlan,
}

impl OrderedEdges {
    /// Returns the counts of an edge that the application uses in this direction.
    /// Fails if there is no such edge or if its direction is another.
    pub(crate) fn meter(&self, id: EdgeId, direction: Direction) -> Result<Arc<Meter>, String> {
        match self.0.get(&id) {
            Some(edge) if edge.direction == direction => Ok(Arc::clone(&edge.meter)),
            Some(_) => Err(format!("the order's edge {id} leads the wrong way")),
            None => Err(format!("the order has no edge {id}")),
        }
    }

    /// Returns how an edge is connected, with its key.
    /// Fails if there is no such edge.
    pub(crate) fn plan(&self, id: EdgeId) -> Result<EdgePlan, String> {
        let edge = self.0.get(&id);
        let plan = edge.map(|edge| edge.plan.clone());
        plan.ok_or_else(|| format!("the order has no edge {id}"))
    }
}

/// The first failure of an order, shared by all tasks that work on it. The task that detects a failure records it
/// here, and all other tasks end.
#[derive(Debug, Default)]
pub(crate) struct FirstFault {
    first: Mutex<Option<RecordedFault>>,
    failed: CancellationToken,
    /// Set if the next stage stopped reading the output of this one.
    pub(super) output_stopped: Flag,
    /// Set if this stage stopped reading its input before the end.
    pub(super) input_stopped: Flag,
}

/// The first failure of an order, as it is recorded.
#[derive(Debug, Clone)]
struct RecordedFault {
    /// The fault for the report; none if the command's status already explains the failure.
    fault: Option<WorkFault>,
    reason: String,
}

impl FirstFault {
    /// Records a fault, unless a failure is recorded already. `text` is for the report, `reason` for the peers on the
    /// edges.
    pub(super) fn fail(&self, kind: FaultKind, text: impl Into<String>, reason: impl Into<String>) {
        let text = text.into();
        let fault = Some(WorkFault { kind, text });
        let reason = reason.into();
        self.set(RecordedFault { fault, reason });
    }

    /// Records that the edge to `peer` broke, unless a failure is recorded already. `own` is the name of this work in
    /// messages to the other peers.
    pub(super) fn broken(&self, error: Error, peer: &str, own: &str) {
        let kind = match error {
            Error::PeerAborted { .. } => FaultKind::PeerAborted,
            _ => FaultKind::Edge,
        };
        let text = about_peer(error.clone(), peer).to_string();
        let reason = match error {
            // The first failure is the peer's: its reason is passed on unchanged.
            Error::PeerAborted { reason, .. } => reason,
            _ => format!("{own}: {text}"),
        };
        self.fail(kind, text, reason);
    }

    /// Records that the command did not end by itself, unless a failure is recorded already. The report has no fault
    /// then: the command's status explains the failure.
    pub(super) fn give_up(&self, reason: String) {
        self.set(RecordedFault {
            fault: None,
            reason,
        });
    }

    fn set(&self, failure: RecordedFault) {
        let mut first = self.first.lock().unwrap_or_else(PoisonError::into_inner);
        first.get_or_insert(failure);
        drop(first);
        self.failed.cancel();
    }

    /// Waits until a failure is recorded.
    /// Cancel safe.
    pub(crate) async fn failed(&self) {
        self.failed.cancelled().await;
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.failed.is_cancelled()
    }

    pub(super) fn fault(&self) -> Option<WorkFault> {
        self.first()?.fault
    }

    /// Returns the reason that the peers on the edges receive.
    pub(crate) fn reason(&self) -> String {
        self.first().map(|first| first.reason).unwrap_or_default()
    }

    fn first(&self) -> Option<RecordedFault> {
        let first = self.first.lock().unwrap_or_else(PoisonError::into_inner);
        first.clone()
    }
}

/// A flag that is set at most once and is never cleared.
#[derive(Debug, Default)]
pub(super) struct Flag(AtomicBool);

impl Flag {
    pub(super) fn set(&self) {
        self.0.store(true, Ordering::Release);
    }

    pub(super) fn is_set(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_first_failure_is_kept() {
        let first_fault = FirstFault::default();
        assert!(!first_fault.has_failed());
        first_fault.fail(
            FaultKind::Local,
            "the disk is full",
            "2 (b): the disk is full",
        );
        first_fault.give_up("killed".into());
        assert!(first_fault.has_failed());
        assert_eq!(first_fault.fault().unwrap().text, "the disk is full");
        assert_eq!(first_fault.reason(), "2 (b): the disk is full");
    }
}
