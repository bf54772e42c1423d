//! Replaces the link of a stream while it runs: what asks for it, and the task that does it.

pub(super) mod driver;
pub(super) mod request;
