//! What a peer of a copy sends, and the map that a run has left: any bytes at all must be parsed or refused.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| rdpipe::fuzzing::copy(data));
