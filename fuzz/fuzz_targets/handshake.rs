//! What a stranger may send to an open port: the acceptor must refuse it, and neither panic nor grow.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| rdpipe::fuzzing::handshake(data));
