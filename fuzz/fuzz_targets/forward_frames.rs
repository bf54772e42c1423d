//! What the other end of a tunnel sends: any bytes at all must be handled or refused.
#![cfg_attr(fuzzing, no_main)]

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|data: &[u8]| rdpipe::fuzzing::forward_frames(data));
#[cfg(not(fuzzing))]
fn main() {}
