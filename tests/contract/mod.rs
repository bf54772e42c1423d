//! The promises of a stream, one function each, generic over the data path: `Ok` when it is kept.

pub(crate) mod answers;
pub(crate) mod closing;
pub(crate) mod dropping;
pub(crate) mod order;
pub(crate) mod pace;
pub(crate) mod sharing;

use rdpipe::StreamConfig;

/// Payload of a chunk in most promises, in bytes: small, so that the pools are soon full.
pub(crate) const CHUNK: u64 = 64 << 10;

/// Slots of each pool in most promises.
pub(crate) const DEPTH: u64 = 4;

/// What a receive pool holds.
pub(crate) const POOL: u64 = CHUNK * DEPTH;

/// `base` with small pools.
pub(crate) fn small(base: &StreamConfig) -> StreamConfig {
    let mut config = base.clone();
    config.chunk_bytes = usize::try_from(CHUNK).expect("64 KiB");
    config.depth = usize::try_from(DEPTH).expect("4");
    config
}

/// Two connected ends with small pools.
pub(crate) async fn pair<E: crate::common::ends::Ends>(
    base: &StreamConfig,
) -> anyhow::Result<(rdpipe::Stream, rdpipe::Stream)> {
    E::pair(small(base), small(base)).await
}
