//! The program rdforward: forwards TCP and UNIX sockets between two hosts.

pub(super) mod args;
mod background;
mod command;
mod far;
mod near;
mod peer;
mod reports;

use std::{
    env,
    ffi::OsString,
    fmt::Display,
    io,
    process::{Command, ExitCode},
};

use clap::{CommandFactory, error::ErrorKind};

use self::{
    args::{ForwardForm, ForwardRunArgs},
    peer::{ForwardPeer, NamedPeer},
};
use super::{
    args::{KEY_VARIABLE, RdforwardArgs, Secret, TicketSource, take_variable},
    shared::{
        message::{Console, sentence},
        run::Exit,
        supervision,
    },
};
use crate::process;

/// The environment variable that holds a ticket.
const TICKET_VARIABLE: &str = "RDFORWARD_TICKET";

/// Parses the command line, runs rdforward, and returns its exit code.
#[must_use]
pub fn main() -> ExitCode {
    process::prepare();
    let mut args = RdforwardArgs::of_process();
    if let Some(process) = args.agent {
        return supervision::main(process);
    }
    if args.background && !args.in_background {
        return in_background(&mut args).into();
    }
    let messages = args.messages();
    // A command gets the variables as they were.
    let environment = [KEY_VARIABLE, TICKET_VARIABLE].map(|name| {
        let value = env::var_os(name).map(Secret::new);
        (name, value)
    });
    // The operation takes the form that was chosen, and its options.
    let stream = args.stream().clone();
    // The secrets are hidden before other threads start.
    let (key, key_hidden) = take_variable();
    let (operation, ticket_hidden) = ForwardOperation::take(&mut args);
    let console = Console::of_program("rdforward", &messages);
    console.note_encryption(&stream);
    for (secret, hidden) in [("key", key_hidden), ("ticket", ticket_hidden)] {
        if let Err(error) = hidden {
            console.warn(&format!("cannot hide the {secret} from ps: {error}"));
            // A usage error exits at once.
            console.flush();
        }
    }
    let exit = operation.run(&args, key.as_ref(), &environment, &console);
    console.finish(exit).into()
}

/// Starts the program in the background, and returns when it forwards connections or has ended.
fn in_background(args: &mut RdforwardArgs) -> Exit {
    let started = background::start();
    started.unwrap_or_else(|error| {
        let console = Console::of_program("rdforward", &args.messages());
        console.error(&sentence(&error));
        console.finish(Exit::Local)
    })
}

/// What the program does.
enum ForwardOperation {
    Forward(TicketSource),
    /// Run a command, whose words these are.
    Run {
        run: Box<ForwardRunArgs>,
        host: Vec<Secret>,
        ticket: TicketSource,
        command: Vec<OsString>,
    },
    Serve(Box<args::ForwardServeArgs>),
    /// Wait for a peer with a ticket.
    Listen,
}

impl ForwardOperation {
    /// Takes what the program does, and the ticket, from the arguments and the environment. The second part of the
    /// result is an error if the ticket could not be hidden.
    fn take(args: &mut RdforwardArgs) -> (Self, io::Result<()>) {
        let ticket = |operands: &mut Vec<Secret>, file, listens| {
            TicketSource::take(operands, file, listens, TICKET_VARIABLE)
        };
        match args.form.take() {
            Some(ForwardForm::Serve(serve)) => {
                let (_, hidden) = ticket(&mut Vec::new(), None, true);
                (Self::Serve(Box::new(serve)), hidden)
            }
            Some(ForwardForm::Run(mut run)) => {
                let (mut host, command) = run.take_operands();
                let (ticket, hidden) = ticket(&mut host, run.peer.ticket_file.take(), false);
                let operation = Self::Run {
                    run: Box::new(run),
                    host,
                    ticket,
                    command,
                };
                (operation, hidden)
            }
            None => {
                let file = args.peer.ticket_file.take();
                let (ticket, hidden) = ticket(&mut args.operands, file, args.listen);
                let operation = if args.listen {
                    Self::Listen
                } else {
                    Self::Forward(ticket)
                };
                (operation, hidden)
            }
        }
    }

    /// Runs the operation. `environment` has the variables that have been hidden.
    fn run(
        self,
        args: &RdforwardArgs,
        key: Option<&Secret>,
        environment: &[(&str, Option<Secret>)],
        console: &Console,
    ) -> Exit {
        match self {
            Self::Listen => far::listen(args, console),
            Self::Serve(serve) => far::serve(&serve, console),
            Self::Forward(ticket) => {
                let named = named(args, ticket).unwrap_or_else(|error| usage(None, error));
                let peer = named.load(args.peer.key_file.as_deref(), key, console);
                with_peer(peer, console, |peer| near::run(args, peer, console))
            }
            Self::Run {
                run,
                host,
                ticket,
                command,
            } => {
                let (named, command) = NamedPeer::of(&host, ticket)
                    .and_then(|named| {
                        let command = program(&command, environment).ok_or(NO_COMMAND)?;
                        Ok((named, command))
                    })
                    .unwrap_or_else(|error| usage(Some("run"), error));
                let peer = named.load(run.peer.key_file.as_deref(), key, console);
                with_peer(peer, console, |peer| {
                    command::run(&run, peer, command, console)
                })
            }
        }
    }
}

fn program(words: &[OsString], environment: &[(&str, Option<Secret>)]) -> Option<Command> {
    let (program, args) = words.split_first()?;
    let mut command = Command::new(program);
    command.args(args);
    for (name, value) in environment {
        if let Some(value) = value {
            command.env(name, value.text());
        }
    }
    Some(command)
}

const NO_COMMAND: &str =
    "there is no command; give HOST -- COMMAND, for example db1 -- psql -h db1";

/// Returns the other end of the tunnel that the operands name.
fn named(args: &RdforwardArgs, ticket: TicketSource) -> Result<NamedPeer, String> {
    let first = args.operands.first().map(Secret::text);
    for (word, form) in [
        ("run", "rdforward run [OPTIONS] HOST -- COMMAND"),
        ("serve", "rdforward serve --allow PORT --key-file FILE"),
    ] {
        if first.is_some_and(|first| first == word) {
            return Err(format!(
                "the word {word} stands before all options: {form}; write user@{word} for a host of that name"
            ));
        }
    }
    let named = NamedPeer::of(&args.operands, ticket)?;
    if args.forwards.is_empty() {
        return Err("nothing to forward; give -L, -R or -D".to_owned());
    }
    if matches!(named, NamedPeer::Server(..)) && !args.forwards.remote.is_empty() {
        return Err(
            "a server listens for no client, so -R does not work with HOST:PORT; use ssh or a ticket"
                .to_owned(),
        );
    }
    Ok(named)
}

/// Continues with the other end, or prints why its key or ticket cannot be used.
fn with_peer(
    peer: anyhow::Result<ForwardPeer>,
    console: &Console,
    forward: impl FnOnce(ForwardPeer) -> Exit,
) -> Exit {
    match peer {
        Ok(peer) => forward(peer),
        Err(error) => {
            console.error(&sentence(&error));
            Exit::Usage
        }
    }
}

/// Prints a usage error of the program, or of a form of it, and exits.
fn usage(form: Option<&str>, error: impl Display) -> ! {
    let mut command = RdforwardArgs::command();
    command.build();
    let command = match form.map(|form| command.find_subcommand(form).cloned()) {
        Some(Some(form)) => form,
        _ => command,
    };
    command
        .clone()
        .error(ErrorKind::ValueValidation, error)
        .exit()
}
