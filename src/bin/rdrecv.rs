//! See `rdrecv --help`.

use std::process::ExitCode;

fn main() -> ExitCode {
    rdpipe::cli::rdrecv::main()
}
