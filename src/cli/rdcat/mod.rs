//! The program rdcat: prints files of other hosts, or joins stdin and stdout of two hosts.

mod join;

use std::{
    ffi::OsString,
    io,
    net::IpAddr,
    path::PathBuf,
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Instant,
};

use anyhow::Context;
use clap::{
    CommandFactory, Parser,
    builder::{OsStringValueParser, TypedValueParser},
    error::ErrorKind,
};
use futures::FutureExt;
use tokio::runtime::Handle;

use self::join::TicketRole;
use super::{
    args::{
        Agent, HostOptions, MessageOptions, Secret, StreamOptions, TicketSource, help, hosts,
        or_exit, version,
    },
    shared::{
        message::{self, Console, sentence},
        progress::{RunProgress, is_on_terminal},
        report::Report,
        run::{self, Exit},
        signals,
        supervision::{self, Pipeline, Supervision, exit_of, tell},
    },
};
use crate::{
    Direction, StreamConfig, process,
    ssh::{
        plan::Plan,
        supervisor::pipeline::{PipelineOptions, PipelineWork},
    },
};

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
    args.stream.is_bulk = true;
    let file = args.ticket_file.take();
    let (ticket, hidden) =
        TicketSource::take(&mut args.operands, file, args.listen, TICKET_VARIABLE);
    let console = Console::beside_data("rdcat", &args.messages);
    console.note_encryption(&args.stream);
    if let Err(error) = hidden {
        console.warn(&format!("cannot hide the ticket from ps: {error}"));
        // A usage error exits at once.
        console.flush();
    }
    dispatch(args, ticket, &console)
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
            Ok(plans) => console.finish(print_files(&args, &plans, console)).into(),
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
                console.finish(report.exit).into()
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

/// The command line of rdcat.
#[derive(Debug, Parser)]
#[command(
    name = "rdcat",
    version,
    long_version = version::long(),
    about = "Writes files of other hosts to stdout, or joins stdin and stdout of two hosts",
    override_usage = "rdcat [OPTIONS] [user@]HOST:PATH...\n       rdcat [OPTIONS] --listen\n       rdcat [OPTIONS] TICKET",
    after_help = help::rdcat()
)]
pub(crate) struct RdcatArgs {
    /// The files, or a ticket. A ticket is a secret, so the operands appear in no message.
    #[arg(value_name = "HOST:PATH", value_parser = OsStringValueParser::new().map(Secret::new))]
    #[arg(conflicts_with_all = ["listen", "ticket_file"])]
    #[arg(help = "Files to write to stdout, in this order; or the TICKET of rdcat --listen")]
    pub(crate) operands: Vec<Secret>,

    /// Print a ticket, and wait for one peer that has it
    #[arg(short, long, conflicts_with = "ticket_file")]
    pub(crate) listen: bool,

    /// Read the ticket from the first line of FILE
    #[arg(long, value_name = "FILE")]
    pub(crate) ticket_file: Option<PathBuf>,

    /// Send only: with a ticket, do not write to stdout
    #[arg(long, conflicts_with = "recv")]
    pub(crate) send: bool,

    /// Receive only: with a ticket, do not read stdin
    #[arg(long)]
    pub(crate) recv: bool,

    /// Listen on this address only [default: all addresses, IPv6 and IPv4]
    #[arg(long, value_name = "ADDR", value_parser = hosts::address)]
    #[arg(requires = "listen", conflicts_with_all = ["operands", "ticket_file"])]
    pub(crate) bind: Option<IpAddr>,

    #[command(flatten)]
    pub(crate) hosts: HostOptions,

    #[command(flatten)]
    pub(crate) stream: StreamOptions,

    #[command(flatten)]
    pub(crate) messages: MessageOptions,

    /// Run as an agent (used by rdcat itself)
    #[arg(long, hide = true, value_enum, num_args = 0..=1, require_equals = true)]
    #[arg(default_missing_value = "guard")]
    pub(crate) agent: Option<Agent>,
}

impl RdcatArgs {
    /// Returns the operands as they were typed.
    pub(crate) fn files(&self) -> Vec<OsString> {
        let files = self.operands.iter();
        files.map(|operand| operand.text().to_owned()).collect()
    }

    /// Returns the configuration of the stream between the two ends of a ticket.
    pub(crate) fn stream_config(&self) -> StreamConfig {
        self.stream.config(match (self.send, self.recv) {
            (true, _) => Direction::Send,
            (_, true) => Direction::Receive,
            _ => Direction::Both,
        })
    }
}

/// Writes the files of all plans to stdout, and prints how the run went.
fn print_files(args: &RdcatArgs, plans: &[Plan], console: &Console) -> Exit {
    if let Err(exit) = message::require_stdout(console) {
        return exit;
    }
    let started = Instant::now();
    let bytes = Arc::default();
    let exit = write(args, plans, console, &bytes).unwrap_or_else(|error| {
        console.error(&sentence(&error));
        Exit::Local
    });
    let report = Report {
        bytes: bytes.load(Ordering::Relaxed),
        seconds: started.elapsed().as_secs_f64(),
        exit,
        ..Report::default()
    };
    report.print_ending(console);
    exit
}

