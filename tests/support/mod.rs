//! What the tests of the stream have in common.
#![allow(
    dead_code,
    unused_macros,
    reason = "each test binary uses its own part of it"
)]

#[macro_use]
mod promises;

pub(crate) mod allocations;
pub(crate) mod ends;
pub(crate) mod limit;
pub(crate) mod pattern;
pub(crate) mod pools;
pub(crate) mod process;
pub(crate) mod proxy;
pub(crate) mod random;
pub(crate) mod slow;
pub(crate) mod states;
pub(crate) mod wakes;

/// Whether the tests that take long are wanted, too: `scripts/test --full`.
pub(crate) fn is_full() -> bool {
    std::env::var("RDPIPE_FULL").is_ok_and(|value| value == "1")
}

/// Says why a test cannot run here: past libtest's capture, in the words that `scripts/test` counts.
pub(crate) fn skip(why: &str) {
    use std::io::Write;
    let _ = writeln!(std::io::stderr(), "SKIPPED: {why}");
}
