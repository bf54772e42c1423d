//! No core dumps of a process that may hold keys.
//!
//! `PR_SET_DUMPABLE` would have the same effect, but it also takes the process's files in `/proc` away from a user who is
//! not root, and the guard and the worker of an agent open pipes of each other there. `MADV_DONTDUMP` leaves pages out of
//! a dump and needs `unsafe`; the dump filter of the process leaves out all of them.

use std::{
    fs,
    sync::{Mutex, OnceLock, PoisonError},
};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// What the process inherited, for the programs that it starts.
struct Inherited {
    limit: Rlimit,
    filter: String,
}

/// What the process inherited, since [`forbid`] was called.
static INHERITED: OnceLock<Inherited> = OnceLock::new();

/// Held while a program is started, so that two threads do not undo each other's settings.
static STARTING: Mutex<()> = Mutex::new(());

const FILTER: &str = "/proc/self/coredump_filter";

/// Forbids core dumps of this process.
pub(crate) fn forbid() {
    let filter = fs::read_to_string(FILTER).unwrap_or_default();
    let limit = getrlimit(Resource::Core);
    INHERITED.get_or_init(|| Inherited {
        limit,
        // The kernel shows the filter as a hexadecimal number, and reads one without a prefix as another base.
        filter: format!("0x{}", filter.trim()),
    });
    set_forbidden();
}

/// Runs `start`, which starts a program, with the core dumps that this process inherited: a user who wants a dump of a
/// command gets it. Until [`forbid`] is called there is nothing to restore.
pub(crate) fn restored_for<T>(start: impl FnOnce() -> T) -> T {
    let Some(inherited) = INHERITED.get() else {
        return start();
    };
    let _starting = STARTING.lock().unwrap_or_else(PoisonError::into_inner);
    let _ = setrlimit(Resource::Core, inherited.limit);
    set_filter(&inherited.filter);
    let started = start();
    set_forbidden();
    started
}

fn set_forbidden() {
    let hard = getrlimit(Resource::Core).maximum;
    // With a limit of 0, a kernel that passes dumps to a program such as systemd-coredump makes them all the same. With a
    // limit of 1 it makes none, and a dump into a file needs more than one byte as well.
    let limit = Rlimit {
        current: Some(hard.unwrap_or(1).min(1)),
        maximum: hard,
    };
    // Neither call fails for a process that lowers its own limit. If one did, the other would still work.
    let _ = setrlimit(Resource::Core, limit);
    set_filter("0");
}

/// Sets which kinds of memory a dump contains: none with "0".
fn set_filter(filter: &str) {
    // A kernel without core dumps has no filter either.
    let _ = fs::write(FILTER, filter);
}
