//! The output of an ssh session (lines of a login shell, a greeting, messages of an agent): any bytes at all must be
//! parsed or refused.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| rdpipe::fuzzing::agent_messages(data));
