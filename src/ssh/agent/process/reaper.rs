//! Reaps every child of this process, those that it adopted too, until none is left.

use std::io;

use rustix::{
    io::{Errno, retry_on_intr},
    process::{Pid, WaitOptions, WaitStatus, wait},
};

use crate::ssh::stage::Status;

/// Reaps children until there are none, and tells `reaped` of each. Blocks.
///
/// No other thread of the process may wait for a child: the kernel gives each status once.
pub(in crate::ssh::agent) fn reap_all(mut reaped: impl FnMut(Pid, Status)) -> io::Result<()> {
    loop {
        match retry_on_intr(|| wait(WaitOptions::empty())) {
            Ok(Some((pid, status))) => {
                if let Some(status) = status_of(status) {
                    reaped(pid, status);
                }
            }
            Ok(None) => {}
            Err(Errno::CHILD) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
    }
}

/// None for a process that was only stopped.
pub(in crate::ssh::agent) fn status_of(status: WaitStatus) -> Option<Status> {
    let byte = |number: i32| u8::try_from(number).unwrap_or(u8::MAX);
    let exited = status.exit_status().map(|code| Status::Exited(byte(code)));
    exited.or_else(|| {
        status
            .terminating_signal()
            .map(|signal| Status::Signaled(byte(signal)))
    })
}

/// How a stage ended: as its command did if that failed, else as the first of its other processes that
/// did (in `tee >(zfs recv t)` it is the zfs that matters).
#[derive(Debug, Default)]
pub(in crate::ssh::agent) struct Merged {
    command: Option<Status>,
    adopted: Option<Status>,
}

impl Merged {
    /// One process has ended, which `is_command` or was adopted.
    pub(in crate::ssh::agent) fn add(&mut self, is_command: bool, status: Status) {
        if is_command {
            self.command = Some(status);
        } else if is_failure(status) && self.adopted.is_none() {
            self.adopted = Some(status);
        }
    }

    /// The status of the whole.
    pub(in crate::ssh::agent) fn status(&self) -> Option<Status> {
        match self.command? {
            Status::Exited(0) => Some(self.adopted.unwrap_or(Status::Exited(0))),
            status => Some(status),
        }
    }
}

/// Whether an adopted process has failed. One whose reader had left has not: a shell does not look
/// at that either (`head -1 <(yes)`).
fn is_failure(status: Status) -> bool {
    status != Status::Exited(0) && !is_broken_pipe(status)
}

/// A death by SIGPIPE, or a shell's word for it.
pub(in crate::ssh::agent) fn is_broken_pipe(status: Status) -> bool {
    matches!(status, Status::Signaled(13) | Status::Exited(141))
}

/// The signal that ended it, also where a shell says so in an exit status.
pub(in crate::ssh::agent) fn signal_in(status: Status) -> Option<u8> {
    match status {
        Status::Signaled(number) => Some(number),
        // 64 is the last signal there is.
        Status::Exited(code @ 129..=192) => Some(code - 128),
        Status::Exited(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn merged(processes: &[(bool, Status)]) -> Option<Status> {
        let mut merged = Merged::default();
        for (is_command, status) in processes {
            merged.add(*is_command, *status);
        }
        merged.status()
    }

    #[test]
    fn the_command_comes_first_then_whoever_failed_first() {
        use Status::{Exited, Signaled};
        let (command, adopted) = (true, false);
        assert_eq!(merged(&[]), None);
        assert_eq!(merged(&[(adopted, Exited(3))]), None);
        let of = |status, others: [Status; 2]| {
            let [first, second] = others;
            merged(&[(adopted, first), (command, status), (adopted, second)]).unwrap()
        };
        assert_eq!(of(Exited(0), [Exited(0), Exited(0)]), Exited(0));
        assert_eq!(of(Exited(0), [Exited(0), Exited(3)]), Exited(3));
        assert_eq!(of(Exited(0), [Signaled(9), Exited(3)]), Signaled(9));
        assert_eq!(of(Exited(2), [Signaled(9), Exited(3)]), Exited(2));
        assert_eq!(of(Exited(0), [Signaled(13), Exited(141)]), Exited(0));
        assert_eq!(of(Signaled(13), [Exited(0), Exited(0)]), Signaled(13));
    }

    #[test]
    fn shells_tell_of_signals_in_their_own_way() {
        assert_eq!(signal_in(Status::Exited(137)), Some(9));
        assert_eq!(signal_in(Status::Signaled(9)), Some(9));
        for code in [0, 1, 127, 128, 255] {
            assert_eq!(signal_in(Status::Exited(code)), None);
        }
    }
}
