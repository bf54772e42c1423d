//! The program rdperf: measures what hosts can do over their network.
//!
//! | module | holds |
//! |---|---|
//! | `args`, `places`, `measurands`, `sweep` | what the command line asks for |
//! | `hosts`, `coordinator` | agents on the hosts, and the tasks that they carry out |
//! | `checks`, `measuring`, `pingpong` | the parts of a run, and what they share |
//! | `run`, `listen`, `compare` | the forms of the program: with hosts, with a ticket, and with two reports |
//! | `pictures` | the files of `--plot` and `--report`, and the form of the program that draws a saved report |
//! | `report` | the report for people and for programs |

pub(super) mod args;
mod checks;
mod compare;
mod coordinator;
mod hosts;
mod listen;
mod measurands;
mod measuring;
mod pictures;
mod pingpong;
mod places;
mod report;
mod run;
mod sweep;

use std::{fmt::Display, process::ExitCode};

use clap::{CommandFactory, Parser, error::ErrorKind};

use self::args::Request;
use super::{
    args::{RdperfArgs, TicketSource, or_exit},
    shared::{
        exit::Exit,
        message::{Console, sentence},
        supervision,
    },
};
use crate::process;

/// The environment variable that holds a ticket.
const TICKET_VARIABLE: &str = "RDPERF_TICKET";

/// Parses the command line, runs rdperf, and returns its exit code.
#[must_use]
pub fn main() -> ExitCode {
    process::prepare();
    let mut args = or_exit("rdperf", RdperfArgs::try_parse());
    if let Some(process) = args.agent {
        return supervision::main(process);
    }
    if let Err(error) = args.choose_transport() {
        usage(error);
    }
    let file = args.ticket_file.take();
    let (ticket, hidden) =
        TicketSource::take(&mut args.operands, file, args.listen, TICKET_VARIABLE);
    let console = Console::of_program("rdperf", args.messages());
    if let Err(error) = hidden {
        console.warn(&format!("cannot hide the ticket from ps: {error}"));
        // A usage error exits at once.
        console.flush();
    }
    let exit = dispatch(&args, ticket, &console);
    console.finish();
    exit.into()
}

fn dispatch(args: &RdperfArgs, ticket: TicketSource, console: &Console) -> Exit {
    match ticket {
        TicketSource::Among => {
            usage("a ticket cannot be combined with hosts or other tickets; give the ticket alone")
        }
        TicketSource::None if args.listen => listen::run(args, console),
        TicketSource::None => match args.request() {
            Ok(Request::Diff(old, new)) => compare::run(&old, &new, args.threshold(), console),
            Ok(Request::Draw(report)) => pictures::draw(&report, &args.pictures, console),
            Ok(Request::Hosts(hosts)) => match places::places(&hosts) {
                Ok(places) => run::run(args, places, None, console),
                Err(error) => usage(error),
            },
            Err(error) => usage(error),
        },
        ticket => match ticket.load(console) {
            Ok(ticket) => run::run_with_ticket(args, &ticket, console),
            Err(error) => {
                console.error(&sentence(&error));
                Exit::Usage
            }
        },
    }
}

/// Prints a usage error, and exits.
fn usage(error: impl Display) -> ! {
    RdperfArgs::command()
        .error(ErrorKind::ValueValidation, error)
        .exit()
}
