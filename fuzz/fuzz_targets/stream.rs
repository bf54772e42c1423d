//! A peer with the key that sends any messages and frames, against the real state and halves of a stream.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| rdpipe::fuzzing::stream(data));
