//! What the tests share: streams to test over, time limits, and programs and hosts to test with.
#![allow(
    dead_code,
    unused_imports,
    unused_macros,
    unreachable_pub,
    reason = "each test binary uses a part of this module"
)]

#[macro_use]
mod promises;

pub(crate) mod allocations;
pub(crate) mod data_path;
pub(crate) mod limits;
pub(crate) mod pattern;
pub(crate) mod process;
#[cfg(feature = "cli")]
pub(crate) mod programs;
pub(crate) mod proxy;
pub(crate) mod random;
pub(crate) mod relay;
pub(crate) mod waiting;
pub(crate) mod wakes;

/// The version of the protocol, of which the tests speak the first messages themselves.
pub(crate) const PROTOCOL_VERSION: u8 = 12;

/// Returns true if the long tests run too, as with `scripts/test --full`.
pub(crate) fn is_full() -> bool {
    std::env::var("RDPIPE_FULL").is_ok_and(|value| value == "1")
}

/// Prints the reason why a test, or a part of it, cannot run here. The line bypasses the capture of libtest, and
/// `scripts/test` counts lines that begin with `SKIPPED: `.
pub(crate) fn skip(why: &str) {
    use std::io::Write;
    let _ = writeln!(std::io::stderr(), "SKIPPED: {why}");
}

/// Returns the reason why RDMA cannot be tested on this machine, or `None` if it can. With `RDPIPE_REQUIRE_RDMA=1` the
/// result is always `None`, so that a test fails on a machine without RDMA.
pub(crate) fn missing_rdma() -> Option<String> {
    let required = std::env::var("RDPIPE_REQUIRE_RDMA").is_ok_and(|value| value == "1");
    let devices = std::fs::read_dir("/sys/class/infiniband");
    let present = devices.is_ok_and(|mut devices| devices.next().is_some());
    (!required && !present).then(|| "no RDMA device".to_owned())
}
