//! Stdout as the programs write it themselves, and its end before the end of the program.

use std::{
    fs::File,
    io::{self, Write},
};

use rustix::{
    event::{PollFd, PollFlags, poll},
    io::{Errno, retry_on_intr},
    stdio::{dup2_stdout, stdout},
};

/// The stdout of this process. In contrast to [`io::stdout`], a write to a stdout that is closed or not open for writing
/// is an error, and nothing is buffered.
pub(crate) struct Stdout;

impl Write for Stdout {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        loop {
            match retry_on_intr(|| rustix::io::write(stdout(), bytes)) {
                // Another process that has it open has made its writes non-blocking.
                Err(Errno::AGAIN) => {
                    let stdout = stdout();
                    let mut ready = [PollFd::new(&stdout, PollFlags::OUT)];
                    retry_on_intr(|| poll(&mut ready, None))?;
                }
                Err(Errno::BADF) => {
                    return Err(io::Error::other("it is closed, or not open for writing"));
                }
                written => return Ok(written?),
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

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
