//! The bytes of a controller, from its greeting on, as an agent reads them.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| rdpipe::fuzzing::controller(data));
