//! What a client of `-D` sends: any bytes at all must be parsed or refused.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| rdpipe::fuzzing::socks(data));
