//! The command lines: a file or folder for each program, and the code that the programs share. Not part of the API.

pub(crate) mod args;
#[cfg(test)]
mod quoted;
pub mod rdcat;
pub mod rdcp;
pub mod rdforward;
pub mod rdperf;
mod rdpipe;
pub mod rdrecv;
pub mod rdsend;
pub mod rdsh;
mod server;
mod shared;

use std::{env, ffi::OsStr, path::Path, process::ExitCode};

use clap::CommandFactory;

#[cfg(any(test, fuzzing))]
pub(crate) use {rdcp::fuzz_served_session, server::key_file::fuzz as fuzz_client_keys};

/// Runs the program whose name this process was started by: one executable, `rdpipe`, is all programs.
///
/// The name is the file name in `argv[0]`: a symbolic link named `rdsend` starts rdsend. The name `ssh` starts rdsh, for
/// programs that run no other. A name of no program starts rdpipe.
#[must_use]
pub fn main() -> ExitCode {
    let called = env::args_os().next().unwrap_or_default();
    match name(&called) {
        b"rdcat" => rdcat::main(),
        b"rdcp" => rdcp::main(),
        b"rdforward" => rdforward::main(),
        b"rdperf" => rdperf::main(),
        b"rdrecv" => rdrecv::main(),
        b"rdsend" => rdsend::main(),
        b"rdsh" | b"ssh" => rdsh::main(),
        _ => rdpipe::main(),
    }
}

/// Returns the letters at the beginning of a path's file name: `rdsend` for `/usr/bin/rdsend-1.2`.
fn name(path: &OsStr) -> &[u8] {
    let file = Path::new(path).file_name().unwrap_or_default();
    let file = file.as_encoded_bytes();
    let end = file.iter().position(|byte| !byte.is_ascii_alphabetic());
    &file[..end.unwrap_or(file.len())]
}

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
        args::RdshArgs::definition(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_letters_of_a_file_name_are_the_name_of_a_program() {
        for (path, expected) in [
            ("rdsend", "rdsend"),
            ("./rdsend", "rdsend"),
            ("/usr/bin/rdsend", "rdsend"),
            ("/opt/rdcp/rdsend", "rdsend"),
            ("rdsend-1.2", "rdsend"),
            ("rdcp.old", "rdcp"),
            ("rdperf2", "rdperf"),
            ("rdsender", "rdsender"),
            ("-rdcp", ""),
            ("/", ""),
            ("", ""),
        ] {
            assert_eq!(name(path.as_ref()), expected.as_bytes(), "{path}");
        }
    }
}
