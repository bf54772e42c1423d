//! See `rdcat --help`.

use std::process::ExitCode;

fn main() -> ExitCode {
    rdpipe::cli::rdcat::main()
}
