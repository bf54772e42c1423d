//! The output of an ssh session (lines of a login shell, a greeting, messages of an agent): any bytes at all must be
//! parsed or refused.
#![cfg_attr(fuzzing, no_main)]

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|data: &[u8]| rdpipe::fuzzing::agent_messages(data));
#[cfg(not(fuzzing))]
fn main() {}
