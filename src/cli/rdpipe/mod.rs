//! The program rdpipe: runs commands on several hosts, and sends the data from one host to the next.

mod ending;

use std::{
    ffi::OsString,
    io::{self, IsTerminal},
    process::ExitCode,
    time::Instant,
};

use clap::{CommandFactory, Parser, error::ErrorKind};

use super::{
    args::{Agent, HostOptions, MessageOptions, StreamOptions, help, or_exit, version},
    shared::{
        message::{Console, sentence},
        run::Exit,
        supervision::{self, PipelineView, run_alone},
    },
};
use crate::{
    options::FlowOptions,
    process::{self, is_stdin_closed},
    ssh::{
        plan::{Plan, PlanInput},
        supervisor::pipeline::PipelineOptions,
    },
};

/// Parses the command line, runs the pipeline, and prints how the run went. Returns the exit code.
pub(super) fn main() -> ExitCode {
    process::prepare();
    let mut words: Vec<OsString> = std::env::args_os().collect();
    let is_old = join_json_file(&mut words);
    let mut args = or_exit("rdpipe", RdpipeArgs::try_parse_from(words.iter()));
    args.stream.is_bulk = true;
    if let Some(process) = args.agent {
        return supervision::main(process);
    }
    let plan = match Plan::parse(&args.segments, input()) {
        Ok(plan) => plan,
        Err(error) => RdpipeArgs::command()
            .error(ErrorKind::ValueValidation, error)
            .exit(),
    };
    let console = Console::beside_data("rdpipe", &args.messages);
    console.note_encryption(&args.stream);
    if is_old {
        console.note("write --json=FILE: from rdpipe 0.3 on, a word after --json is a stage");
    }
    if args.dry_run {
        let exit = ending::print(&plan, &args, &console);
        return console.finish(exit).into();
    }
    let exit = run(&args, &plan, &console).unwrap_or_else(|error| {
        console.error(&sentence(&error));
        Exit::Local
    });
    console.finish(exit).into()
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

fn run(args: &RdpipeArgs, plan: &Plan, console: &Console) -> anyhow::Result<Exit> {
    let started = Instant::now();
    let options = (&args.hosts, &args.stream);
    let view = PipelineView::Stages;
    let pipeline = PipelineOptions {
        fsync: args.fsync,
        flow: args.flow,
        ..PipelineOptions::default()
    };
    let (summary, _) = run_alone(plan, options, pipeline, view, console)?;
    Ok(ending::tell(
        args,
        plan,
        &summary,
        started.elapsed(),
        console,
    ))
}

/// The command line of rdpipe.
#[derive(Debug, Parser)]
#[command(
    name = "rdpipe",
    version,
    long_version = version::long(),
    about = "Pipes data through commands on several hosts, from one host to the next at link speed",
    after_help = help::rdpipe(),
    mut_arg("verbose", |arg| {
        arg.help("Print how the run went: the connections, and the table of stages; -vv how ssh is called, too")
    }),
    mut_arg("quiet", |arg| arg.help("Print errors only, and what the commands write to stderr"))
)]
pub(crate) struct RdpipeArgs {
    /// The stages, each with its host: `[user@]HOST:COMMAND`.
    #[arg(value_name = "SEGMENT", required_unless_present = "agent", help = help::SEGMENT)]
    pub(crate) segments: Vec<OsString>,

    /// Print what would be done, and do nothing: stages, edges and remote commands
    #[arg(short = 'n', long)]
    pub(crate) dry_run: bool,

    /// fsync output files before reporting success
    #[arg(long)]
    pub(crate) fsync: bool,

    #[command(flatten)]
    pub(crate) hosts: HostOptions,

    #[command(flatten)]
    pub(crate) stream: StreamOptions,

    #[command(flatten)]
    pub(crate) flow: FlowOptions,

    #[command(flatten)]
    pub(crate) messages: MessageOptions,

    /// Run as an agent (used by rdpipe itself)
    #[arg(long, hide = true, value_enum, num_args = 0..=1, require_equals = true)]
    #[arg(default_missing_value = "guard")]
    pub(crate) agent: Option<Agent>,
}