fn write(
    args: &RdcatArgs,
    plans: &[Plan],
    console: &Console,
    bytes: &Arc<AtomicU64>,
) -> anyhow::Result<Exit> {
    let control = run::control_runtime()?;
    let signal = signals::watch(&control, console).context("cannot catch signals")?;
    // Every plan's run waits for a clone of this future.
    let signal = signal.map(Result::ok).boxed().shared();
    let [moved, file_bytes] = [(); 2].map(|()| Arc::new(AtomicU64::new(0)));
    let counted = [bytes, &moved, &file_bytes].map(Arc::clone);
    let terminal = is_on_terminal(&io::stdout(), false);
    let progress = RunProgress::start(console, terminal, move || {
        let [before, moved, file_bytes] = counted.each_ref().map(|c| c.load(Ordering::Relaxed));
        let total = (file_bytes > 0).then(|| before + file_bytes);
        (before + moved, total)
    });
    let mut exit = Exit::Ok;
    for (number, plan) in plans.iter().enumerate() {
        let is_last = number + 1 == plans.len();
        let counts = [&moved, &file_bytes].map(Arc::clone);
        let observe = move |work: &PipelineWork| {
            counts[0].store(work.bytes(), Ordering::Relaxed);
            // The files of later hosts are not known before.
            if let (true, Some(bytes)) = (is_last, work.file_bytes()) {
                counts[1].store(bytes, Ordering::Relaxed);
            }
        };
        let pipeline = pipeline(args, plan, console, &control, progress.is_some());
        let summary = pipeline.run(observe, signal.clone())?;
        let moved = moved.swap(0, Ordering::Relaxed);
        let moved = moved + bytes.fetch_add(moved, Ordering::Relaxed);
        file_bytes.store(0, Ordering::Relaxed);
        let is_whole = tell(plan, &summary.outcome, moved, console);
        let ended = exit_of(&summary.outcome);
        if ended != Exit::Ok {
            exit = ended;
        }
        // Bytes printed after a file that broke off would look like the rest of that file.
        if !is_whole || !matches!(ended, Exit::Ok | Exit::Local) {
            break;
        }
    }
    Ok(exit)
}

fn pipeline<'a>(
    args: &'a RdcatArgs,
    plan: &'a Plan,
    console: &'a Console,
    control: &'a Handle,
    is_watched: bool,
) -> Pipeline<'a> {
    Pipeline {
        plan,
        supervision: Supervision {
            hosts: &args.hosts,
            stream: &args.stream,
            console,
            client_key: None,
            control,
        },
        options: PipelineOptions {
            is_watched,
            ..PipelineOptions::default()
        },
        hides_for_output: false,
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    fn parse(words: &[&str]) -> Result<RdcatArgs, clap::Error> {
        RdcatArgs::try_parse_from([&["rdcat"], words].concat())
    }

    #[test]
    fn files_and_tickets_are_operands() {
        let args = parse(&["-v", "h1:a b", ":-x"]).unwrap();
        assert_eq!(args.files(), ["h1:a b", ":-x"]);
        assert_eq!(args.stream_config().direction, Direction::Both);
        let args = parse(&["--send", "rdt1abc"]).unwrap();
        assert_eq!(args.stream_config().direction, Direction::Send);
        assert!(!format!("{args:?}").contains("rdt1abc"));
        let args = parse(&["-l", "--recv", "--bind", "[::1]", "-p", "7000-7001"]).unwrap();
        assert_eq!(args.stream_config().direction, Direction::Receive);
        assert_eq!(args.bind, Some("::1".parse().unwrap()));
        assert_eq!(args.hosts.ports, Some((7000, 7001)));
    }

    #[test]
    fn contradictions_are_usage_errors() {
        for words in [
            &["-l", "rdt1abc"][..],
            &["-l", "h:x"],
            &["-l", "--ticket-file", "f"],
            &["rdt1abc", "--ticket-file", "f"],
            &["--send", "--recv", "rdt1abc"],
            &["--bind", "::1", "rdt1abc"],
            &["-v", "-q", "h:x"],
        ] {
            let error = parse(words).unwrap_err();
            assert_eq!(error.exit_code(), 2, "{words:?}");
            assert!(!error.to_string().contains("rdt1abc"), "{error}");
        }
    }

    #[test]
    fn help_shows_files_tickets_and_exit_codes() {
        let help = RdcatArgs::command().render_long_help().to_string();
        for taught in ["rdcat fs1:", "rdcat -l", "RDCAT_TICKET", "Exit codes:"] {
            assert!(help.contains(taught), "{taught}:\n{help}");
        }
    }
}
