//! The counts of a stream.

use std::time::Duration;

/// The counts of one end of a stream at one moment. All counts start at 0 when the stream is connected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Stats {
    /// The number of payload bytes given to the data path.
    pub bytes_sent: u64,
    /// The number of payload bytes that arrived and were verified.
    pub bytes_received: u64,
    /// The number of chunks given to the data path.
    pub chunks_sent: u64,
    /// The number of chunks that arrived and were verified.
    pub chunks_received: u64,
    /// The number of chunks that this end's RDMA device completed without an event, at most: they were found by a
    /// timer, some milliseconds later. A chunk that arrives just then is counted too.
    pub late_completions: u64,
    /// The time since the stream was connected.
    pub elapsed: Duration,
}
