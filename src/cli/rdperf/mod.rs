//! The program rdperf: measures what hosts can do over their network.
//!
//! A `run` starts an agent on each of the `hosts`. First come the `checks`, of every host alone and of every pair. Then
//! comes the `measuring` of what the command line (`args`, `sweep`) asks for, or the `pingpong`. The `outcome` prints
//! the report: each `table`, the `verdict`, and the `page`. The other forms of the program listen with a ticket, compare
//! two saved reports, and draw one.

pub(super) mod args;
mod checks;
mod hosts;
mod measuring;
mod outcome;
mod page;
mod pingpong;
mod run;
mod sweep;
mod table;
mod verdict;

use std::{fmt::Display, process::ExitCode};

use clap::{CommandFactory, Parser, error::ErrorKind};

use self::args::Request;
use super::{
    args::{RdperfArgs, TicketSource, or_exit},
    shared::{
        message::{Console, sentence},
        run::Exit,
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
    let console = Console::of_program("rdperf", &args.messages());
    console.note_encryption(&args.stream);
    if let Err(error) = hidden {
        console.warn(&format!("cannot hide the ticket from ps: {error}"));
        // A usage error exits at once.
        console.flush();
    }
    let exit = dispatch(&args, ticket, &console);
    console.finish(exit).into()
}

fn dispatch(args: &RdperfArgs, ticket: TicketSource, console: &Console) -> Exit {
    match ticket {
        TicketSource::Among => {
            usage("a ticket cannot be combined with hosts or other tickets; give the ticket alone")
        }
        TicketSource::None if args.listen => run::listen(args, console),
        TicketSource::None => match args.request() {
            Ok(Request::Diff(old, new)) => outcome::compare(&old, &new, args.threshold(), console),
            Ok(Request::Draw(report)) => page::draw(&report, &args.pictures, console),
            Ok(Request::Hosts(hosts)) => match args::places(&hosts) {
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
