//! What the other end of a tunnel sends: any bytes at all must be handled or refused.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| rdpipe::fuzzing::forward_frames(data));
