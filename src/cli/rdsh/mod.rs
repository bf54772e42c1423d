//! The program rdsh: runs a command on another host as ssh does, and carries its stdin and stdout over streams.

pub(crate) mod args;

use std::{
    env,
    ffi::{OsStr, OsString},
    fs,
    os::unix::{fs::MetadataExt, process::CommandExt},
    path::PathBuf,
    process::{Command, ExitCode},
};

use anyhow::Context;
use clap::ValueEnum;
use futures::FutureExt;

use self::args::{RdshArgs, SshLine, SshTask};
use super::{
    args::{Agent, JsonOption, MessageOptions, or_exit},
    shared::{
        message::{Console, sentence},
        run::{self, Exit},
        signals,
        supervision::{self, Pipeline, Supervision},
    },
};
use crate::{
    process::{self, is_stdin_closed, is_stdout_closed},
    ssh::{
        outcome::Site,
        plan::Plan,
        quote,
        stage::Status,
        supervisor::{Summary, pipeline::PipelineOptions},
    },
};

/// The environment variable with options of rdsh, which stand before those of the command line.
const OPTIONS_VARIABLE: &str = "RDSH_OPTIONS";

/// The exit code of ssh for everything that is not the end of the command.
const TROUBLE: u8 = 255;

/// Parses the command line, runs the command, and returns its status.
#[must_use]
pub fn main() -> ExitCode {
    process::prepare();
    let mut words = env::args_os();
    let called = words.next().unwrap_or_default();
    let words: Vec<_> = words.collect();
    if let Some(agent) = agent(&words) {
        return supervision::main(agent);
    }
    let code = carry_out(&called, words).unwrap_or_else(|error| {
        let console = Console::new("rdsh", &MessageOptions::default());
        console.error(&sentence(&error));
        console.finish(Exit::Connection).code()
    });
    code.into()
}

/// Checks that the words of a command line can be used, behind the name of the program. The commands in the
/// documentation are checked with it: clap alone does not know the letters of ssh.
///
/// # Errors
///
/// The reason, if they cannot be used.
pub fn check(words: impl Iterator<Item = OsString>) -> Result<(), String> {
    let line = SshLine::parse(words).map_err(|error| error.to_string())?;
    match line.task {
        Some(SshTask::Run) => Ok(()),
        Some(SshTask::Refuse(why)) => Err(why.to_owned()),
        None => RdshArgs::parse(&line)
            .map(drop)
            .map_err(|error| error.to_string()),
    }
}

/// Returns the process of an agent that this program was started as. It can be one end of a relay.
fn agent(words: &[OsString]) -> Option<Agent> {
    match words.first()?.to_str()?.strip_prefix("--agent")? {
        "" => Some(Agent::Guard),
        value => Agent::from_str(value.strip_prefix('=')?, false).ok(),
    }
}

fn carry_out(called: &OsStr, words: Vec<OsString>) -> anyhow::Result<u8> {
    let line = SshLine::parse(options()?.into_iter().chain(words))?;
    match line.task {
        Some(SshTask::Refuse(why)) if !is_ssh(called) => anyhow::bail!(why),
        Some(_) => Err(become_ssh(&line)?),
        None => run(&line),
    }
}

fn options() -> anyhow::Result<Vec<OsString>> {
    let Some(text) = env::var_os(OPTIONS_VARIABLE).filter(|text| !text.is_empty()) else {
        return Ok(Vec::new());
    };
    let words = text.to_str().and_then(quote::split_words);
    let words = words.with_context(|| format!("cannot split {OPTIONS_VARIABLE} into words"))?;
    Ok(words.into_iter().map(OsString::from).collect())
}

/// Returns true if this process was started by the name of ssh: a program that runs no other than `ssh` finds rdsh by a
/// link of that name.
fn is_ssh(called: &OsStr) -> bool {
    super::name(called) == b"ssh"
}

