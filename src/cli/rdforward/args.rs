//! The command line of rdforward.

use std::{
    ffi::{OsStr, OsString},
    os::unix::ffi::OsStrExt,
    path::PathBuf,
};

use clap::{
    Args, CommandFactory, FromArgMatches, Parser, Subcommand, ValueHint,
    builder::{OsStringValueParser, TypedValueParser},
};

use crate::{
    cli::args::{
        Agent, HostOptions, MessageOptions, Secret, StreamOptions, help, or_exit, version,
    },
    forward::{
        policy::{AllowedPorts, ForwardPolicy},
        specs::{ForwardSpec, ListenAt},
        tunnel::MOST_STREAMS,
    },
};

/// The port of a server without `--listen-port`: the one after that of `rdcp --serve`, so that one host can have both.
pub(super) const DEFAULT_PORT: u16 = 10471;

/// What `-v` prints in rdforward.
const VERBOSE: &str = "Print how the run went: what carries the data, and each connection as it comes and goes; -vv how ssh is called, too";

/// The command line of rdforward.
#[derive(Debug, Parser)]
#[command(
    name = "rdforward",
    version,
    long_version = version::long(),
    about = "Forwards TCP and UNIX sockets of unmodified programs between two hosts, over RDMA or TCP",
    override_usage = "rdforward [OPTIONS] [-L|-R|-D ...]... [user@]HOST\n       rdforward [OPTIONS] [-L|-D ...]... HOST:PORT\n       rdforward [OPTIONS] [-L|-R|-D ...]... TICKET\n       rdforward run [OPTIONS] HOST -- COMMAND [ARG]...\n       rdforward serve --allow [HOST:]PORT[-PORT],... --key-file FILE [OPTIONS]\n       rdforward --listen [--allow [HOST:]PORT[-PORT],...] [OPTIONS]",
    args_conflicts_with_subcommands = true,
    disable_help_subcommand = true,
    subcommand_help_heading = "Other forms",
    after_help = help::rdforward(),
    mut_arg("verbose", |arg| arg.help(VERBOSE))
)]
pub(crate) struct RdforwardArgs {
    /// The other forms of the program.
    #[command(subcommand)]
    pub(crate) form: Option<ForwardForm>,

    /// The other host. A ticket is a secret, so the operands appear in no message.
    #[arg(value_name = "HOST", value_hint = ValueHint::Hostname, value_parser = OsStringValueParser::new().map(Secret::new), help = help::FORWARD_OPERAND)]
    #[arg(conflicts_with_all = ["listen", "ticket_file"])]
    pub(crate) operands: Vec<Secret>,

    /// What is forwarded.
    #[command(flatten)]
    pub(crate) forwards: ForwardOptions,

    /// Print a ticket, and wait for one peer that has it
    #[arg(short, long, conflicts_with_all = ["ticket_file", "key_file", "local", "remote", "dynamic"])]
    pub(crate) listen: bool,

    /// Go into the background as soon as connections are forwarded
    #[arg(short = 'f', long, conflicts_with = "listen")]
    pub(crate) background: bool,

    /// Run as the process in the background (used by rdforward itself)
    #[arg(long, hide = true, requires = "background")]
    pub(crate) in_background: bool,

    /// Let the other end connect to these ports only, with --listen: to those of localhost, unless HOST is given
    /// [default: all]
    #[arg(
        long,
        value_name = "[HOST:]PORT[-PORT]",
        value_delimiter = ',',
        requires = "listen",
        // What conflicts with --listen would make clap forget that it is required.
        conflicts_with_all = ["operands", "local", "remote", "dynamic", "ticket_file", "key_file"]
    )]
    pub(crate) allow: Vec<AllowedPorts>,

    #[command(flatten)]
    pub(crate) peer: ForwardPeerOptions,

    #[command(flatten)]
    pub(crate) messages: MessageOptions,

    /// Run as an agent (used by rdforward itself)
    #[arg(long, hide = true, value_enum, num_args = 0..=1, require_equals = true)]
    #[arg(default_missing_value = "guard")]
    pub(crate) agent: Option<Agent>,
}

/// The forms of rdforward that begin with a word.
#[derive(Debug, Subcommand)]
pub(crate) enum ForwardForm {
    /// Run a command whose connections to HOST go through the tunnel
    Run(ForwardRunArgs),
    /// Let clients that have a key connect to ports of this host, until SIGTERM
    Serve(ForwardServeArgs),
}

