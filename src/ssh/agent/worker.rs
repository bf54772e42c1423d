//! The worker: carries out one order of the controller, from the greeting to the report.

mod edges;
mod signals;

use std::{
    fs::File,
    io::{self, Write},
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicU8, Ordering},
    },
    time::Duration,
};

use rustix::process::{
    Signal, getpgid, getpgrp, getpid, getppid, set_child_subreaper, set_parent_process_death_signal,
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    runtime::{Builder, Handle},
    sync::mpsc,
    time::sleep,
};
use tokio_util::sync::CancellationToken;

use self::edges::{EdgeRoutes, PendingEdges};
use super::{
    addresses,
    cause::FirstCause,
    control::{self, ControlReader},
    edge::EdgeRequest,
    job::{Applications, Job, JobContext},
    stage::StageJob,
};
use crate::{
    fd::{Sink, Source},
    ssh::protocol::{AgentReport, FaultKind, FromAgent, Order, Payload, ToAgent, Work},
};

/// How long work that has failed may take to end. Then the worker reports and exits, and the guard kills the
/// processes that are left, so that all of it takes less than 5 s.
const END_LIMIT: Duration = Duration::from_secs(4);

/// Runs the worker: `rdpipe --agent=worker`, a child of the guard. `A` has the applications beside the stages.
pub(crate) fn main<A: Applications>() -> ExitCode {
    ExitCode::from(run::<A>())
}

/// Runs the worker, and returns its exit status.
pub(super) fn run<A: Applications>() -> u8 {
    work::<A>().unwrap_or_else(|error| {
        // There is no session to report in. The controller shows the lines of stderr.
        let _ = writeln!(io::stderr(), "rdpipe: {error}");
        1
    })
}

fn work<A: Applications>() -> Result<u8, control::ControllerError> {
    set_child_subreaper(Some(getpid())).map_err(io::Error::from)?;
    die_with_parent()?;
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let exit = runtime.block_on(async {
        let (input, output) = (Source::stdin()?, Sink::stdout()?);
        let cause = Arc::default();
        let exit = signals::watch(&cause)?;
        hide_stdio()?;
        converse::<A, _, _>(input, output, cause, exit).await
    });
    // A thread that hangs in a file must not keep the process from exiting.
    runtime.shutdown_background();
    exit
}

/// Makes the kernel send SIGTERM to this process when the guard dies: without a guard, only the worker itself can
/// clean up.
fn die_with_parent() -> io::Result<()> {
    set_parent_process_death_signal(Some(Signal::TERM))?;
    // If the guard died before the call, the parent is now another process, in another process group.
    let is_child = getppid().is_some_and(|parent| getpgid(Some(parent)) == Ok(getpgrp()));
    if is_child {
        Ok(())
    } else {
        Err(io::Error::other("the guard of the agent is gone"))
    }
}

/// Points stdin and stdout at `/dev/null`. The session uses other descriptors, so a stray print cannot write into it.
fn hide_stdio() -> io::Result<()> {
    let null = File::options().read(true).write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    Ok(())
}

/// The exit status of the worker. It is 0 until a task stores another one.
type SharedExitCode = Arc<AtomicU8>;

async fn converse<A, R, W>(
    input: R,
    output: W,
    cause: Arc<FirstCause>,
    exit: SharedExitCode,
) -> Result<u8, control::ControllerError>
where
    A: Applications,
    R: AsyncRead + Unpin + Send + 'static,
    W: AsyncWrite + Unpin + Send + 'static,
{
    let hello = addresses::hello();
    let opening = control::open(input, output, hello, control::ORDER_LIMIT);
    let (order, inbox, outbox, writer) = tokio::select! {
        opened = opening => opened?,
        () = cause.failed() => return Ok(exit.load(Ordering::Relaxed)),
    };
    let context = JobContext {
        name: order.name.clone(),
        cause,
        outbox,
    };
    let report = match &order.work {
        Work::Stage(_) => serve::<StageJob, _>(&context, order, inbox, &exit).await,
        Work::Copy(_) => serve::<A::Copy, _>(&context, order, inbox, &exit).await,
    };
    context.outbox.send(FromAgent::Report(report));
    drop(context);
    writer.finish().await;
    Ok(exit.load(Ordering::Relaxed))
}

/// Carries out the order, and handles the controller's messages at the same time. Returns the report.
pub(super) async fn serve<J, R>(
    context: &JobContext,
    mut order: Order,
    inbox: ControlReader<R>,
    exit: &SharedExitCode,
) -> AgentReport
where
    J: Job,
    R: AsyncRead + Unpin + Send + 'static,
{
    let (edges, mut job) = match prepare::<J>(context, &mut order) {
        Ok(prepared) => prepared,
        Err(text) => {
            context.fail_local(&text);
            return report(context, None);
        }
    };
    let go = CancellationToken::new();
    let (sender, messages) = mpsc::unbounded_channel();
    let routes = Routes {
        edges: edges.routes(),
        go: go.clone(),
        application: sender,
    };
    let handling = handle_messages(context.clone(), inbox, routes, Arc::clone(exit));
    let handling = tokio::spawn(handling);
    let working = async {
        let edges = edges.establish(context).await?;
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
    report(context, job.report())
}

fn prepare<J: Job>(context: &JobContext, order: &mut Order) -> Result<(PendingEdges, J), String> {
    let edges = PendingEdges::prepare(order, &Handle::current())?;
    let job = J::prepare(context, order.work.payload(), &edges.ordered())?;
    Ok((edges, job))
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

fn report(context: &JobContext, result: Option<Payload>) -> AgentReport {
    AgentReport {
        fault: context.cause.fault(),
        result,
    }
}
