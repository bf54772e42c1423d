//! The program rdpipe: runs commands on several hosts, and sends the data from one host to the next.

pub(super) mod args;
mod dry_run;
mod ending;
mod table;

use std::{
    io::{self, IsTerminal},
    process::ExitCode,
    time::Instant,
};

use clap::{CommandFactory, Parser, error::ErrorKind};

use super::{
    args::RdpipeArgs,
    shared::{agent, message::Console, pipeline::run_alone, progress::is_on_terminal},
};
use crate::{process, ssh::plan::Plan};

/// Parses the command line, runs the pipeline, and prints how the run went. Returns the exit code.
#[must_use]
pub fn main() -> ExitCode {
    process::prepare();
    let args = RdpipeArgs::parse();
    if let Some(process) = args.agent {
        return agent::main(process);
    }
    // rdpipe does not read a terminal: a pipeline in the background would be stopped by reading it.
    let plan = match Plan::parse(&args.segments, !io::stdin().is_terminal()) {
        Ok(plan) => plan,
        Err(error) => RdpipeArgs::command()
            .error(ErrorKind::ValueValidation, error)
            .exit(),
    };
    if args.dry_run {
        return dry_run::print(&plan, &args);
    }
    let console = Console::new("rdpipe", args.messages());
    let code = run(&args, &plan, &console).unwrap_or_else(|error| {
        console.error(&crate::cli::shared::message::sentence(&error));
        FAILED_HERE
    });
    console.finish();
    ExitCode::from(code)
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