/// The command line of `rdforward run`.
#[derive(Debug, Args)]
#[command(
    override_usage = "rdforward run [OPTIONS] [user@]HOST -- COMMAND [ARG]...\n       rdforward run [OPTIONS] HOST:PORT -- COMMAND [ARG]...\n       rdforward run [OPTIONS] TICKET -- COMMAND [ARG]...\n       rdforward run [OPTIONS] --ticket-file FILE -- COMMAND [ARG]...",
    after_help = help::rdforward_run(),
    mut_arg("verbose", |arg| arg.help(VERBOSE))
)]
pub(crate) struct ForwardRunArgs {
    /// HOST, then COMMAND and its arguments, with or without `--` between them. What follows HOST is not parsed.
    #[arg(value_name = "HOST -- COMMAND", trailing_var_arg = true, value_parser = OsStringValueParser::new().map(Secret::new))]
    #[arg(help = help::FORWARD_COMMAND)]
    operands: Vec<Secret>,

    /// Whether `--` stood before all operands, so that all of them are the command.
    #[arg(skip)]
    only_command: bool,

    #[command(flatten)]
    pub(crate) peer: ForwardPeerOptions,

    #[command(flatten)]
    pub(crate) messages: MessageOptions,
}

/// The command line of `rdforward serve`.
#[derive(Debug, Args)]
#[command(
    override_usage = "rdforward serve --allow [HOST:]PORT[-PORT],... --key-file FILE [OPTIONS]",
    after_help = help::rdforward_serve(),
    mut_arg("verbose", |arg| arg.help(VERBOSE))
)]
pub(crate) struct ForwardServeArgs {
    /// Let the other end connect to these ports only: to those of localhost, unless HOST is given
    #[arg(
        long,
        value_name = "[HOST:]PORT[-PORT]",
        value_delimiter = ',',
        required = true
    )]
    pub(crate) allow: Vec<AllowedPorts>,

    /// Read the key from the first line of FILE, and those of further clients from the next ones: a line NAME KEY for
    /// each
    #[arg(long, value_name = "FILE")]
    pub(crate) key_file: PathBuf,

    /// Listen on this port, the only one that clients need; 0 takes a free one
    #[arg(long, value_name = "PORT", default_value_t = DEFAULT_PORT)]
    pub(crate) listen_port: u16,

    /// The most streams of a tunnel.
    #[arg(long, value_name = "N", value_parser = streams())]
    #[arg(
        help = "Allow each tunnel at most N streams [default: half of the processors, 1 to 4; 4 for clients that give --streams]"
    )]
    pub(crate) streams: Option<u16>,

    #[command(flatten)]
    pub(crate) stream: StreamOptions,

    #[command(flatten)]
    pub(crate) messages: MessageOptions,
}

/// What is forwarded.
#[derive(Debug, Clone, Args)]
pub(crate) struct ForwardOptions {
    /// Listen here, and connect from the other host; PORT 0 takes a free one; a part with a / is a UNIX socket; may be
    /// given several times
    #[arg(short = 'L', long, value_name = "[BIND:]PORT:HOST:PORT", value_parser = spec(), allow_hyphen_values = true)]
    pub(crate) local: Vec<ForwardSpec>,

    /// Listen on the other host, and connect from here; may be given several times
    #[arg(short = 'R', long, value_name = "[BIND:]PORT:HOST:PORT", value_parser = spec(), allow_hyphen_values = true)]
    pub(crate) remote: Vec<ForwardSpec>,

    /// Listen here for SOCKS5 clients, and connect each from the other host to the target that it names; may be given
    /// several times
    #[arg(short = 'D', long, value_name = "[BIND:]PORT", value_parser = dynamic(), allow_hyphen_values = true)]
    pub(crate) dynamic: Vec<ListenAt>,
}

/// The options for the other host.
#[derive(Debug, Clone, Args)]
pub(crate) struct ForwardPeerOptions {
    /// Read the ticket from the first line of FILE
    #[arg(long, value_name = "FILE")]
    pub(crate) ticket_file: Option<PathBuf>,

    /// The file with the key for a server.
    #[arg(long, value_name = "FILE", conflicts_with = "ticket_file")]
    #[arg(help = "Read the key from the first line of FILE, for HOST:PORT [env: RDPIPE_KEY]")]
    pub(crate) key_file: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) hosts: HostOptions,

    /// The number of streams.
    #[arg(long, value_name = "N", value_parser = streams(), help = STREAMS)]
    pub(crate) streams: Option<u16>,

    #[command(flatten)]
    pub(crate) stream: StreamOptions,
}

impl RdforwardArgs {
    /// Parses the command line of this process. Prints a wrong use and exits.
    pub(crate) fn of_process() -> Self {
        let words: Vec<OsString> = std::env::args_os().collect();
        or_exit("rdforward", Self::of_words(&words))
    }

