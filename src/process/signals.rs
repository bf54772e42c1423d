//! The signals that this process has ignored since its start, because its parent ignored them.

use std::{fs, io};

use rustix::process::{Resource, Signal, getrlimit};
use tokio::signal::unix::{SignalKind, signal};

use crate::threads;

/// Returns true if this process ignores the signal with this number: `nohup` ignores SIGHUP, and a shell without job
/// control ignores SIGINT in a command with `&`. Returns false if `/proc` does not tell.
#[must_use]
pub(crate) fn is_ignored(number: u8) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    let bit = u32::from(number).checked_sub(1);
    let bit = bit.and_then(|bit| 1_u64.checked_shl(bit)).unwrap_or(0);
    mask.unwrap_or(0) & bit != 0
}

/// Makes the kernel keep the exit statuses of child processes: it discards them while SIGCHLD is ignored. A program that
/// this process starts gets the default for SIGCHLD.
///
/// # Errors
///
/// Fails if SIGCHLD is ignored and no runtime can be made.
pub(crate) fn keep_child_statuses() -> io::Result<()> {
    let child = Signal::CHILD.as_raw();
    if !u8::try_from(child).is_ok_and(is_ignored) {
        return Ok(());
    }
    handle_without_effect(Signal::CHILD)
}

/// Makes a write beyond the limit of file sizes (`ulimit -f`) fail with EFBIG, which concerns one file. Without a handler,
/// SIGXFSZ kills the process. A program that this process starts gets the default for SIGXFSZ.
///
/// # Errors
///
/// Fails if there is a limit and no runtime can be made.
pub(crate) fn survive_file_limit() -> io::Result<()> {
    let is_ignored = u8::try_from(Signal::XFSZ.as_raw()).is_ok_and(is_ignored);
    if getrlimit(Resource::Fsize).current.is_none() || is_ignored {
        return Ok(());
    }
    handle_without_effect(Signal::XFSZ)
}

/// Handles a signal by doing nothing, to the end of the process. Programs that it starts get the default.
fn handle_without_effect(handled: Signal) -> io::Result<()> {
    let runtime = threads::runtime()?;
    let _context = runtime.enter();
    // The handler stays when the runtime is dropped.
    signal(SignalKind::from_raw(handled.as_raw())).map(drop)
}
