//! See `rdperf --help`.

use std::process::ExitCode;

fn main() -> ExitCode {
    rdpipe::cli::rdperf::main()
}
