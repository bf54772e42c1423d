//! The guard: the process above the worker, which kills what a dead worker left behind.
//!
//! A SIGKILL cannot be caught, so another process must kill what a killed worker has started. The guard uses no runtime
//! and no protocol, and next to nothing that could fail. Its second thread serves the hold on stdin, a third reaps
//! while it kills. It exits with the worker's status, or with 128+n if signal n killed the worker: so ssh reports a
//! SIGKILL on a host.

use std::{
    fs::File,
    io::{self, Write},
    os::unix::process::CommandExt,
    process::{Command, ExitCode},
    sync::mpsc,
    thread,
};

use rustix::{
    io::{Errno, retry_on_intr},
    process::{Pid, WaitOptions, set_child_subreaper, wait},
    stdio::{dup2_stdin, dup2_stdout},
};

use super::{descendants, hold::Keeper, reaper};
use crate::{
    process::core_dumps,
    ssh::{explain::UNSTARTED_AGENT, stage::Status},
};

/// Runs the guard: `rdpipe --agent`.
pub(crate) fn main() -> ExitCode {
    let mut worker = Command::new("/proc/self/exe");
    worker.arg0("rdpipe").arg("--agent=worker");
    ExitCode::from(guard(&mut worker))
}

/// Runs `worker`, and kills every process that it left behind. Returns the worker's exit status, or 128+n if signal n
/// killed it.
pub(in crate::ssh::agent) fn guard(worker: &mut Command) -> u8 {
    match watch(worker) {
        Ok(Status::Exited(code)) => code,
        Ok(Status::Signaled(number)) => number.saturating_add(128),
        Err(error) => {
            let _ = writeln!(io::stderr(), "{UNSTARTED_AGENT}: {error}");
            1
        }
    }
}

fn watch(worker: &mut Command) -> io::Result<Status> {
    // A descendant that loses its parent becomes a child of this process, even if it has left group and session.
    set_child_subreaper(Some(rustix::process::getpid()))?;
    let keeper = Keeper::prepare(worker)?;
    let null = null()?;
    let child = core_dumps::restored_for(|| worker.spawn());
    let mut child = child.map_err(|error| unstarted(worker, &error))?;
    // Only the worker must hold the session's pipes: the controller then sees the end of the session when the worker
    // closes them.
    dup2_stdin(&null)?;
    dup2_stdout(&null)?;
    let worker = Pid::from_child(&child);
    if let Err(error) = keeper.serve(worker) {
        // A worker whose guard is gone may look at its new parent, so it ends first.
        let _ = child.kill();
        let _ = child.wait();
        return Err(error);
    }
    let status = loop {
        match retry_on_intr(|| wait(WaitOptions::empty()))? {
            Some((pid, status)) if pid == worker => {
                if let Some(status) = reaper::status_of(status) {
                    break status;
                }
            }
            _ => {}
        }
    };
    if has_children() {
        end_all();
    }
    Ok(status)
}

/// Opens `/dev/null`.
///
/// # Errors
///
/// Fails with the name of the file.
pub(in crate::ssh::agent) fn null() -> io::Result<File> {
    let null = File::options().read(true).write(true).open("/dev/null");
    null.map_err(|error| io::Error::new(error.kind(), format!("cannot open /dev/null: {error}")))
}

fn unstarted(worker: &Command, error: &io::Error) -> io::Error {
    let program = worker.get_program().to_string_lossy();
    let advice = match error.kind() {
        io::ErrorKind::NotFound => "; is /proc mounted?",
        _ => "",
    };
    io::Error::new(
        error.kind(),
        format!("cannot run {program}: {error}{advice}"),
    )
}

/// Reaps the children that have exited. Returns true if a child is left that still runs.
fn has_children() -> bool {
    loop {
        match retry_on_intr(|| wait(WaitOptions::NOHANG)) {
            Ok(Some(_)) => {}
            Ok(None) => return true,
            Err(error) => return error != Errno::CHILD,
        }
    }
}

fn end_all() {
    let (ended, is_over) = mpsc::channel();
    // While the sender is there, the processes count as not ended.
    let unended = ended.clone();
    let reaping = thread::Builder::new().spawn(move || {
        let _ = reaper::reap_all(|_, _| {});
        drop(ended);
    });
    // Without the thread, the processes are killed after the full time, and no one knows whether they have ended.
    let _unended = reaping.is_err().then_some(unended);
    if let Err(left) = descendants::end_all(&is_over) {
        let left = left.join(", ");
        let _ = writeln!(io::stderr(), "rdpipe: cannot kill {left}");
    }
}
