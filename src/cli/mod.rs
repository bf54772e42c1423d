//! The command lines: a folder for each program, and the code that the programs share. Not part of the API.

pub(crate) mod args;
mod keys;
#[cfg(test)]
mod quoted;
pub mod rdcat;
pub mod rdcp;
pub mod rdforward;
pub mod rdperf;
pub mod rdpipe;
pub mod rdrecv;
pub mod rdsend;
mod shared;

use clap::CommandFactory;

#[cfg(fuzzing)]
pub(crate) use keys::fuzz_client_keys;

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
