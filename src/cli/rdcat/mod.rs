//! The program rdcat: prints files of other hosts, or joins stdin and stdout of two hosts.

pub(super) mod args;
mod files;
mod join;

use std::process::ExitCode;

use clap::{CommandFactory, Parser, error::ErrorKind};

use self::join::TicketRole;
use super::{
    args::{RdcatArgs, TicketSource, or_exit},
    shared::{
        exit::Exit,
        message::{Console, sentence},
        report::Report,
        run, supervision,
    },
};
use crate::{process, ssh::plan::Plan};

/// The environment variable that holds a ticket.
const TICKET_VARIABLE: &str = "RDCAT_TICKET";

/// Parses the command line, runs rdcat, and returns its exit code.
#[must_use]
pub fn main() -> ExitCode {
    process::prepare();
    let mut args = or_exit("rdcat", RdcatArgs::try_parse());
    if let Some(process) = args.agent {
        return supervision::main(process);
    }
    let file = args.ticket_file.take();
    let (ticket, hidden) =
        TicketSource::take(&mut args.operands, file, args.listen, TICKET_VARIABLE);
    let console = Console::of_program("rdcat", args.messages);
    if let Err(error) = hidden {
        console.warn(&format!("cannot hide the ticket from ps: {error}"));
        // A usage error exits at once.
        console.flush();
    }
    let exit = dispatch(args, ticket, &console);
    console.finish();
    exit
}

fn dispatch(args: RdcatArgs, ticket: TicketSource, console: &Console) -> ExitCode {
    match ticket {
        TicketSource::Among => {
            usage("a ticket cannot be combined with files or other tickets; give the ticket alone")
        }
        _ if args.listen => match args.hosts.here_address() {
            Ok(_) => join(args, TicketRole::Listen, console),
            Err(error) => usage(sentence(&error)),
        },
        TicketSource::None if args.operands.is_empty() => usage(EXPECTED),
        TicketSource::None => match Plan::files(&args.files()) {
            Ok(plans) => files::main(&args, &plans, console),
            Err(error) => usage(error),
        },
        ticket => match ticket.load(console) {
            Ok(ticket) => join(args, TicketRole::Dial(ticket), console),
            Err(error) => {
                let report = Report {
                    exit: Exit::Usage,
                    ..Report::failed(&error)
                };
                report.print(console);
                report.exit.into()
            }
        },
    }
}

fn join(args: RdcatArgs, way: TicketRole, console: &Console) -> ExitCode {
    run::main(console, Ok(()), |run| join::join(args, way, run))
}

const EXPECTED: &str =
    "give HOST:PATH, :PATH for a file of this machine, or the ticket of rdcat -l";

/// Prints a usage error, and exits.
fn usage(error: impl std::fmt::Display) -> ! {
    RdcatArgs::command()
        .error(ErrorKind::ValueValidation, error)
        .exit()
}
