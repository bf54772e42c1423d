//! The threads, descriptors and memory of this process, from /proc.

use std::fs;

/// Returns the number of threads of this process.
pub(crate) fn threads() -> usize {
    entries("/proc/self/task")
}

/// Returns the number of open descriptors of this process.
pub(crate) fn descriptors() -> usize {
    // Every count includes the descriptor that reads the directory.
    entries("/proc/self/fd")
}

/// Returns the resident memory that this process has written to, in bytes. The pages of the program file do not
/// count.
pub(crate) fn resident_bytes() -> u64 {
    status_bytes("RssAnon:")
}

/// Returns the memory that this process has registered with devices, in bytes.
pub(crate) fn pinned_bytes() -> u64 {
    status_bytes("VmPin:")
}

/// Returns the number of objects in use of a cache of the kernel, or `None` if this user may not read it: only root
/// may.
pub(crate) fn slab_objects(cache: &str) -> Option<u64> {
    let caches = fs::read_to_string("/proc/slabinfo").ok()?;
    caches.lines().find_map(|line| {
        let mut fields = line.split_whitespace();
        let active = (fields.next()? == cache).then(|| fields.next());
        active??.parse().ok()
    })
}

/// Returns the memory in the caches of the kernel that it cannot reclaim, in bytes.
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
