//! Lines of `/proc/PID/stat`, whose names any local user chooses.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| rdpipe::fuzzing::proc_stat(data));
