//! What a peer says to set up and to renew a link: ports, pairs of ports, steps.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| rdpipe::fuzzing::rdma(data));