    /// Parses a command line that begins with the name of the program.
    pub(super) fn of_words(words: &[OsString]) -> Result<Self, clap::Error> {
        let mut args = Self::from_arg_matches(&Self::command().try_get_matches_from(words)?)?;
        if let Some(ForwardForm::Run(run)) = &mut args.form {
            // The operands of `run` end the command line.
            let before = words.len() - run.operands.len();
            run.only_command = words[before - 1] == "--";
        }
        Ok(args)
    }

    /// Returns the options for messages of the form that was chosen.
    pub(crate) fn messages(&self) -> MessageOptions {
        let messages = match &self.form {
            None => &self.messages,
            Some(ForwardForm::Run(run)) => &run.messages,
            Some(ForwardForm::Serve(serve)) => &serve.messages,
        };
        messages.clone()
    }

    /// Returns the options for streams of the form that was chosen.
    pub(crate) fn stream(&self) -> &StreamOptions {
        match &self.form {
            None => &self.peer.stream,
            Some(ForwardForm::Run(run)) => &run.peer.stream,
            Some(ForwardForm::Serve(serve)) => &serve.stream,
        }
    }

    /// Returns what the peer with the ticket of `--listen` may have this host connect to.
    pub(super) fn policy(&self) -> ForwardPolicy {
        ForwardPolicy::of(&self.allow)
    }
}

impl ForwardServeArgs {
    /// Returns what clients may have this host connect to.
    pub(super) fn policy(&self) -> ForwardPolicy {
        ForwardPolicy::of(&self.allow)
    }
}

impl ForwardOptions {
    /// Returns true if there is nothing to forward.
    pub(super) fn is_empty(&self) -> bool {
        self.local.is_empty() && self.remote.is_empty() && self.dynamic.is_empty()
    }
}

impl ForwardRunArgs {
    /// Takes the operands apart: HOST, or none if `--ticket-file` stands for it or `--` before it, and COMMAND with its
    /// arguments.
    pub(super) fn take_operands(&mut self) -> (Vec<Secret>, Vec<OsString>) {
        let mut operands = std::mem::take(&mut self.operands).into_iter().peekable();
        let mut host = Vec::new();
        if !self.only_command && self.peer.ticket_file.is_none() {
            host.extend(operands.next());
            operands.next_if(|word| word.text() == OsStr::new("--"));
        }
        let command = operands.map(|word| word.text().to_owned());
        (host, command.collect())
    }
}

/// Returns the parser of a value of `-L` or `-R`.
fn spec() -> impl TypedValueParser<Value = ForwardSpec> {
    OsStringValueParser::new().try_map(|text| ForwardSpec::parse(text.as_bytes()))
}

fn streams() -> impl TypedValueParser<Value = u16> {
    clap::value_parser!(u16).range(1..=i64::from(MOST_STREAMS))
}

/// The help of `--streams`.
const STREAMS: &str = "Carry the connections over N streams, each with a thread at both ends, or as many as the other end allows; with --listen, at most N [default: half of the processors of the end that has fewer, 1 to 4]";

