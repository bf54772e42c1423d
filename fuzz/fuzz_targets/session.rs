//! The bytes of an agent, from its greeting on: they mean the same however they are cut, and no more of them are kept
//! than one message may have.
#![cfg_attr(fuzzing, no_main)]

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|data: &[u8]| rdpipe::fuzzing::session(data));
#[cfg(not(fuzzing))]
fn main() {}
