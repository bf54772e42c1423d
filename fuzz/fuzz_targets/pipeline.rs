//! Agents that send any messages, against the decisions of the controller.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| rdpipe::fuzzing::pipeline(data));
