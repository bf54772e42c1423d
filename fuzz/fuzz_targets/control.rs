//! A decrypted control message: any bytes at all must be parsed or refused.
#![cfg_attr(fuzzing, no_main)]

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|data: &[u8]| rdpipe::fuzzing::control(data));
#[cfg(not(fuzzing))]
fn main() {}
