//! What users of tokio's traits expect of any stream, one function each, generic over the data
//! path: `Ok` when it is met.

pub(crate) mod amounts;
pub(crate) mod cancelled;
pub(crate) mod dials;
pub(crate) mod exact;
pub(crate) mod halves;
pub(crate) mod lending;
pub(crate) mod lines;
pub(crate) mod nothing;
pub(crate) mod sending;
pub(crate) mod wakers;

use crate::common::pools::{CHUNK, DEPTH, FULL, POOL, fill, pair, small};
