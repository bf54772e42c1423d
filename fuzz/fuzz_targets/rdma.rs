//! The messages with which a peer sets up and renews a link: ports, pairs of ports, steps.
#![cfg_attr(fuzzing, no_main)]

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|data: &[u8]| rdpipe::fuzzing::rdma(data));
#[cfg(not(fuzzing))]
fn main() {}
