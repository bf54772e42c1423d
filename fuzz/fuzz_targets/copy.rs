//! What a peer of a copy sends, and the map that a run has left: any bytes at all must be parsed or refused.
#![cfg_attr(fuzzing, no_main)]

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|data: &[u8]| rdpipe::fuzzing::copy(data));
#[cfg(not(fuzzing))]
fn main() {}
