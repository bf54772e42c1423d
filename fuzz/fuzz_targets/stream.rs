//! A peer with the key that sends any messages and frames, against the real state and halves of a stream.
#![cfg_attr(fuzzing, no_main)]

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|data: &[u8]| rdpipe::fuzzing::stream(data));
#[cfg(not(fuzzing))]
fn main() {}
