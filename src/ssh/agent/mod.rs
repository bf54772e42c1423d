//! The agent: two processes on each host, a worker that carries out one order and a guard above it.
//!
//! `rdpipe --agent` is the *guard* ([`guard`]). It starts the *worker*, waits until the worker has exited or died, and
//! kills every process that the worker left behind. The worker exchanges messages with the controller over stdin and
//! stdout ([`control`], [`outbox`]), connects the order's edges ([`edges`]), runs the application that the order is for ([`job`]),
//! and reports. [`served`] does the same for a client of a server. [`stage`] is the application of rdpipe and rdcat;
//! the others come from the layers above ([`job::Applications`]).
//!
//! An agent may be a [`relay`] instead, for an edge of other agents that goes through ssh.
//!
//! The worker has one main thread for all control, and one thread for each edge, which moves the bytes of the edge. So
//! a relay uses two processors, and a disk that stalls delays only its own edge.

mod control;
mod descendants;
pub(crate) mod edges;
mod guard;
pub(crate) mod job;
pub(crate) mod outbox;
pub(crate) mod relay;
pub(crate) mod served;
mod stage;
#[cfg(test)]
mod tests;

use std::{
    io::{self, Write},
    process::ExitCode,
    sync::{Arc, atomic::Ordering},
};

use rustix::process::{
    Signal, getpid, getppid, set_child_subreaper, set_parent_process_death_signal,
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    signal::unix::{SignalKind, signal},
};
use tokio_util::task::TaskTracker;

use self::{
    edges::EdgeAcceptance,
    job::{Applications, FirstFault, Job, JobContext, OrderRun, SharedExitCode},
    stage::StageJob,
};
use super::{
    explain,
    protocol::{FaultKind, FromAgent, Work},
};
use crate::{
    fd::{Sink, Source},
    process::is_signal_ignored,
    threads,
};

pub(crate) use control::hello;
pub(crate) use guard::main as guard_main;
pub(crate) use stage::files::resolve;

#[cfg(any(test, fuzzing))]
pub use {control::fuzz as fuzz_controller, descendants::fuzz as fuzz_proc_stat};

/// Runs the worker: `rdpipe --agent=worker`, a child of the guard. `A` has the applications beside the stages.
pub(crate) fn worker_main<A: Applications>() -> ExitCode {
    ExitCode::from(run::<A>())
}

/// Runs the worker, and returns its exit status.
fn run<A: Applications>() -> u8 {
    work::<A>().unwrap_or_else(|error| {
        // There is no session to report in. The controller shows the lines of stderr.
        let _ = writeln!(io::stderr(), "rdpipe: {error}");
        1
    })
}

fn work<A: Applications>() -> Result<u8, control::ControllerError> {
    set_child_subreaper(Some(getpid())).map_err(io::Error::from)?;
    die_with_parent()?;
    let runtime = threads::runtime()?;
    let exit = runtime.block_on(async {
        let (input, output) = (Source::stdin()?, [Sink::stdout()?, Sink::stdout()?]);
        let first_fault = Arc::default();
        let exit = watch(&first_fault)?;
        hide_stdio()?;
        exchange_messages::<A, _, _>(input, output, first_fault, exit).await
    });
    // A thread that hangs in a file must not keep the process from exiting.
    runtime.shutdown_background();
    exit
}

/// Makes the kernel send SIGTERM to this process when the guard dies: without a guard, only the worker itself can
/// clean up.
fn die_with_parent() -> io::Result<()> {
    set_parent_process_death_signal(Some(Signal::TERM))?;
    // If the guard died before the call, the parent is now another process.
    let guard = guard::guard_process();
    if guard.is_some() && getppid() != guard {
        return Err(io::Error::other("the guard of the agent is gone"));
    }
    Ok(())
}

/// Points stdin and stdout at `/dev/null`. The session uses other descriptors, so a stray print cannot write into it.
fn hide_stdio() -> io::Result<()> {
    let null = guard::null()?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    Ok(())
}

async fn exchange_messages<A, R, W>(
    input: R,
    [output, relay_output]: [W; 2],
    first_fault: Arc<FirstFault>,
    exit: SharedExitCode,
) -> Result<u8, control::ControllerError>
where
    A: Applications,
    R: AsyncRead + Unpin + Send + 'static,
    W: AsyncWrite + Unpin + Send + 'static,
{
    let hello = control::hello();
    let opening = control::open(input, output, hello, control::ORDER_LIMIT, None);
    let (order, inbox, outbox, writer) = tokio::select! {
        opened = opening => opened?,
        () = first_fault.failed() => return Ok(exit.load(Ordering::Relaxed)),
    };
    if let Work::Relay(order) = &order.work {
        let end = (outbox, writer);
        let carrying = relay::carry::<A, _, _>(order, inbox, end, relay_output);
        return tokio::select! {
            carried = carrying => carried.map(|()| 0),
            () = first_fault.failed() => Ok(exit.load(Ordering::Relaxed)),
        };
    }
    let context = JobContext {
        name: order.name.clone(),
        first_fault,
        outbox,
        // The process ends with its threads.
        threads: TaskTracker::new().token(),
    };
    let run = OrderRun {
        context: context.clone(),
        acceptance: EdgeAcceptance::OwnListeners,
        connect_limit: None,
        exit: Arc::clone(&exit),
    };
    let report = match &order.work {
        Work::Stage(_) => run.carry_out(order, inbox, StageJob::prepare).await,
        Work::Copy(_) => run.carry_out(order, inbox, A::Copy::prepare).await,
        Work::Measure(_) => run.carry_out(order, inbox, A::Measure::prepare).await,
        // A relay has been carried out above.
        Work::Forward(_) | Work::Relay(_) => run.carry_out(order, inbox, A::Forward::prepare).await,
    };
    drop(run);
    context.outbox.send(FromAgent::Report(report));
    drop(context);
    writer.finish().await;
    Ok(exit.load(Ordering::Relaxed))
}

/// The signals that end the worker: SIGINT (^C), SIGTERM (kill, or the death of the guard) and SIGHUP (a closed
/// terminal).
const SIGNALS: [u8; 3] = [2, SIGTERM, 1];

/// The signal that the kernel sends when the guard dies: it ends the worker even if its parent ignored it.
const SIGTERM: u8 = 15;

/// Starts tasks that fail `first_fault` at the first signal. Returns the exit status, which such a signal sets.
///
/// SIGINT and SIGHUP stay ignored if they were ignored at the start, for the worker and for its command: `nohup` and a
/// shell's `&` ignore them, and a handler would give the command their default.
fn watch(first_fault: &Arc<FirstFault>) -> io::Result<SharedExitCode> {
    let exit = SharedExitCode::default();
    for number in SIGNALS {
        if number != SIGTERM && is_signal_ignored(number) {
            continue;
        }
        let mut signals = signal(SignalKind::from_raw(number.into()))?;
        let (first_fault, exit) = (Arc::clone(first_fault), Arc::clone(&exit));
        tokio::spawn(async move {
            if signals.recv().await.is_some() {
                exit.store(128 + number, Ordering::Relaxed);
                let text = format!("the agent was ended by {}", explain::signal(number));
                first_fault.fail(FaultKind::Local, text.clone(), text);
            }
        });
    }
    Ok(exit)
}
