//! What the tests of the stream have in common.
#![allow(dead_code, reason = "each test binary uses its own part of it")]

pub(crate) mod ends;
pub(crate) mod limit;
pub(crate) mod pattern;
pub(crate) mod process;
pub(crate) mod proxy;
pub(crate) mod random;
