//! The command lines of all programs.

pub(super) mod help;
mod hints;
pub(super) mod hosts;
mod key;
#[cfg(test)]
mod tests;
pub(super) mod version;

use std::{
    ffi::OsStr,
    io::{self, Write},
    path::Path,
};

use clap::{ArgAction, Args, error::ErrorKind};

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
pub(crate) fn or_exit<T>(program: &'static str, parsed: Result<T, clap::Error>) -> T {
    let error = match parsed {
        Ok(args) => return args,
        Err(mut error) if error.use_stderr() => {
            hints::add_hint(program, &mut error, &words());
            error.exit()
        }
        Err(help) => help,
    };
    let console = Console::new(program, MessageOptions::default());
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
    console.finish();
    std::process::exit(written.err().unwrap_or_default().code().into())
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
#[derive(Debug, Clone, Copy, Default, Args)]
pub(crate) struct MessageOptions {
    /// Print how the run went: transport, bytes, seconds, bandwidth; -vv how ssh is called, too
    #[arg(short, long, action = ArgAction::Count, conflicts_with = "quiet")]
    pub(crate) verbose: u8,

    /// Print errors only
    #[arg(short, long)]
    pub(crate) quiet: bool,

    /// Report in JSON: write every message to stderr as one object a line
    #[arg(long)]
    pub(crate) json: bool,
}
