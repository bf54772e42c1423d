//! The agent proper: one stage, from the controller's order to the report.

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
    time::{Duration, Instant},
};

use rustix::process::{
    Signal, getpgid, getpgrp, getpid, getppid, set_child_subreaper, set_parent_process_death_signal,
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    runtime::{Builder, Handle},
    time::{interval, sleep},
};
use tokio_util::sync::CancellationToken;

use self::edges::{Edges, Routes};
use super::{
    addresses,
    cause::Cause,
    control::{self, Inbox, Outbox},
    meter::Meter,
    stage::Stage,
};
use crate::{
    fd::{Sink, Source},
    ssh::protocol::{FaultKind, FromAgent, Order, Report, Status, ToAgent},
};

/// How long a stage that has failed may take to end. The guard then kills what is left, and all of it
/// together stays below 5 s.
const END_LIMIT: Duration = Duration::from_secs(4);

/// How often the controller is told how far the stage is.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(500);

/// Runs the worker: `rdpipe --agent=worker`, a child of the guard.
pub(crate) fn main() -> ExitCode {
    ExitCode::from(run())
}

/// The same, and how to exit.
pub(super) fn run() -> u8 {
    work().unwrap_or_else(|error| {
        // Nothing else hears of this: the controller shows what comes on stderr.
        let _ = writeln!(io::stderr(), "rdpipe: {error}");
        1
    })
}

fn work() -> Result<u8, control::ControlError> {
    set_child_subreaper(Some(getpid())).map_err(io::Error::from)?;
    die_with_parent()?;
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let exit = runtime.block_on(async {
        let (input, output) = (Source::stdin()?, Sink::stdout()?);
        let cause = Arc::default();
        let exit = signals::watch(&cause)?;
        hide_stdio()?;
        converse(input, output, cause, exit).await
    });
    // A thread that hangs in a file must not keep the process.
    runtime.shutdown_background();
    exit
}

/// Has the kernel send SIGTERM when the guard is gone: nobody would clean up after this process then.
fn die_with_parent() -> io::Result<()> {
    set_parent_process_death_signal(Some(Signal::TERM))?;
    // If it went before that, somebody else is the parent now, who is in another process group.
    let is_child = getppid().is_some_and(|parent| getpgid(Some(parent)) == Ok(getpgrp()));
    if is_child {
        Ok(())
    } else {
        Err(io::Error::other("the guard of the agent is gone"))
    }
}

/// The protocol has descriptors of its own from here on: nobody can write into it by accident.
fn hide_stdio() -> io::Result<()> {
    let null = File::options().read(true).write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    Ok(())
}

/// How the process is to exit, where it is not with 0.
type Exit = Arc<AtomicU8>;

async fn converse<R, W>(
    input: R,
    output: W,
    cause: Arc<Cause>,
    exit: Exit,
) -> Result<u8, control::ControlError>
where
    R: AsyncRead + Unpin + Send + 'static,
    W: AsyncWrite + Unpin + Send + 'static,
{
    let hello = addresses::hello();
    let opening = control::open(input, output, hello);
    let (order, inbox, outbox, writer) = tokio::select! {
        opened = opening => opened?,
        () = cause.failed() => return Ok(exit.load(Ordering::Relaxed)),
    };
    let stage = Stage {
        name: format!("stage {}", order.name),
        cause,
        outbox,
        proceed: CancellationToken::new(),
        fsync: order.fsync,
    };
    let report = serve(&stage, order, inbox, &exit).await;
    stage.outbox.send(FromAgent::Report(report));
    drop(stage);
    writer.finish().await;
    Ok(exit.load(Ordering::Relaxed))
}

/// Carries out the order, and obeys the controller meanwhile.
async fn serve<R>(stage: &Stage, mut order: Order, inbox: Inbox<R>, exit: &Exit) -> Report
where
    R: AsyncRead + Unpin + Send + 'static,
{
    let edges = match Edges::prepare(&mut order, &Handle::current()) {
        Ok(edges) => edges,
        Err(text) => {
            stage.cause.fail(
                FaultKind::Own,
                text.clone(),
                format!("{}: {text}", stage.name),
            );
            return report(stage, &Meters::default(), None, Duration::ZERO);
        }
    };
    let go = CancellationToken::new();
    let heeding = heed(
        stage.clone(),
        inbox,
        edges.routes(),
        go.clone(),
        Arc::clone(exit),
    );
    let heeding = tokio::spawn(heeding);
    let meters = edges.meters();
    let mut started = None;
    let working = async {
        let ends = edges.establish(stage).await?;
        let ends = edges::wait_for(go, stage, ends).await?;
        started = Some(Instant::now());
        let progress = tokio::spawn(show_progress(stage.outbox.clone(), meters.clone()));
        let status = stage.run(order.work, ends).await;
        progress.abort();
        status
    };
    let status = tokio::select! {
        status = working => status,
        () = overdue(&stage.cause) => None,
    };
    heeding.abort();
    // Its outbox goes with it, which the writer waits for.
    let _ = heeding.await;
    let elapsed = started.map_or(Duration::ZERO, |started| started.elapsed());
    report(stage, &meters, status, elapsed)
}

async fn overdue(cause: &Cause) {
    cause.failed().await;
    sleep(END_LIMIT).await;
}

/// Does what the controller says, until it is gone.
async fn heed<R: AsyncRead + Unpin>(
    stage: Stage,
    mut inbox: Inbox<R>,
    routes: Routes,
    go: CancellationToken,
    exit: Exit,
) {
    loop {
        match inbox.next().await {
            Ok(ToAgent::Dial {
                end,
                addresses,
                port,
            }) => routes.dial(end, addresses, port),
            Ok(ToAgent::Listen { end }) => routes.listen(end),
            Ok(ToAgent::Go) => go.cancel(),
            Ok(ToAgent::Proceed) => stage.proceed.cancel(),
            Ok(ToAgent::Kill { reason }) => {
                stage.cause.fail(FaultKind::Ordered, reason.clone(), reason);
            }
            Ok(ToAgent::Ping | ToAgent::Order(_)) => {}
            Err(error) => {
                exit.store(1, Ordering::Relaxed);
                let text = error.to_string();
                let reason = format!("{}: {text}", stage.name);
                return stage.cause.fail(FaultKind::Ordered, text, reason);
            }
        }
    }
}

/// The counts of both edges.
#[derive(Clone, Default)]
struct Meters {
    input: Arc<Meter>,
    output: Arc<Meter>,
}

async fn show_progress(outbox: Outbox, meters: Meters) {
    let mut ticks = interval(PROGRESS_INTERVAL);
    let mut shown = (0, 0);
    loop {
        ticks.tick().await;
        let now = (meters.input.bytes(), meters.output.bytes());
        if now != shown {
            shown = now;
            let (bytes_in, bytes_out) = now;
            outbox.send(FromAgent::Progress {
                bytes_in,
                bytes_out,
            });
        }
    }
}

fn report(stage: &Stage, meters: &Meters, status: Option<Status>, elapsed: Duration) -> Report {
    let micros = |duration: Duration| u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
    Report {
        status,
        fault: stage.cause.fault(),
        output_stopped: stage.cause.output_stopped.is_set(),
        input_stopped: stage.cause.input_stopped.is_set(),
        bytes_in: meters.input.bytes(),
        bytes_out: meters.output.bytes(),
        elapsed_us: micros(elapsed),
        blocked_on_input_us: micros(meters.input.blocked()),
        blocked_on_output_us: micros(meters.output.blocked()),
    }
}
