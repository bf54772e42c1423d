//! The bytes that the servers of HTTP send, and the client checks.

use std::{cmp::min, convert::Infallible};

use bytes::Bytes;
use futures::{Stream, stream};

/// The length after which the content repeats. It is a prime, so that a displaced piece is a wrong piece.
pub(crate) const BLOCK_BYTES: usize = 65_521;

/// Returns the content, once.
pub(crate) fn block() -> Bytes {
    let noise = |i: u32| i.wrapping_mul(2_654_435_761).to_be_bytes()[0];
    (0..).take(BLOCK_BYTES).map(noise).collect()
}

/// Returns the first `bytes` bytes of the content, in pieces that are made while they are read.
pub(crate) fn pieces(bytes: usize) -> impl Stream<Item = Result<Bytes, Infallible>> + Send {
    let block = block();
    let pieces = (0..bytes).step_by(BLOCK_BYTES);
    stream::iter(pieces.map(move |at| Ok(block.slice(..min(BLOCK_BYTES, bytes - at)))))
}
