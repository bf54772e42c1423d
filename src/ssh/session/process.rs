//! The process that leads to an agent: its start and its end.

use std::{
    io,
    os::unix::process::ExitStatusExt,
    process::{ExitStatus, Stdio},
    thread,
    time::Duration,
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::retry_on_intr,
    process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open},
};
use tokio::{
    process::{Child, Command},
    time::timeout,
};
use tokio_util::sync::CancellationToken;

use crate::{
    process::core_dumps,
    ssh::{
        plan::launch::{Launch, LaunchKind},
        stage::Status,
    },
    threads,
};

/// How long the process may still run after it has closed its stdout. Then it is killed.
const EXIT_LIMIT: Duration = Duration::from_secs(3);

/// How long a process may run after SIGTERM when its session is cut: a program such as `srun` cancels its job. It is
/// shorter than the second that the controller waits for sessions that were cut.
const TERM_LIMIT: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 500_000_000,
};

/// Waits until the process has exited, and returns its status. Ends the process group if the process has not
/// closed its stdout, does not exit in time, or the session is cut; the status is then none.
pub(super) async fn wait(
    kind: LaunchKind,
    child: &mut Child,
    is_closed: bool,
    cut: &CancellationToken,
) -> Option<Status> {
    if is_closed {
        let ended = tokio::select! {
            ended = timeout(EXIT_LIMIT, child.wait()) => ended.ok(),
            () = cut.cancelled() => None,
        };
        if let Some(ended) = ended {
            return ended.ok().map(status);
        }
    }
    let id = child.id().and_then(|id| i32::try_from(id).ok());
    if let Some(group) = id.and_then(Pid::from_raw) {
        end_group(group, kind).await;
    }
    // The status of our own signal explains nothing.
    let _ = child.wait().await;
    None
}

/// Starts the process in a process group of its own: ^C then reaches the controller only, which tells the agents.
pub(super) fn spawn(launch: &Launch) -> io::Result<Child> {
    let mut command = Command::new(launch.program());
    command
        .args(&launch.argv[1..])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0);
    core_dumps::restored_for(|| command.spawn())
}

/// Ends a process group whose first process has not been waited for, so that its number cannot belong to another group
/// yet: with SIGTERM, and with SIGKILL when the first process has exited, or after a moment.
async fn end_group(group: Pid, kind: LaunchKind) {
    if let Ok(first) = pidfd_open(group, PidfdFlags::empty()) {
        let _ = kill_process_group(group, Signal::TERM);
        let exits = move || {
            let mut first = [PollFd::new(&first, PollFlags::IN)];
            let _ = retry_on_intr(|| poll(&mut first, Some(&TERM_LIMIT)));
            if kind == LaunchKind::Here {
                // The first process is the guard of an agent, which SIGTERM ends at once. The worker still ends its command.
                thread::sleep(TERM_LIMIT.try_into().unwrap_or_default());
            }
        };
        // Without a thread for the wait, SIGKILL follows at once.
        let _ = threads::blocking(exits).await;
    }
    let _ = kill_process_group(group, Signal::KILL);
}

fn status(status: ExitStatus) -> Status {
    let small = |number: i32| u8::try_from(number).unwrap_or(u8::MAX);
    match (status.code(), status.signal()) {
        (Some(code), _) => Status::Exited(small(code)),
        (None, signal) => Status::Signaled(small(signal.unwrap_or(0))),
    }
}
