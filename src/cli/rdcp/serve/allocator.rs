//! The allocator of a server gives large blocks back to the system.

use std::{env, os::unix::process::CommandExt, process::Command};

/// The environment variable by which glibc is told from which size on a block is a mapping of its own.
const VARIABLE: &str = "MALLOC_MMAP_THRESHOLD_";

/// The value that glibc begins with.
const THRESHOLD_BYTES: &str = "131072";

/// Starts this program again in the same process, with a fixed threshold for mappings.
///
/// Without it glibc raises the threshold above the size of a slot when the first slot is freed, and keeps the slots of all
/// later streams in the arenas of its threads: after 20,000 copies, at most 64 at a time, 400 MB stayed behind, and 40 MB
/// with a fixed threshold. Only glibc reads the variable, at the start of a process. If the program cannot be started again,
/// it goes on as it is.
pub(super) fn return_large_blocks() {
    if env::var_os(VARIABLE).is_some() {
        return;
    }
    let Ok(program) = env::current_exe() else {
        return;
    };
    let mut arguments = env::args_os();
    let mut command = Command::new(program);
    if let Some(name) = arguments.next() {
        command.arg0(name);
    }
    let error = command
        .args(arguments)
        .env(VARIABLE, THRESHOLD_BYTES)
        .exec();
    tracing::debug!(%error, "cannot start again");
}