/// Returns the parser of a value of `-D`.
fn dynamic() -> impl TypedValueParser<Value = ListenAt> {
    OsStringValueParser::new().try_map(|text| ListenAt::parse_dynamic(text.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &[&str]) -> Result<RdforwardArgs, clap::Error> {
        let words = [&["rdforward"], words].concat();
        let words: Vec<OsString> = words.iter().map(OsString::from).collect();
        RdforwardArgs::of_words(&words)
    }

    fn run(words: &[&str]) -> (Vec<String>, Vec<String>) {
        let Some(ForwardForm::Run(mut run)) = parse(words).unwrap().form else {
            panic!("{words:?} is no run");
        };
        let (host, command) = run.take_operands();
        let host = host
            .iter()
            .map(|host| host.text().to_str().unwrap().to_owned());
        let command = command.iter().map(|word| word.to_str().unwrap().to_owned());
        (host.collect(), command.collect())
    }

    fn fails(words: &[&str]) -> String {
        let error = parse(words).unwrap_err();
        assert_eq!(error.exit_code(), 2, "{words:?}: {error}");
        error.to_string()
    }

    #[test]
    fn forwards_may_be_given_several_times() {
        let line = [
            "-L",
            "1:a:2",
            "-L1:/b",
            "-R",
            "*:0:[::1]:4",
            "-D",
            "5",
            "--dynamic=:6",
            "h",
        ];
        let args = parse(&line).unwrap();
        let shown =
            |specs: &[ForwardSpec]| specs.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(shown(&args.forwards.local), ["1:a:2", "1:/b"]);
        assert_eq!(shown(&args.forwards.remote), ["*:0:[::1]:4"]);
        let dynamic = args.forwards.dynamic.iter().map(ToString::to_string);
        assert_eq!(dynamic.collect::<Vec<_>>(), ["5", "*:6"]);
        assert!(!args.forwards.is_empty() && parse(&["h"]).unwrap().forwards.is_empty());
        assert!(fails(&["-L", "1:a:x", "h"]).contains("\"x\" is no port to connect to"));
        assert!(fails(&["-L", "80", "h"]).contains("no target after the port"));
        assert!(fails(&["-D", "1:a:2", "h"]).contains("[BIND:]PORT"));
    }

    #[test]
    fn a_command_is_everything_behind_the_host() {
        let expected = |host: &[&str], command: &[&str]| {
            let owned = |words: &[&str]| words.iter().map(ToString::to_string).collect::<Vec<_>>();
            (owned(host), owned(command))
        };
        for (line, host, command) in [
            (
                &["run", "h", "--", "psql", "-h", "h"][..],
                &["h"][..],
                &["psql", "-h", "h"][..],
            ),
            (
                &["run", "h", "psql", "-h", "h"],
                &["h"],
                &["psql", "-h", "h"],
            ),
            (
                &["run", "-v", "h", "x", "-q", "--json"],
                &["h"],
                &["x", "-q", "--json"],
            ),
            (
                &["run", "h", "--", "x", "--", "-L"],
                &["h"],
                &["x", "--", "-L"],
            ),
            (&["run", "h", "x", "--", "y"], &["h"], &["x", "--", "y"]),
            (&["run", "h", "--", "--", "y"], &["h"], &["--", "y"]),
            (&["run", "--", "x", "y"], &[], &["x", "y"]),
            (&["run", "-v", "--", "x", "--"], &[], &["x", "--"]),
            (&["run", "--ticket-file", "f", "x", "-h"], &[], &["x", "-h"]),
            (&["run", "--ticket-file", "f", "--", "x"], &[], &["x"]),
            (&["run", "h", "run", "serve"], &["h"], &["run", "serve"]),
            (&["run", "h"], &["h"], &[]),
            (&["run", "h", "--"], &["h"], &[]),
            (&["run"], &[], &[]),
            (&["run", "--"], &[], &[]),
        ] {
            assert_eq!(run(line), expected(host, command), "{line:?}");
        }
        let args = parse(&["run", "-v", "--transport", "tcp", "h", "x"]).unwrap();
        assert_eq!(args.messages().verbose, 1);
        assert!(fails(&["run", "--bogus", "h", "x"]).contains("--bogus"));
        assert!(fails(&["run", "-L", "1:a:2", "h", "x"]).contains("-L"));
    }

    #[test]
    fn a_server_needs_ports_and_keys() {
        let line = [
            "serve",
            "--allow",
            "5432,6379-6400",
            "--allow=db:80",
            "--key-file",
            "k",
        ];
        let Some(ForwardForm::Serve(serve)) = parse(&line).unwrap().form else {
            panic!("no server");
        };
        let allowed: Vec<String> = serve.allow.iter().map(ToString::to_string).collect();
        assert_eq!(allowed, ["5432", "6379-6400", "db:80"]);
        assert_eq!(serve.policy(), ForwardPolicy::of(&serve.allow));
        assert_eq!(serve.listen_port, DEFAULT_PORT);
        assert!(fails(&["serve", "--key-file", "k"]).contains("--allow"));
        assert!(fails(&["serve", "--allow", "1"]).contains("--key-file"));
        assert!(fails(&["serve", "--allow", "x", "--key-file", "k"]).contains("give a port"));
        assert!(fails(&["serve", "--allow=", "--key-file", "k"]).contains("--allow"));
    }

    #[test]
    fn contradictions_are_usage_errors() {
        for line in [
            &["-v", "-q", "-D1", "h"][..],
            &["--listen", "h"],
            &["--listen", "-D1"],
            &["--listen", "--key-file", "k"],
            &["--listen", "--ticket-file", "f"],
            &["--allow", "1", "-D1", "h"],
            &["--ticket-file", "f", "-D1", "h"],
            &["--ticket-file", "f", "--key-file", "k", "-D1"],
            &["serve", "--allow", "1", "--key-file", "k", "h"],
        ] {
            fails(line);
        }
        let args = parse(&["-l", "--allow", "5432"]).unwrap();
        assert!(args.listen && args.policy() != ForwardPolicy::Any);
        assert_eq!(parse(&["-l"]).unwrap().policy(), ForwardPolicy::Any);
        // The words begin a form only as the first ones; `named` in `mod.rs` explains the others.
        for line in [&["-v", "run", "h", "x"][..], &["h", "serve"]] {
            assert!(parse(line).unwrap().form.is_none());
        }
    }

    #[test]
    fn an_agent_needs_no_operands() {
        assert_eq!(parse(&["--agent"]).unwrap().agent, Some(Agent::Guard));
        assert_eq!(
            parse(&["--agent=worker"]).unwrap().agent,
            Some(Agent::Worker)
        );
    }
}
