//! Agents that send any messages, against the decisions of the controller.
#![cfg_attr(fuzzing, no_main)]

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|data: &[u8]| rdpipe::fuzzing::pipeline(data));
#[cfg(not(fuzzing))]
fn main() {}
