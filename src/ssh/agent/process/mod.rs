//! Processes of an agent: the guard above the worker, the pipe that the guard holds open, killing and reaping.

pub(super) mod descendants;
pub(super) mod guard;
pub(super) mod reaper;
