//! Carries out the order of one client of a server, over a session that the client has opened.

use std::{future::poll_fn, pin::pin, sync::Arc, task::Poll, time::Duration};

use tokio::{io::AsyncRead, time::timeout};
use tokio_util::task::TaskTracker;

use super::{
    ControlReader, ORDER_LIMIT,
    edges::EdgeAcceptance,
    hello,
    job::{FirstFault, Job, JobContext, OrderRun, OrderedEdges},
    open,
    outbox::Outbox,
};
use crate::ssh::{
    protocol::{AgentHello, AgentReport, FaultKind, FromAgent, Order, Payload, ToAgent},
    sealed::SealedSession,
};

/// How long a client may take to connect its edges, and then to start its copy. Its other end may be on a host where a
/// login takes its time.
const CONNECT_LIMIT: Duration = Duration::from_secs(60);

/// How long a client may read nothing while messages wait for it. rdcp always reads: it keeps or leaves out what its
/// user does not read.
const READ_LIMIT: Duration = Duration::from_secs(60);

/// How long the threads of a job may take to end after it has reported, before the log names its client. They end at
/// once, unless one hangs in a system call.
const THREADS_LIMIT: Duration = Duration::from_secs(2);

const HANGING: &str = "a thread of this copy hangs in the file system; its place and the names that it writes stay taken until it ends";

/// A session with a client, before its order.
pub(crate) struct ClientSession {
    /// Accepts the edges of the order.
    pub(crate) edges: EdgeAcceptance,
    pub(crate) end: SessionKill,
    /// Receives a line for the log if the job has ended, and a thread of it has not.
    pub(crate) warn: Box<dyn Fn(&str) + Send + Sync>,
    /// The most streams for data that an order may have; `None` is any number.
    pub(crate) most_streams: Option<u16>,
}

/// Ends sessions early, for a reason that their clients receive.
#[derive(Clone, Default)]
pub(crate) struct SessionKill(Arc<FirstFault>);

impl SessionKill {
    pub(crate) fn end(&self, reason: &str) {
        self.0.fail(FaultKind::Edge, reason, reason);
    }
}

impl ClientSession {
    /// Receives the client's order, waits for a `place`, carries the order out, and reports to the client. `admit`
    /// checks the order, and `prepare` makes its job. Returns the report when no thread of the job is left: the place
    /// is taken until then.
    /// Fails if the session ends before its order is carried out.
    /// Not cancel safe: dropping the future may leave threads of the job running.
    pub(crate) async fn serve<J: Job, P>(
        self,
        SealedSession { input, output }: SealedSession,
        place: impl Future<Output = Result<P, String>>,
        admit: impl FnOnce(&Order) -> Result<(), String>,
        prepare: impl FnOnce(&JobContext, &Payload, &OrderedEdges) -> Result<J, String>,
    ) -> Result<AgentReport, String> {
        let SessionKill(first_fault) = self.end;
        let hello = AgentHello {
            most_streams: self.most_streams,
            ..hello()
        };
        let opening = open(input, output, hello, ORDER_LIMIT, Some(READ_LIMIT));
        let (order, mut inbox, outbox, writer) = tokio::select! {
            opened = opening => opened.map_err(|error| error.to_string())?,
            () = first_fault.failed() => return Err(first_fault.reason()),
        };
        let threads = TaskTracker::new();
        let context = JobContext {
            name: order.name.clone(),
            first_fault,
            outbox,
            threads: threads.token(),
        };
        let mut taken = None;
        let report = match admit(&order) {
            Err(why) => {
                context.fail_local(&why);
                refusal(&context)
            }
            Ok(()) => match turn(&context, &mut inbox, place).await {
                None => refusal(&context),
                Some(place) => {
                    let run = OrderRun {
                        context: context.clone(),
                        acceptance: self.edges,
                        connect_limit: Some(CONNECT_LIMIT),
                        exit: Arc::default(),
                    };
                    taken = Some(place);
                    run.carry_out(order, inbox, prepare).await
                }
            },
        };
        context.outbox.send(FromAgent::Report(report.clone()));
        drop(context);
        writer.finish().await;
        threads.close();
        if timeout(THREADS_LIMIT, threads.wait()).await.is_err() {
            (self.warn)(HANGING);
            threads.wait().await;
        }
        drop(taken);
        Ok(report)
    }
}

fn refusal(context: &JobContext) -> AgentReport {
    AgentReport {
        fault: context.first_fault.fault(),
        result: None,
    }
}

/// Waits for a place, and tells the client that it waits. Returns none if the session ends first.
async fn turn<R: AsyncRead + Unpin, P>(
    context: &JobContext,
    inbox: &mut ControlReader<R>,
    place: impl Future<Output = Result<P, String>>,
) -> Option<P> {
    let placed = |place: Result<P, String>| match place {
        Ok(place) => Some(place),
        Err(why) => {
            context.fail(FaultKind::Edge, &why);
            None
        }
    };
    let mut place = pin!(place);
    if let Poll::Ready(place) = poll_fn(|cx| Poll::Ready(place.as_mut().poll(cx))).await {
        return placed(place);
    }
    tell_wait(&context.outbox);
    loop {
        tokio::select! {
            place = place.as_mut() => return placed(place),
            message = inbox.next() => match message {
                Ok(ToAgent::Kill { reason }) => {
                    context.first_fault.fail(FaultKind::Ordered, reason.clone(), reason);
                    return None;
                }
                Ok(_) => {}
                Err(error) => {
                    context.fail(FaultKind::Ordered, &error.to_string());
                    return None;
                }
            },
            () = context.first_fault.failed() => return None,
        }
    }
}

fn tell_wait(outbox: &Outbox) {
    let text = "the server serves as many clients as it may; this copy waits for its turn";
    outbox.send(FromAgent::Warning(text.to_owned()));
}
