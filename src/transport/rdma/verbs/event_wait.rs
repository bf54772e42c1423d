//! A thread that waits for a completion.

use std::{io, time::Duration};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
};

use super::completions::CompletionQueue;

/// The longest wait: a year, which every kernel accepts.
const LONGEST: Duration = Duration::from_secs(365 * 24 * 3600);

impl CompletionQueue {
    /// Waits for the event for which [`arm`](Self::arm) asked, and takes it. Returns false if it has not come within `limit`, or if
    /// a signal has interrupted the wait. Blocks the thread.
    ///
    /// # Errors
    ///
    /// Those of the device.
    pub fn wait_event(&self, limit: Duration) -> io::Result<bool> {
        let limit = Timespec::try_from(limit.min(LONGEST)).map_err(io::Error::other)?;
        let mut channel = [PollFd::new(self, PollFlags::IN)];
        match poll(&mut channel, Some(&limit)) {
            Ok(0) | Err(Errno::INTR) => return Ok(false),
            Ok(_) => {}
            Err(error) => return Err(error.into()),
        }
        match self.take_event() {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            Err(error) => Err(error),
        }
    }
}
