//! The one loop under every program: a source into a stream, a stream into a sink.

pub(crate) mod pump;
pub(crate) mod thread;
