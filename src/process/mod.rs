//! What a process inherits from its parent and passes on to the programs that it starts: ignored signals, whether
//! it leaves core dumps, how many files it may open, and its standard streams.

pub(crate) mod core_dumps;
pub(crate) mod descriptors;
pub(crate) mod signals;
pub(crate) mod standard;
pub(crate) mod stdout;

/// Prepares the process of a program. Call this function first in `main`, before a key is read and before other threads
/// start.
pub(crate) fn prepare() {
    core_dumps::forbid();
    // An error means that there is no `/dev/null`. The runtime of Rust then ends a process with a closed stream.
    let _ = standard::keep_unusable();
    // An error means that no runtime can be made. The program then fails for that reason, with a message.
    let _ = signals::keep_child_statuses();
    let _ = signals::survive_file_limit();
}
