//! Bytes that a peer without the key sends to an open port: the acceptor must refuse them without a panic, and without
//! growing memory.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| rdpipe::fuzzing::handshake(data));
