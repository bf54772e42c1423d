//! Streams whose pools are soon full.

use anyhow::Result;
use rdpipe::{Stream, StreamConfig};

use super::{data_path::DataPath, pattern::Pattern, waiting::until};

/// The payload of a chunk in most promises, in bytes: small, so that the pools are soon full.
pub(crate) const CHUNK: u64 = 64 << 10;

/// The number of slots of each pool in most promises.
pub(crate) const DEPTH: u64 = 4;

/// The bytes that a receive pool holds.
pub(crate) const POOL: u64 = CHUNK * DEPTH;

/// Returns `base` with small pools.
pub(crate) fn small(base: &StreamConfig) -> StreamConfig {
    let mut config = base.clone();
    config.chunk_bytes = usize::try_from(CHUNK).expect("64 KiB");
    config.depth = usize::try_from(DEPTH).expect("4");
    config
}

/// Returns two connected ends with small pools.
pub(crate) async fn pair(over: DataPath, base: &StreamConfig) -> Result<(Stream, Stream)> {
    over.pair(small(base), small(base)).await
}

/// The bytes that fit between two ends while the second does not read: its pool, and the chunk that waits for
/// credit at the first.
pub(crate) const FULL: u64 = POOL + CHUNK;

/// Writes [`FULL`] bytes of `pattern` from `at` on; all earlier bytes must have been read. Any further write
/// waits until `to` is read.
pub(crate) async fn fill(from: &mut Stream, to: &Stream, pattern: &Pattern, at: u64) -> Result<()> {
    pattern.write(from, at..at + FULL).await?;
    until(|| to.stats().bytes_received == at + POOL).await;
    Ok(())
}
