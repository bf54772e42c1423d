//! Lines of `/proc/PID/stat`, whose names any local user chooses.
#![cfg_attr(fuzzing, no_main)]

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|data: &[u8]| rdpipe::fuzzing::proc_stat(data));
#[cfg(not(fuzzing))]
fn main() {}
