//! See `rdpipe --help`.

use std::process::ExitCode;

fn main() -> ExitCode {
    rdpipe::cli::rdpipe::main()
}
