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
    status_bytes("RssAnon:")
}

/// Memory that is registered with devices, in bytes.
pub(crate) fn pinned_bytes() -> u64 {
    status_bytes("VmPin:")
}

/// Objects in use of one of the kernel's caches; only root is told.
pub(crate) fn slab_objects(cache: &str) -> Option<u64> {
    let caches = fs::read_to_string("/proc/slabinfo").ok()?;
    caches.lines().find_map(|line| {
        let mut fields = line.split_whitespace();
        let active = (fields.next()? == cache).then(|| fields.next());
        active??.parse().ok()
    })
}

/// What the kernel holds in its caches and cannot give back, in bytes.
pub(crate) fn slab_bytes() -> u64 {
    bytes_in("/proc/meminfo", "SUnreclaim:")
}

fn status_bytes(name: &str) -> u64 {
    bytes_in("/proc/self/status", name)
}

fn bytes_in(path: &str, name: &str) -> u64 {
    let status = fs::read_to_string(path).expect("this is Linux");
    let line = status.lines().find(|line| line.starts_with(name));
    let kib = line.and_then(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok());
    kib.expect("it is a number of kB") << 10
}

fn entries(path: &str) -> usize {
    fs::read_dir(path).expect("this is Linux").count()
}
