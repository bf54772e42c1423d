//! Reaps every child of this process, adopted ones included, and merges their statuses into that of the stage.
//!
//! One thread reaps every child, the command included. The command is started by tokio's `Command`, whose `Child` is
//! kept and never polled: two threads that wait would take each other's statuses. No other part of a worker may start a
//! process.

use std::{
    io,
    sync::{Mutex, MutexGuard, PoisonError},
};

use rustix::{
    io::{Errno, retry_on_intr},
    process::{Pid, WaitId, WaitIdOptions, WaitOptions, WaitStatus, wait, waitid},
};

use crate::ssh::stage::Status;

/// Reaps children until none is left, and calls `reaped` for each. Blocks.
///
/// No other thread of the process may wait for a child, because the kernel returns each status only once.
pub(in crate::ssh::agent) fn reap_all(mut reaped: impl FnMut(Pid, Status)) -> io::Result<()> {
    let ended = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
    loop {
        // Waits for a child that has exited, and leaves it a zombie, whose number is its own until it is reaped.
        match retry_on_intr(|| waitid(WaitId::All, ended)) {
            Ok(_) => {}
            Err(Errno::CHILD) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
        let paused = pause();
        let child = retry_on_intr(|| wait(WaitOptions::NOHANG));
        drop(paused);
        if let Ok(Some((pid, status))) = child {
            if let Some(status) = status_of(status) {
                reaped(pid, status);
            }
        }
    }
}

/// Held while [`reap_all`] reaps a child. A process has one reaper.
static REAPING: Mutex<()> = Mutex::new(());

/// Pauses [`reap_all`] until the result is dropped: the numbers of this process's own children, and of the process
/// groups that they lead, cannot belong to other processes meanwhile.
pub(in crate::ssh::agent) fn pause() -> MutexGuard<'static, ()> {
    REAPING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the status of a process that has ended, or none if the process was only stopped or continued.
pub(in crate::ssh::agent) fn status_of(status: WaitStatus) -> Option<Status> {
    let byte = |number: i32| u8::try_from(number).unwrap_or(u8::MAX);
    let exited = status.exit_status().map(|code| Status::Exited(byte(code)));
    exited.or_else(|| {
        status
            .terminating_signal()
            .map(|signal| Status::Signaled(byte(signal)))
    })
}

/// The status of a stage, merged from its processes: the command's if the command failed, else that of the first
/// adopted process that failed. (In `tee >(zfs recv t)` a failed `zfs` fails the stage.)
#[derive(Debug, Default)]
pub(in crate::ssh::agent) struct Merged {
    command: Option<Status>,
    adopted: Option<Status>,
}

impl Merged {
    /// Adds the status of a process that has ended: of the command if `is_command`, else of an adopted process.
    pub(in crate::ssh::agent) fn add(&mut self, is_command: bool, status: Status) {
        if is_command {
            self.command = Some(status);
        } else if is_failure(status) && self.adopted.is_none() {
            self.adopted = Some(status);
        }
    }

    /// Returns the status of the stage, or none if the command has not ended yet.
    pub(in crate::ssh::agent) fn status(&self) -> Option<Status> {
        match self.command? {
            Status::Exited(0) => Some(self.adopted.unwrap_or(Status::Exited(0))),
            status => Some(status),
        }
    }
}

/// Returns true if an adopted process has failed. A death by SIGPIPE is not a failure: a shell ignores it as well
/// (`head -1 <(yes)`).
fn is_failure(status: Status) -> bool {
    status != Status::Exited(0) && !is_broken_pipe(status)
}

/// Returns true for a death by SIGPIPE, and for 141, with which a shell reports one.
pub(in crate::ssh::agent) fn is_broken_pipe(status: Status) -> bool {
    matches!(status, Status::Signaled(13) | Status::Exited(141))
}

/// Returns the signal that ended a process, also if a shell reports it as an exit status of 128+n.
pub(in crate::ssh::agent) fn signal_in(status: Status) -> Option<u8> {
    match status {
        Status::Signaled(number) => Some(number),
        // 64 is the highest signal number.
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
    fn a_stage_has_the_status_of_its_command_or_of_the_first_adopted_process_that_failed() {
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
    fn a_signal_is_found_in_the_exit_status_of_a_shell() {
        assert_eq!(signal_in(Status::Exited(137)), Some(9));
        assert_eq!(signal_in(Status::Signaled(9)), Some(9));
        for code in [0, 1, 127, 128, 255] {
            assert_eq!(signal_in(Status::Exited(code)), None);
        }
    }
}
