//! The limit of open files.

use std::sync::OnceLock;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// What the process inherited, since [`raise_descriptor_limit`] was called.
static INHERITED: OnceLock<Rlimit> = OnceLock::new();

/// Raises the soft limit of open files to the hard one, and returns the limit; none is no limit.
pub(crate) fn raise_descriptor_limit() -> Option<u64> {
    let limit = getrlimit(Resource::Nofile);
    INHERITED.get_or_init(|| limit);
    let raised = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    // With the old limit the program serves fewer connections at a time: one that finds no descriptor is told.
    let _ = setrlimit(Resource::Nofile, raised);
    getrlimit(Resource::Nofile).current
}

/// Returns the limit that this process inherited, for the programs that it starts: a program that uses `select()` must not
/// get descriptors beyond 1023. Returns none if the limit has not been raised.
pub(crate) fn inherited_descriptor_limit() -> Option<Rlimit> {
    INHERITED.get().copied()
}
