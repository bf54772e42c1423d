//! See `rdsend --help`.

use std::process::ExitCode;

fn main() -> ExitCode {
    rdpipe::cli::rdsend::main()
}
