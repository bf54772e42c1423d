//! What a stream has done so far.

use std::time::Duration;

/// A snapshot of one stream end. All counts start at 0 when the stream is connected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Stats {
    /// Payload bytes handed to the data path.
    pub bytes_sent: u64,
    /// Payload bytes that arrived and were verified.
    pub bytes_received: u64,
    /// Chunks handed to the data path.
    pub chunks_sent: u64,
    /// Chunks that arrived and were verified.
    pub chunks_received: u64,
    /// Time since the stream was connected.
    pub elapsed: Duration,
}
