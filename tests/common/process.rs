//! What this process holds, from /proc.

use std::fs;

/// Threads of this process.
pub(crate) fn threads() -> usize {
    entries("/proc/self/task")
}

/// Open descriptors of this process.
pub(crate) fn descriptors() -> usize {
    // The one that reads the directory is there at every count.
    entries("/proc/self/fd")
}

/// Resident memory that this process has written to, in bytes: not the pages of the program that
/// happen to have been looked at.
pub(crate) fn resident_bytes() -> u64 {
    let status = fs::read_to_string("/proc/self/status").expect("this is Linux");
    let line = status.lines().find(|line| line.starts_with("RssAnon:"));
    let kib = line.and_then(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok());
    kib.expect("RssAnon is a number of kB") << 10
}

fn entries(path: &str) -> usize {
    fs::read_dir(path).expect("this is Linux").count()
}
