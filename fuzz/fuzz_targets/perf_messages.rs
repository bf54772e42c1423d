//! What rdperf and its agents send each other, and reports on a disk: any bytes at all must be parsed or refused.
#![cfg_attr(fuzzing, no_main)]

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|data: &[u8]| rdpipe::fuzzing::perf_messages(data));
#[cfg(not(fuzzing))]
fn main() {}
