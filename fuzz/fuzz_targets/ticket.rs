//! A ticket of rdcat, as a user types it: any bytes at all must be parsed or refused.
#![cfg_attr(fuzzing, no_main)]

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|data: &[u8]| rdpipe::fuzzing::ticket(data));
#[cfg(not(fuzzing))]
fn main() {}
