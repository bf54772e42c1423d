//! What a program writes to stdout itself, and the end of stdout before the end of the program.

use std::{
    fs::File,
    io::{self, Write},
};

use rustix::stdio::dup2_stdout;

use super::{exit::Exit, message::Console};

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

/// Writes a text to stdout.
///
/// # Errors
///
/// The exit code of a text that was not written, after the error was printed.
pub(crate) fn print(text: &str, console: &Console) -> Result<(), Exit> {
    let mut stdout = io::stdout();
    let written = stdout.write_all(text.as_bytes());
    let written = written.and_then(|()| stdout.flush());
    written.map_err(|error| unwritten(&error, console))
}

/// Prints that stdout could not be written, and returns the exit code. A reader that went away is no error to print.
pub(crate) fn unwritten(error: &io::Error, console: &Console) -> Exit {
    let exit = Exit::from(error);
    if exit != Exit::ReaderClosed {
        console.error(&format!("cannot write standard output: {error}"));
    }
    exit
}
