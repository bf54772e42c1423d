//! The measurements of a task: each has an end that dials and an end that listens.

pub(crate) mod counters;
pub(crate) mod path;
pub(crate) mod storage;
pub(crate) mod verbs;
