//! All programs, each by its name: see `rdpipe --help`, and `rdsend --help` through a link named `rdsend`.

use std::process::ExitCode;

fn main() -> ExitCode {
    rdpipe::cli::main()
}
