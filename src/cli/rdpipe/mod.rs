//! The program rdpipe: runs commands on several hosts, and sends the data from one host to the next.

pub(super) mod args;
mod ending;
mod table;

use std::{
    io::{self, IsTerminal},
    process::ExitCode,
    time::Instant,
};

use clap::{CommandFactory, Parser, error::ErrorKind};

use super::{
    args::{RdpipeArgs, or_exit},
    shared::{message::Console, pipeline::run_alone, progress::is_on_terminal, supervision},
};
use crate::{
    process::{self, is_stdin_closed},
    ssh::plan::{Plan, PlanInput},
};

/// Parses the command line, runs the pipeline, and prints how the run went. Returns the exit code.
#[must_use]
pub fn main() -> ExitCode {
    process::prepare();
    let args = or_exit("rdpipe", RdpipeArgs::try_parse());
    if let Some(process) = args.agent {
        return supervision::main(process);
    }
    let plan = match Plan::parse(&args.segments, input()) {
        Ok(plan) => plan,
        Err(error) => RdpipeArgs::command()
            .error(ErrorKind::ValueValidation, error)
            .exit(),
    };
    let console = Console::of_program("rdpipe", args.messages());
    if args.dry_run {
        let exit = ending::print(&plan, &args, &console);
        console.finish();
        return exit.into();
    }
    let code = run(&args, &plan, &console).unwrap_or_else(|error| {
        console.error(&crate::cli::shared::message::sentence(&error));
        FAILED_HERE
    });
    console.finish();
    ExitCode::from(code)
}

/// Returns what the first stage reads. rdpipe does not read a terminal: a pipeline in the background would be stopped
/// by reading it.
fn input() -> PlanInput {
    if is_stdin_closed() {
        PlanInput::Closed
    } else if io::stdin().is_terminal() {
        PlanInput::Nothing
    } else {
        PlanInput::Standard
    }
}

/// The exit code after a failure of rdpipe's own: that of [`Exit::Local`](crate::cli::shared::exit::Exit::Local).
const FAILED_HERE: u8 = 1;

fn run(args: &RdpipeArgs, plan: &Plan, console: &Console) -> anyhow::Result<u8> {
    let started = Instant::now();
    let options = (&args.hosts, &args.stream);
    let on_terminal = is_on_terminal(&io::stdout(), false);
    let (summary, _) = run_alone(plan, options, args.fsync, on_terminal, console)?;
    Ok(ending::tell(
        args,
        plan,
        &summary,
        started.elapsed(),
        console,
    ))
}
