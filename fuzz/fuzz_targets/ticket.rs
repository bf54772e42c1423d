//! A ticket of rdcat, as a user types it: any bytes at all must be parsed or refused.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| rdpipe::fuzzing::ticket(data));
