//! The bytes of an agent, from its greeting on: they mean the same however they are cut, and no more of them are kept
//! than one message may have.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| rdpipe::fuzzing::session(data));
