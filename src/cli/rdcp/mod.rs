//! The program rdcp: copies files and directories from one host to another.
//!
//! | file | what it has |
//! |---|---|
//! | `args` | the command line |
//! | `transfer` | what a command line asks for: copies, or a pipeline for a standard stream |
//! | `copies` | runs the copies, one after the other, and prints how they went |
//! | `observer` | passes what the agents report on to the user |
//! | `listing` | what a copy writes to stdout while it runs: digests, and the paths of a dry run |
//! | `report` | the report of `--json` |
//! | `serve` | a server that accepts copies from many clients |

pub(super) mod args;
mod copies;
mod listing;
mod observer;
mod report;
mod serve;
mod transfer;

use std::process::ExitCode;

use clap::{CommandFactory, error::ErrorKind};

use self::transfer::Transfer;
use super::{
    args::{RdcpArgs, Secret, take_variable},
    shared::{
        exit::Exit,
        message::{Console, sentence},
        supervision,
    },
};
use crate::process;

/// Parses the command line, runs rdcp, and returns its exit code.
#[must_use]
pub fn main() -> ExitCode {
    process::prepare();
    let args = RdcpArgs::of_process();
    if let Some(process) = args.agent {
        return supervision::main(process);
    }
    let (variable, hidden) = take_variable();
    let console = Console::of_program("rdcp", args.messages());
    if let Err(error) = hidden {
        console.warn(&format!("cannot hide the key from ps: {error}"));
    }
    let exit = if args.serve.serve {
        serve::run(&args, &console)
    } else if let Some(name) = &args.serve.new_key {
        serve::new_key(name, &console)
    } else {
        copy(&args, variable.as_ref(), &console)
    };
    console.finish();
    exit.into()
}

/// Runs what the operands ask for.
fn copy(args: &RdcpArgs, variable: Option<&Secret>, console: &Console) -> Exit {
    let transfer = Transfer::of(args).unwrap_or_else(|error| {
        RdcpArgs::command()
            .error(ErrorKind::ValueValidation, error)
            .exit()
    });
    match transfer {
        Transfer::Copies(plans) => {
            let key = transfer::load(args, variable, &plans, console);
            match key {
                Ok(key) => copies::run(args, key.as_ref(), &plans, console),
                Err(error) => {
                    console.error(&sentence(&error));
                    Exit::Usage
                }
            }
        }
        Transfer::Pipe(plan) => transfer::run(args, &plan, console),
    }
}
