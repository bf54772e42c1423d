//! See `rdsh --help`.

use std::process::ExitCode;

fn main() -> ExitCode {
    rdpipe::cli::rdsh::main()
}
