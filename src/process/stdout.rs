//! The end of stdout before the end of the program.

use std::{
    fs::File,
    io::{self, Write},
};

use rustix::stdio::dup2_stdout;

/// Closes stdout: a program behind a pipe gets its end of file now, and not when this program exits.
///
/// # Errors
///
/// Fails if the rest of the output cannot be written, or if there is no `/dev/null` to take its place.
pub(crate) fn close() -> io::Result<()> {
    io::stdout().flush()?;
    let null = File::options().write(true).open("/dev/null")?;
    Ok(dup2_stdout(null)?)
}
