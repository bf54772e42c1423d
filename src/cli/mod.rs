//! The command lines: a folder for each program, and the code that the programs share. Not part of the API.
//!
//! | file | what it has |
//! |---|---|
//! | `args` | the options that programs share, their table, and the exit codes |
//! | `shared` | the code that programs share: runs, messages, progress, reports |
//! | `server` | the loop of a server for many clients, and their keys |
//! | `rdsend` | sends stdin or a file to rdrecv on another host |
//! | `rdrecv` | receives one stream, and writes it to stdout or a file |
//! | `rdpipe` | runs commands on several hosts, and sends the data from one host to the next |
//! | `rdcat` | prints files of other hosts, or joins stdin and stdout of two hosts |
//! | `rdcp` | copies files and directories from one host to another |
//! | `rdperf` | measures what hosts can do over their network |
//! | `rdforward` | forwards TCP and UNIX sockets between two hosts |

pub(crate) mod args;
#[cfg(test)]
mod quoted;
pub mod rdcat;
pub mod rdcp;
pub mod rdforward;
pub mod rdperf;
pub mod rdpipe;
pub mod rdrecv;
pub mod rdsend;
mod server;
mod shared;

use clap::CommandFactory;

#[cfg(fuzzing)]
pub(crate) use server::key_file::fuzz as fuzz_client_keys;

/// Returns the command line of every program, by name. `xtask` makes man pages and completions from it, and
/// `tests/documentation.rs` parses the commands in the documentation with it.
#[must_use]
pub fn commands() -> Vec<clap::Command> {
    vec![
        args::RdcatArgs::command(),
        args::RdcpArgs::command(),
        args::RdforwardArgs::command(),
        args::RdperfArgs::command(),
        args::RdpipeArgs::command(),
        args::RdrecvArgs::command(),
        args::RdsendArgs::command(),
    ]
}
