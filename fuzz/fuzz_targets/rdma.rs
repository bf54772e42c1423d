//! The messages with which a peer sets up and renews a link: ports, pairs of ports, steps.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| rdpipe::fuzzing::rdma(data));
