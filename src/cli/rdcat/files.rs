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
            pipeline::{Pipeline, exit_of, tell},
            progress::{RunProgress, is_on_terminal},
            report::Report,
            run,
            signals::{self, Caught},
            stdout,
            supervision::Supervision,
        },
    },
    ssh::{plan::Plan, supervisor::Summary},
};

/// Writes the files of all plans to stdout, and prints how the run went.
pub(super) fn main(args: &RdcatArgs, plans: &[Plan], console: &Console) -> ExitCode {
    if let Err(exit) = stdout::require(console) {
        return exit.into();
    }
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
            client_key: None,
            control,
        },
        fsync: false,
        moved: Arc::clone(moved),
    };
    pipeline.run(signal.clone())
}
