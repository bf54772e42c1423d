//! Processes: the guard above the worker, the pipe that it holds open, and how both reap and kill.

pub(super) mod descendants;
pub(super) mod guard;
pub(super) mod hold;
pub(super) mod reaper;
