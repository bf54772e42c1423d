//! The command lines of all programs.

pub(super) mod help;
mod hints;
pub(super) mod hosts;
mod key;
#[cfg(test)]
mod tests;
pub(super) mod version;

use std::{
    ffi::{OsStr, OsString},
    io::{self, Write},
    path::{Path, PathBuf},
};

use clap::{ArgAction, Args, CommandFactory, error::ErrorKind};

use super::shared::message::{Console, require_stdout, unwritten_stdout};

#[cfg(doc)]
pub(crate) use self::help::EXIT_CODES;
pub(crate) use self::key::TicketSource;
pub(crate) use super::{
    rdcat::RdcatArgs, rdcp::args::RdcpArgs, rdforward::args::RdforwardArgs,
    rdperf::args::RdperfArgs, rdpipe::RdpipeArgs, rdrecv::RdrecvArgs, rdsend::RdsendArgs,
    rdsh::args::RdshArgs,
};
pub(crate) use crate::options::StreamOptions;
pub(crate) use hints::scp_port;
pub(crate) use hosts::{Agent, HostOptions};
pub(crate) use key::{KEY_VARIABLE, KeyOptions, KeySource, Secret, take_variable};

/// Returns the parsed command line of `program`. If there is nothing to run, prints the help, the version or the usage
/// error, and exits.
pub(crate) fn or_exit<T: CommandFactory>(
    program: &'static str,
    parsed: Result<T, clap::Error>,
) -> T {
    let error = match parsed {
        Ok(args) => return args,
        Err(error) if error.use_stderr() && words().is_empty() => {
            let help = T::command().render_help().to_string();
            let _ = io::stderr().write_all(hints::short(program, &help).as_bytes());
            std::process::exit(error.exit_code())
        }
        Err(mut error) if error.use_stderr() => {
            hints::add_hint(program, &mut error, &words());
            error.exit()
        }
        Err(help) => help,
    };
    let console = Console::new(program, &MessageOptions::default());
    let written = require_stdout(&console).and_then(|()| {
        let is_short =
            error.kind() == ErrorKind::DisplayHelp && !words().iter().any(|word| word == "--help");
        let printed = if is_short {
            let text = hints::short(program, &error.to_string());
            io::stdout().write_all(text.as_bytes())
        } else {
            error.print()
        };
        let printed = printed.and_then(|()| io::stdout().flush());
        printed.map_err(|error| unwritten_stdout(&error, &console))
    });
    let exit = console.finish(written.err().unwrap_or_default());
    std::process::exit(exit.code().into())
}

/// Returns the words of the command line behind the program.
pub(crate) fn words() -> Vec<String> {
    let words = std::env::args_os().skip(1);
    words
        .map(|word| word.to_string_lossy().into_owned())
        .collect()
}

/// Returns `path`, or `None` if it is absent or `-`, which stands for stdin or stdout.
pub(crate) fn file(path: Option<&Path>) -> Option<&Path> {
    path.filter(|path| path.as_os_str() != OsStr::new("-"))
}

/// The options for messages: how many, and in which form.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct MessageOptions {
    /// Print how the run went: transport, bytes, seconds, bandwidth; -vv how ssh is called, too
    #[arg(short, long, action = ArgAction::Count, conflicts_with = "quiet")]
    pub(crate) verbose: u8,

    /// Print errors only
    #[arg(short, long)]
    pub(crate) quiet: bool,

    #[command(flatten)]
    pub(crate) json: JsonOption,
}

/// The option `--json`, which means the same in all programs.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct JsonOption {
    /// Report in JSON, one object a line: to FILE, where - is stdout, or to stderr in place of text
    #[arg(
        id = "json",
        long = "json",
        value_name = "FILE",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = ""
    )]
    pub(crate) target: Option<JsonTarget>,
}

impl JsonOption {
    pub(crate) fn is_given(&self) -> bool {
        self.target.is_some()
    }

    /// Returns the option as rdcp and rdperf take it until 0.3: alone, it means stdout.
    pub(crate) fn or_stdout(&self) -> Self {
        let target = self.target.clone();
        let target = target.map(|target| match target {
            JsonTarget::Stderr => JsonTarget::Stdout,
            other => other,
        });
        Self { target }
    }

    /// Prints that the option alone will mean stderr, if it is alone.
    pub(crate) fn note_stdout(&self, console: &Console) {
        if self.target == Some(JsonTarget::Stderr) {
            console.note("--json alone prints to stdout until rdpipe 0.3, and then to stderr: write --json=-");
        }
    }
}

/// Where the report of `--json` goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum JsonTarget {
    /// The option stands alone: stderr, in place of text.
    Stderr,
    Stdout,
    File(PathBuf),
}

impl From<OsString> for JsonTarget {
    fn from(value: OsString) -> Self {
        match value.as_encoded_bytes() {
            b"" => Self::Stderr,
            b"-" => Self::Stdout,
            _ => Self::File(value.into()),
        }
    }
}
