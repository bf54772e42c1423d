//! See `rdforward --help`.

use std::process::ExitCode;

fn main() -> ExitCode {
    rdpipe::cli::rdforward::main()
}
