//! A copy as an application of the agent: one type for the source and for the destination, and what they share with the
//! agent.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use tokio_util::{sync::CancellationToken, task::task_tracker::TaskTrackerToken};

use super::{
    budget::ListBudget,
    destination::{DestinationEngine, ServedDestination},
    order::{CopyEnd, CopyOptions, CopyOrder, CopyRole, FromCopy, NameFilter},
    path::BaseDirectory,
    source::SourceEngine,
    written::WrittenPart,
};
use crate::{
    Direction, Error, Stream,
    carry::CarryThread,
    ssh::{
        agent::{
            job::{ConnectedEdges, Job, JobContext, Messages, OrderedEdges},
            outbox::Outbox,
            resolve,
        },
        protocol::{EdgeId, FromAgent, Payload},
    },
};

/// The job of one side of a copy, from its order to its report.
pub(crate) struct CopyJob {
    context: JobContext,
    control: EdgeId,
    lanes: Vec<EdgeId>,
    /// The engine, until it runs.
    engine: Option<CopyEngine>,
    /// True if earlier copies of the run may have written entries.
    has_earlier: bool,
    /// True if the work has ended early because of the files here.
    gave_up: Arc<AtomicBool>,
    end: CopyEnd,
}

/// What a server gives to one of its copies.
pub(crate) struct ServedCopy {
    /// What the server decides if it writes.
    pub(crate) destination: ServedDestination,
    /// The memory for the lists of the copy.
    pub(crate) budget: ListBudget,
}

/// What does the work of an agent of a copy.
enum CopyEngine {
    Source(SourceEngine),
    Destination(Box<DestinationEngine>),
}

impl Job for CopyJob {
    fn prepare(
        context: &JobContext,
        order: &Payload,
        edges: &OrderedEdges,
    ) -> Result<Self, String> {
        Self::prepare_in(&BaseDirectory::Working, None, context, order, edges)
    }

    async fn run(&mut self, mut edges: ConnectedEdges, messages: Messages) {
        let peer = edges.peer(self.control);
        let Some((mut engine, streams)) = self.engine.take().zip(self.streams(&mut edges)) else {
            self.context.fail_local("an edge of the copy is missing");
            return edges.close().await;
        };
        let cancelled = CancellationToken::new();
        let context = self.copy_context(cancelled.clone());
        let cause = Arc::clone(&self.context.first_fault);
        let outbox = self.context.outbox.clone();
        let following = async move {
            cause.failed().await;
            outbox.hurry();
            cancelled.cancel();
            std::future::pending::<()>().await;
        };
        let working = async {
            match &mut engine {
                CopyEngine::Destination(engine) if self.has_earlier => {
                    let cancelled = context.cancelled.clone();
                    let asking = ask_written(engine, &context, messages);
                    // After the end of the work the engine closes the streams with the reason.
                    cancelled.run_until_cancelled(asking).await;
                }
                _ => drop(messages),
            }
            match engine {
                CopyEngine::Source(engine) => engine.run(streams, context.clone()).await,
                CopyEngine::Destination(engine) => engine.run(streams, context.clone()).await,
            }
        };
        let (report, failure) = tokio::select! {
            ended = working => ended,
            () = following => return,
        };
        self.end.report = report;
        match failure {
            Some(CopyError::Stream(error)) => self.context.broken(error, &peer),
            Some(CopyError::Local(text)) => (context.give_up)(&text),
            Some(CopyError::Cancelled) | None => {}
        }
        self.end.gave_up = self.gave_up.load(Ordering::Relaxed);
        edges.close().await;
    }

    fn report(&self) -> Option<Payload> {
        Payload::encode(&self.end).ok()
    }
}

