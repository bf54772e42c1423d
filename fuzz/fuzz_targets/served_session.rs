//! A client of a server that sends valid messages in any order and goes: its session must end, with every thread of it.
#![cfg_attr(fuzzing, no_main)]

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|data: &[u8]| rdpipe::fuzzing::served_session(data));
#[cfg(not(fuzzing))]
fn main() {}
