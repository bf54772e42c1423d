//! Runs the pipeline of a command line with `-`.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Instant,
};

use anyhow::Context;
use futures::FutureExt;

use super::args::RdcpArgs;
use crate::{
    cli::shared::{
        amounts::{amount, decimal, rate},
        exit::Exit,
        message::{Console, sentence},
        pipeline::{Pipeline, exit_of, tell},
        progress::{RunProgress, is_on_terminal},
        run, signals,
        supervision::Supervision,
    },
    ssh::plan::Plan,
};

/// Runs the pipeline, and prints how it went. Returns how it ended.
pub(super) fn run(args: &RdcpArgs, plan: &Plan, console: &Console) -> Exit {
    run_plan(args, plan, console).unwrap_or_else(|error| {
        console.error(&sentence(&error));
        Exit::from(&error)
    })
}

fn run_plan(args: &RdcpArgs, plan: &Plan, console: &Console) -> anyhow::Result<Exit> {
    let started = Instant::now();
    let control = run::control_runtime()?;
    let signal = signals::watch(&control, console).context("cannot catch signals")?;
    let moved = Arc::new(AtomicU64::new(0));
    let pipeline = Pipeline {
        plan,
        supervision: Supervision {
            hosts: &args.hosts,
            stream: &args.stream,
            console,
            control: &control,
        },
        fsync: args.fsync,
        moved: Arc::clone(&moved),
    };
    let terminal = if plan.has_input {
        is_on_terminal(&io::stdin(), false)
    } else {
        is_on_terminal(&io::stdout(), false)
    };
    let count = Arc::clone(&moved);
    let progress = RunProgress::start(console, None, terminal, move || {
        count.load(Ordering::Relaxed)
    });
    let summary = pipeline.run(signal.map(Result::ok))?;
    drop(progress);
    tell(plan, &summary.outcome, console);
    let exit = exit_of(&summary.outcome);
    if exit == Exit::Ok {
        let (bytes, seconds) = (
            moved.load(Ordering::Relaxed),
            started.elapsed().as_secs_f64(),
        );
        console.note(&format!(
            "{} in {seconds:.1} s ({}/s)",
            amount(bytes),
            decimal(rate(bytes, seconds))
        ));
    }
    Ok(exit)
}
