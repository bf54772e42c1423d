//! The promises of a stream, one function each, generic over the data path: `Ok` when it is kept.

pub(crate) mod answers;
pub(crate) mod closing;
pub(crate) mod dropping;
pub(crate) mod order;
pub(crate) mod pace;
pub(crate) mod sharing;

pub(crate) use crate::common::pools::{CHUNK, DEPTH, POOL, pair, small};
