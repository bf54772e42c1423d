//! See `rdcp --help`.

use std::process::ExitCode;

fn main() -> ExitCode {
    rdpipe::cli::rdcp::main()
}
