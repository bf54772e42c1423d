//! The header of a chunk, which precedes its payload: any bytes at all must be parsed or refused.
#![cfg_attr(fuzzing, no_main)]

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|data: &[u8]| rdpipe::fuzzing::header(data));
#[cfg(not(fuzzing))]
fn main() {}
