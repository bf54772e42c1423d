//! Bytes that a peer without the key sends to an open port: the acceptor must refuse them without a panic, and without
//! growing memory.
#![cfg_attr(fuzzing, no_main)]

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|data: &[u8]| rdpipe::fuzzing::handshake(data));
#[cfg(not(fuzzing))]
fn main() {}
