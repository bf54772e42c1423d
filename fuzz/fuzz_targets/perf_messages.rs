//! What rdperf and its agents send each other, and reports on a disk: any bytes at all must be parsed or refused.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| rdpipe::fuzzing::perf_messages(data));
