//! What the tests share: streams to test over, time limits, and programs and hosts to test with.
#![allow(
    dead_code,
    unused_imports,
    unused_macros,
    unreachable_pub,
    reason = "each test binary uses its own part of it"
)]

#[macro_use]
mod promises;

pub(crate) mod allocations;
pub(crate) mod ends;
pub(crate) mod limits;
pub(crate) mod pattern;
pub(crate) mod pools;
pub(crate) mod process;
#[cfg(feature = "cli")]
pub(crate) mod programs;
pub(crate) mod proxy;
pub(crate) mod random;
pub(crate) mod states;
pub(crate) mod waiting;
pub(crate) mod wakes;

/// Whether the tests that take long are wanted, too: `scripts/test --full`.
pub(crate) fn is_full() -> bool {
    std::env::var("RDPIPE_FULL").is_ok_and(|value| value == "1")
}

/// Says why a test, or a part of it, cannot run here: past libtest's capture, in the words that `scripts/test` counts.
pub(crate) fn skip(why: &str) {
    use std::io::Write;
    let _ = writeln!(std::io::stderr(), "SKIPPED: {why}");
}

/// Why RDMA cannot be tested on this machine, if it cannot. Where `RDPIPE_REQUIRE_RDMA` is 1 nothing is missing: a machine
/// without RDMA fails the test.
pub(crate) fn missing_rdma() -> Option<String> {
    let required = std::env::var("RDPIPE_REQUIRE_RDMA").is_ok_and(|value| value == "1");
    let devices = std::fs::read_dir("/sys/class/infiniband");
    let present = devices.is_ok_and(|mut devices| devices.next().is_some());
    (!required && !present).then(|| "no RDMA device".to_owned())
}
