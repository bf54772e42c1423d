//! What a program writes to stdout itself.

use std::io::{self, Write};

use super::{exit::Exit, message::Console};

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
