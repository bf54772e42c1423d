//! The program rdcp: copies files and directories from one host to another.

pub(super) mod args;
mod copies;
mod listing;
mod names;
mod observer;
mod pipe;
mod report;
#[allow(dead_code, reason = "the server that uses the parts follows")]
mod serve;
mod totals;
mod transfer;

use std::process::ExitCode;

use clap::{CommandFactory, error::ErrorKind};

use self::transfer::Transfer;
use super::{
    args::RdcpArgs,
    shared::{agent, message::Console},
};
use crate::process;

/// Parses the command line, runs rdcp, and returns its exit code.
#[must_use]
pub fn main() -> ExitCode {
    process::prepare();
    let args = RdcpArgs::of_process();
    if let Some(process) = args.agent {
        return agent::main(process);
    }
    let transfer = Transfer::of(&args).unwrap_or_else(|error| {
        RdcpArgs::command()
            .error(ErrorKind::ValueValidation, error)
            .exit()
    });
    let console = Console::new("rdcp", args.messages());
    let exit = match transfer {
        Transfer::Copies(plans) => copies::run(&args, &plans, &console),
        Transfer::Pipe(plan) => pipe::run(&args, &plan, &console),
    };
    console.finish();
    exit.into()
}