/// Becomes ssh, with the same arguments. Returns the reason if it cannot.
fn become_ssh(line: &SshLine) -> anyhow::Result<anyhow::Error> {
    let ssh = find_ssh()?;
    let mut command = Command::new(&ssh);
    command.args(line.for_ssh());
    let error = process::with_inherited_core_dumps(|| command.exec());
    Ok(anyhow::Error::from(error).context(format!("cannot run {}", ssh.display())))
}

/// Returns the first ssh in PATH that is not this program.
fn find_ssh() -> anyhow::Result<PathBuf> {
    let own = fs::metadata("/proc/self/exe").ok();
    let own = own.map(|own| (own.dev(), own.ino()));
    let path = env::var_os("PATH").unwrap_or_default();
    let is_other = |path: &PathBuf| {
        let is_program = |found: &fs::Metadata| found.is_file() && found.mode() & 0o111 != 0;
        let found = fs::metadata(path).ok().filter(is_program);
        found.is_some_and(|found| Some((found.dev(), found.ino())) != own)
    };
    let mut found = env::split_paths(&path).map(|folder| folder.join("ssh"));
    found
        .find(is_other)
        .context("there is no ssh in PATH, which rdsh needs to reach hosts")
}

/// Runs the command, and returns the status as that of ssh.
fn run(line: &SshLine) -> anyhow::Result<u8> {
    let mut args = match RdshArgs::parse(line) {
        Err(error) if error.use_stderr() => {
            let _ = error.print();
            return Ok(TROUBLE);
        }
        parsed => or_exit("rdsh", parsed),
    };
    args.stream.is_bulk = true;
    let console = Console::of_program(
        "rdsh",
        &MessageOptions {
            verbose: args.verbose,
            quiet: args.verbose == 0,
            json: JsonOption::default(),
        },
    );
    console.note_encryption(&args.stream);
    if is_stdout_closed() {
        // As ssh does: what the command writes is dropped.
        process::close_stdout().context("cannot open /dev/null")?;
    }
    let plan = Plan::ssh(
        &args.destination,
        args.line(),
        !line.without_stdin && !is_stdin_closed(),
    );
    let ssh = line
        .ssh
        .iter()
        .filter(|word| *word != "-n" && *word != "-T");
    let ssh = ssh.map(|word| word.to_str().map(str::to_owned));
    let ssh: Option<Vec<_>> = ssh.collect();
    let ssh = ssh.context("an option of ssh is not valid UTF-8")?;
    args.hosts.run_users_ssh(find_ssh()?, ssh)?;
    let summary = supervise(&args, &plan, &console)?;
    let code = tell(&plan, &summary, &console);
    Ok(console.finish(Exit::Command(code)).code())
}

fn supervise(args: &RdshArgs, plan: &Plan, console: &Console) -> anyhow::Result<Summary> {
    let control = run::control_runtime()?;
    let signal = signals::watch(&control, console).context("cannot catch signals")?;
    let pipeline = Pipeline {
        plan,
        supervision: Supervision {
            hosts: &args.hosts,
            stream: &args.stream,
            console,
            client_key: None,
            control: &control,
        },
        options: PipelineOptions::default(),
        hides_for_output: false,
    };
    pipeline.run(|_| {}, signal.map(Result::ok))
}

/// Prints what failed, in one line, and returns the status.
fn tell(plan: &Plan, summary: &Summary, console: &Console) -> u8 {
    let outcome = &summary.outcome;
    if outcome.signal.is_some() {
        return TROUBLE;
    }
    let causes = outcome.ranked();
    if let Some(first) = causes.first() {
        // Where ssh itself has failed, it has said so, and there is no text.
        let text = &first.fault.text;
        if !text.is_empty() {
            let host = plan.site(0);
            match first.site {
                Site::Agent(_) if !text.contains(&host) => {
                    console.error(&format!("{host}: {text}"));
                }
                _ => console.error(text),
            }
        }
        return TROUBLE;
    }
    match outcome.stages[0].status() {
        Some(Status::Exited(code)) => code,
        // ssh does not tell by which signal.
        Some(Status::Signaled(_)) | None => TROUBLE,
    }
}