impl CopyJob {
    /// Checks the order of a copy and starts its engine. The paths of the order are relative to `base`; `~/` means the
    /// home directory only if paths may lead anywhere. `served` is what a server gives to its copy, and what it decides
    /// of a destination.
    pub(crate) fn prepare_in(
        base: &BaseDirectory,
        served: Option<ServedCopy>,
        context: &JobContext,
        order: &Payload,
        edges: &OrderedEdges,
    ) -> Result<Self, String> {
        let CopyOrder {
            role,
            control,
            lanes,
            options,
        } = order
            .decode()
            .map_err(|error| format!("received an invalid order ({error})"))?;
        let has_earlier = matches!(&role, CopyRole::Destination { part, .. } if part.has_earlier);
        let direction = match role {
            CopyRole::Source(_) => Direction::Send,
            CopyRole::Destination { .. } => Direction::Receive,
        };
        edges.meter(control, Direction::Both)?;
        for &lane in &lanes {
            edges.meter(lane, direction)?;
        }
        let has_twice = (1..lanes.len()).any(|at| lanes[..at].contains(&lanes[at]));
        if lanes.is_empty() || has_twice {
            return Err("the order's lanes are not different edges".to_owned());
        }
        let threads = context.threads.clone();
        let engine = CopyEngine::prepare(base, served, role, options, threads)?;
        Ok(Self {
            context: context.clone(),
            control,
            lanes,
            engine: Some(engine),
            has_earlier,
            gave_up: Arc::default(),
            end: CopyEnd::default(),
        })
    }

    /// Takes the streams of the copy from the edges of the order that are connected.
    fn streams(&self, edges: &mut ConnectedEdges) -> Option<CopyStreams> {
        let mut take = |id| {
            let (thread, edge) = edges.take(id)?;
            Some((thread, edge.stream))
        };
        let control = take(self.control)?;
        // The controller leaves out the lanes for which the other host is too small.
        let lanes: Vec<_> = self.lanes.iter().copied().filter_map(take).collect();
        (!lanes.is_empty()).then_some(CopyStreams { control, lanes })
    }

    fn copy_context(&self, cancelled: CancellationToken) -> CopyContext {
        let outbox = self.context.outbox.clone();
        let cause = Arc::clone(&self.context.first_fault);
        let (context, gave_up) = (self.context.clone(), Arc::clone(&self.gave_up));
        CopyContext {
            report: Arc::new(ControllerReports(outbox)),
            cancelled,
            reason: Arc::new(move || cause.reason()),
            give_up: Arc::new(move |text| {
                let is_first = !context.first_fault.has_failed();
                gave_up.fetch_or(is_first, Ordering::Relaxed);
                context.fail_local(text);
            }),
        }
    }
}

impl CopyEngine {
    fn prepare(
        base: &BaseDirectory,
        served: Option<ServedCopy>,
        role: CopyRole,
        options: CopyOptions,
        threads: TaskTrackerToken,
    ) -> Result<Self, String> {
        let resolved = |path| {
            if base.is_confined() {
                path
            } else {
                resolved(path)
            }
        };
        let (destination, budget) = match served {
            None => (None, ListBudget::of_agent()),
            Some(ServedCopy {
                destination,
                budget,
            }) => (Some(destination), budget),
        };
        // Before the patterns are compiled.
        if !budget.take(NameFilter::memory(&options.filters)) {
            let why = budget.exceeded();
            return Err(format!(
                "too many patterns of --exclude and --include: {why}"
            ));
        }
        match role {
            CopyRole::Source(paths) => {
                let paths = paths.into_iter().map(resolved).collect();
                let engine = SourceEngine::prepare(base.clone(), paths, options, threads)?;
                Ok(Self::Source(engine.with_budget(budget)))
            }
            CopyRole::Destination {
                path,
                sources,
                part,
            } => {
                let path = resolved(path);
                let engine = DestinationEngine::prepare(base, &path, sources, options)?;
                let mut engine = engine.with_part(part).with_budget(budget);
                if let Some(served) = destination {
                    engine = engine.with_claims(served.claims).with_owner(served.owner);
                    engine = engine.with_existing_rights(served.existing);
                    if served.is_privileged {
                        engine = engine.with_all_rights();
                    }
                }
                Ok(Self::Destination(Box::new(engine)))
            }
        }
    }
}

/// Asks the controller what earlier copies of the run have written. Without an answer it waits for the end of the work.
async fn ask_written(
    engine: &mut DestinationEngine,
    context: &CopyContext,
    mut messages: Messages,
) {
    context.report.send(FromCopy::AskWritten);
    let mut is_last = false;
    while !is_last {
        let Some(message) = messages.recv().await else {
            // The session is lost, which ends the work.
            return std::future::pending().await;
        };
        if let Ok(part) = message.decode::<WrittenPart>() {
            is_last = part.is_last;
            engine.add_earlier(part);
        }
    }
}