/// Joins `--json` and the file in the next word, a spelling that works until 0.3: no stage is a word without a colon.
/// Returns true if they were there.
fn join_json_file(words: &mut Vec<OsString>) -> bool {
    let options = words.iter().take_while(|word| *word != "--");
    let is_file = |word: &OsString| {
        let bytes = word.as_encoded_bytes();
        !bytes.starts_with(b"-") && !bytes.contains(&b':')
    };
    let Some(at) = options.clone().position(|word| word == "--json") else {
        return false;
    };
    let is_old = words.get(at + 1).is_some_and(is_file);
    if is_old {
        let file = words.remove(at + 1);
        words[at].push("=");
        words[at].push(file);
    }
    is_old
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{Direction, TransportPolicy};

    fn parse(words: &[&str]) -> Result<RdpipeArgs, clap::Error> {
        RdpipeArgs::try_parse_from([&["rdpipe"], words].concat())
    }

    #[test]
    fn the_options_of_the_original_manual_work() {
        let args = parse(&["-v", "-n", "-p", "7691", "-H", "10.0.0.1", "a:wc", "b:> f"]).unwrap();
        assert!(args.messages.verbose == 1 && args.dry_run);
        assert_eq!(args.hosts.ports, Some((7691, 7691)));
        assert_eq!(args.hosts.here().as_deref(), Some("10.0.0.1"));
        assert_eq!(args.segments, ["a:wc", "b:> f"]);
    }

    #[test]
    fn options_choose_how_hosts_are_reached() {
        let args = parse(&[
            "--ssh-opt",
            "-F cfg",
            "--ssh-opt=-oPort=22",
            "--remote-rdpipe",
            "/opt/rdpipe",
            "--addr",
            "a=10.0.0.1",
            "--addr=b=::1,10.0.0.2",
            "--rsh",
            "docker exec -i '{host}'",
            "a:wc",
        ])
        .unwrap();
        let remote = args.hosts.remote();
        assert_eq!(remote.ssh_options, ["-F", "cfg", "-oPort=22"]);
        assert_eq!(remote.program.as_deref(), Some("/opt/rdpipe"));
        assert_eq!(remote.rsh.unwrap(), ["docker", "exec", "-i", "{host}"]);
        assert_eq!(args.hosts.addresses.len(), 2);
    }

    #[test]
    fn an_agent_has_the_options_that_the_user_gave() {
        let line =
            "a:b --chunk 1M --depth=8 --timeout=2 --transport=tcp --device mlx5_0 --busy-poll 7";
        let words: Vec<_> = line.split(' ').collect();
        let sent = postcard::to_stdvec(&parse(&words).unwrap().stream).unwrap();
        let arrived: StreamOptions = postcard::from_bytes(&sent).unwrap();
        let config = arrived.config(Direction::Send);
        assert_eq!((config.chunk_bytes, config.depth), (1 << 20, 8));
        assert_eq!((config.rdma.chunk_bytes, config.rdma.depth), (1 << 20, 8));
        assert_eq!(config.timeout, Duration::from_secs(2));
        assert_eq!(config.transport, TransportPolicy::Tcp);
        assert_eq!(config.rdma.device.as_deref(), Some("mlx5_0"));
        assert_eq!(config.rdma.busy_poll, Some(Duration::from_micros(7)));
        assert_eq!(parse(&["a:b"]).unwrap().stream, StreamOptions::default());
    }

    #[test]
    fn an_agent_needs_no_segments() {
        assert_eq!(parse(&["--agent"]).unwrap().agent, Some(Agent::Guard));
        assert_eq!(
            parse(&["--agent=worker"]).unwrap().agent,
            Some(Agent::Worker)
        );
        assert_eq!(parse(&["a:b"]).unwrap().agent, None);
    }

    #[test]
    fn contradictions_are_usage_errors() {
        for words in [
            &[][..],
            &["-v", "-q", "a:b"],
            &["-x:b"],
            &["-p", "0", "a:b"],
            &["-p", "9-8", "a:b"],
            &["--addr", "a", "a:b"],
            &["--rsh", "it's", "a:b"],
            &["--rsh", " ", "a:b"],
            &["--chunk", "1", "a:b"],
            &["--remote-rdpipe", "/opt/r\nd/rdpipe", "a:b"],
        ] {
            assert_eq!(parse(words).unwrap_err().exit_code(), 2, "{words:?}");
        }
    }
}
