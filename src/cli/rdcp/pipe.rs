//! Runs the pipeline of a command line with `-`.

use std::{io, time::Instant};

use super::args::RdcpArgs;
use crate::{
    cli::shared::{
        amounts::{amount, decimal, rate},
        exit::Exit,
        message::{Console, sentence},
        pipeline::{exit_of, run_alone, tell},
        progress::is_on_terminal,
        stdout,
    },
    ssh::plan::Plan,
};

/// Runs the pipeline, and prints how it went. Returns how it ended.
pub(super) fn run(args: &RdcpArgs, plan: &Plan, console: &Console) -> Exit {
    if !plan.has_input {
        if let Err(exit) = stdout::require(console) {
            return exit;
        }
    }
    run_plan(args, plan, console).unwrap_or_else(|error| {
        console.error(&sentence(&error));
        Exit::from(&error)
    })
}

fn run_plan(args: &RdcpArgs, plan: &Plan, console: &Console) -> anyhow::Result<Exit> {
    let started = Instant::now();
    let options = (&args.hosts, &args.stream);
    let on_terminal = if plan.has_input {
        is_on_terminal(&io::stdin(), false)
    } else {
        is_on_terminal(&io::stdout(), false)
    };
    let (summary, bytes) = run_alone(plan, options, args.fsync, on_terminal, console)?;
    tell(plan, &summary.outcome, console);
    let exit = exit_of(&summary.outcome);
    if exit == Exit::Ok {
        let seconds = started.elapsed().as_secs_f64();
        console.note(&format!(
            "{} in {seconds:.1} s ({}/s)",
            amount(bytes),
            decimal(rate(bytes, seconds))
        ));
    }
    Ok(exit)
}
