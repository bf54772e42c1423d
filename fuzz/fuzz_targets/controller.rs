//! The bytes of a controller, from its greeting on, as an agent reads them.
#![cfg_attr(fuzzing, no_main)]

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|data: &[u8]| rdpipe::fuzzing::controller(data));
#[cfg(not(fuzzing))]
fn main() {}
