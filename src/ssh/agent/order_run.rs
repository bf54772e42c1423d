//! Carries out one order, from its edges to its report: in a worker, or for a client of a server.

use std::{
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicU8, Ordering},
    },
    time::Duration,
};

use tokio::{
    io::AsyncRead,
    runtime::Handle,
    sync::mpsc,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use super::{
    cause::FirstCause,
    control::ControlReader,
    edges::{self, EdgeAcceptance, EdgeRequest, EdgeRoutes, PendingEdges},
    job::{Job, JobContext, OrderedEdges},
};
use crate::ssh::protocol::{AgentReport, FaultKind, Order, Payload, ToAgent};

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
    /// How long the other ends may take to connect the edges. `None` waits without a limit.
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
        let prepared = PendingEdges::prepare(&mut order, &self.acceptance, &Handle::current())
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
        let (sender, messages) = mpsc::unbounded_channel();
        let routes = Routes {
            edges: edges.routes(),
            go: go.clone(),
            application: sender,
        };
        let handling = handle_messages(context.clone(), inbox, routes, Arc::clone(&self.exit));
        let handling = tokio::spawn(handling);
        let working = async {
            let edges = self.within_limit(edges.establish(context)).await?;
            let edges = edges::wait_for(go, context, edges).await?;
            job.run(edges, messages).await;
            Some(())
        };
        tokio::select! {
            _ = working => {}
            () = overdue(&context.cause) => {}
        }
        handling.abort();
        // The task holds an outbox, and the writer ends only when every outbox has been dropped.
        let _ = handling.await;
        self.report(job.report())
    }

    /// Waits for the edges, and fails the work after the limit.
    async fn within_limit<T>(&self, connecting: impl Future<Output = T>) -> T {
        let Some(limit) = self.connect_limit else {
            return connecting.await;
        };
        let mut connecting = pin!(connecting);
        if let Ok(connected) = timeout(limit, connecting.as_mut()).await {
            return connected;
        }
        let text = format!("the other end did not connect within {limit:.0?}");
        self.context.fail(FaultKind::Edge, &text);
        // Ends at once, because the work has failed.
        connecting.await
    }

    fn report(&self, result: Option<Payload>) -> AgentReport {
        AgentReport {
            fault: self.context.cause.fault(),
            result,
        }
    }
}

async fn overdue(cause: &FirstCause) {
    cause.failed().await;
    sleep(END_LIMIT).await;
}

/// The receivers of the controller's messages: the edges, the start of the work, and the application.
struct Routes {
    edges: EdgeRoutes,
    go: CancellationToken,
    application: mpsc::UnboundedSender<Payload>,
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
            }) => {
                let request = EdgeRequest::Dial { addresses, port };
                routes.edges.send(edge, request);
            }
            Ok(ToAgent::Listen { edge }) => routes.edges.send(edge, EdgeRequest::Listen),
            Ok(ToAgent::Go) => routes.go.cancel(),
            Ok(ToAgent::Application(message)) => {
                // An application that has ended receives no more messages.
                let _ = routes.application.send(message);
            }
            Ok(ToAgent::Kill { reason }) => {
                context
                    .cause
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
