//! What comes out of an ssh session: a login shell's words, a greeting, an agent's messages.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| rdpipe::fuzzing::agent_messages(data));