/// Returns a path of an order with a leading `~/` replaced by the home directory.
fn resolved(path: Vec<u8>) -> Vec<u8> {
    use std::os::unix::ffi::OsStringExt;
    resolve(path).into_os_string().into_vec()
}

/// The way of an engine's messages to the controller.
pub(crate) trait Reports: Send + Sync {
    /// Queues a message without waiting. A queue that is full ends the copy, so this is for few messages only.
    fn send(&self, message: FromCopy);

    /// Queues a message when there is room for it, and blocks this thread until then. The streams of a copy stay alive
    /// meanwhile. Does not wait any more when the work ends, here (`stop`) or elsewhere.
    fn send_when_room(&self, message: FromCopy, stop: &CancellationToken) {
        let _ = stop;
        self.send(message);
    }

    /// Returns true if there is room for messages that can wait.
    fn has_room(&self) -> bool {
        true
    }
}

/// A function that receives the messages of an engine.
impl<F: Fn(FromCopy) + Send + Sync> Reports for F {
    fn send(&self, message: FromCopy) {
        self(message);
    }
}

/// The outbox of the agent, as the way of an engine's messages.
struct ControllerReports(Outbox);

impl Reports for ControllerReports {
    fn send(&self, message: FromCopy) {
        let is_state = matches!(message, FromCopy::Progress { .. } | FromCopy::Walked { .. });
        for payload in message.into_payloads() {
            if is_state {
                self.0.replace(payload);
            } else {
                self.0.send(FromAgent::Application(payload));
            }
        }
    }

    fn send_when_room(&self, message: FromCopy, stop: &CancellationToken) {
        for payload in message.into_payloads() {
            let message = FromAgent::Application(payload);
            while !self.0.offer(&message) {
                let waiting = async {
                    tokio::select! {
                        () = self.0.room() => false,
                        () = stop.cancelled() => true,
                    }
                };
                if futures::executor::block_on(waiting) {
                    self.0.send(message);
                    break;
                }
            }
        }
    }

    fn has_room(&self) -> bool {
        self.0.has_room()
    }
}

/// The way of an engine's messages to the controller, which its threads share.
pub(crate) type ReportSink = Arc<dyn Reports>;

/// The agent's side of a running copy.
#[derive(Clone)]
pub(crate) struct CopyContext {
    /// The way of messages to the controller.
    pub(crate) report: ReportSink,
    /// Cancelled when the work has failed elsewhere: the controller ended it, an edge broke, a signal came. The engine
    /// then stops within a second: it aborts its streams with [`reason`](Self::reason), and removes temporary files
    /// that cannot be resumed.
    pub(crate) cancelled: CancellationToken,
    /// Returns the first failure in words, for the peers.
    pub(crate) reason: Arc<dyn Fn() -> String + Send + Sync>,
    /// Ends the work because of the files here, with the reason for the user. Called before the peer is told: the reason
    /// of the peer would be the first one otherwise.
    pub(crate) give_up: Arc<dyn Fn(&str) + Send + Sync>,
}

/// The streams of a copy, each with the thread whose runtime it belongs to.
pub(crate) struct CopyStreams {
    /// The two-way stream for questions and answers.
    pub(crate) control: (CarryThread, Stream),
    pub(crate) lanes: Vec<(CarryThread, Stream)>,
}

/// The reason why an engine could not come to the end of its work. Failures of single files are no such reason.
#[derive(Debug, Clone)]
pub(crate) enum CopyError {
    Stream(Error),
    /// This process failed: a sentence for the user.
    Local(String),
    /// The work failed elsewhere ([`CopyContext::cancelled`]).
    Cancelled,
}

impl CopyError {
    /// Returns the failure that an error of a stream's read or write is.
    pub(crate) fn of_stream(error: &io::Error) -> Self {
        match Error::from_io(error) {
            Some(error) => Self::Stream(error.clone()),
            None => Self::Local(error.to_string()),
        }
    }
}
