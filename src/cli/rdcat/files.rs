//! Prints files of other hosts, with one pipeline for each group of consecutive files of the same host.

use std::{
    io,
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Instant,
};

use anyhow::Context;
use futures::{
    FutureExt,
    future::{BoxFuture, Shared},
};
use tokio::runtime::Handle;

use crate::{
    cli::{
        args::RdcatArgs,
        shared::{
            exit::Exit,
            message::{Console, sentence},
            pipeline::Pipeline,
            progress::{RunProgress, is_on_terminal},
            report::Report,
            run,
            signals::{self, Caught},
            supervision::Supervision,
        },
    },
    ssh::{
        explain,
        outcome::{PipelineOutcome, RunFault, SIGPIPE_STATUS, Site},
        plan::{Plan, StageHost},
        protocol::FaultKind,
        supervisor::Summary,
    },
};

/// Writes the files of all plans to stdout, and prints how the run went.
pub(super) fn main(args: &RdcatArgs, plans: &[Plan], console: &Console) -> ExitCode {
    let started = Instant::now();
    let bytes = Arc::default();
    let exit = write(args, plans, console, &bytes).unwrap_or_else(|error| {
        console.error(&sentence(&error));
        Exit::Local
    });
    let report = Report {
        bytes: bytes.load(Ordering::Relaxed),
        seconds: started.elapsed().as_secs_f64(),
        exit,
        ..Report::default()
    };
    report.print_ending(console);
    exit.into()
}

/// The signal that ends the program. Every plan's run waits for a clone of this future.
type Signal = Shared<BoxFuture<'static, Option<Caught>>>;

fn write(
    args: &RdcatArgs,
    plans: &[Plan],
    console: &Console,
    bytes: &Arc<AtomicU64>,
) -> anyhow::Result<Exit> {
    let control = run::control_runtime()?;
    let signal = signals::watch(&control, console).context("cannot catch signals")?;
    let signal = signal.map(Result::ok).boxed().shared();
    let moved = Arc::new(AtomicU64::new(0));
    let counted = [Arc::clone(bytes), Arc::clone(&moved)];
    let terminal = is_on_terminal(&io::stdout(), false);
    let _progress = RunProgress::start(console, None, terminal, move || {
        counted.iter().map(|c| c.load(Ordering::Relaxed)).sum()
    });
    let mut exit = Exit::Ok;
    for plan in plans {
        let summary = run_one(args, plan, console, &control, &moved, &signal)?;
        bytes.fetch_add(moved.swap(0, Ordering::Relaxed), Ordering::Relaxed);
        let is_whole = tell(plan, &summary.outcome, console);
        let ended = exit_of(&summary.outcome);
        if ended != Exit::Ok {
            exit = ended;
        }
        // Bytes printed after a file that broke off would look like the rest of that file.
        if !is_whole || !matches!(ended, Exit::Ok | Exit::Local) {
            break;
        }
    }
    Ok(exit)
}

fn run_one(
    args: &RdcatArgs,
    plan: &Plan,
    console: &Console,
    control: &Handle,
    moved: &Arc<AtomicU64>,
    signal: &Signal,
) -> anyhow::Result<Summary> {
    let pipeline = Pipeline {
        plan,
        supervision: Supervision {
            hosts: &args.hosts,
            stream: &args.stream,
            console,
            control,
        },
        fsync: false,
        moved: Arc::clone(moved),
    };
    pipeline.run(signal.clone())
}

/// Prints what failed, and returns true if nothing did. Files that could not be opened have been named before.
fn tell(plan: &Plan, outcome: &PipelineOutcome, console: &Console) -> bool {
    if let Some(number) = outcome.signal {
        console.error(&format!("interrupted by {}", explain::signal(number)));
        return false;
    }
    let mut causes = outcome.ranked().into_iter();
    let Some(first) = causes.next() else {
        return true;
    };
    match (&plan.stages[0].place, is_of_file(first)) {
        (StageHost::Host { host, .. }, true) => console.error_on(host, &first.fault.text),
        _ => console.error(&first.fault.text),
    }
    for cause in causes {
        console.detail(&cause.fault.text);
    }
    false
}

/// Returns true if the file itself is the cause, and neither its connection nor this end.
fn is_of_file(cause: &RunFault) -> bool {
    let is_own = cause.fault.kind == FaultKind::Local && !cause.is_trouble;
    is_own && matches!(cause.site, Site::Agent(_))
}

fn exit_of(outcome: &PipelineOutcome) -> Exit {
    match outcome.exit() {
        _ if outcome.signal.is_some() => Exit::Signal(outcome.signal.unwrap_or(0)),
        0 if !outcome.reader_left => Exit::Ok,
        0 | 1 | SIGPIPE_STATUS if outcome.reader_left => Exit::ReaderClosed,
        1 => Exit::Local,
        _ => Exit::Connection,
    }
}
