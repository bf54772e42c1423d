//! What the kernel tells of processes, the test's own above all, and of itself.

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
    status_kib("self", "RssAnon:") << 10
}

/// Memory that this process has registered with devices, in bytes.
pub(crate) fn pinned_bytes() -> u64 {
    status_kib("self", "VmPin:") << 10
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
    kib_in("/proc/meminfo", "SUnreclaim:") << 10
}

/// A number of KiB in the status of a process, `self` or its number.
pub(crate) fn status_kib(process: &str, name: &str) -> u64 {
    kib_in(&format!("/proc/{process}/status"), name)
}

/// What stands behind `name` in a text of lines.
pub(crate) fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let mut lines = text.lines();
    lines
        .find_map(|line| line.strip_prefix(name))
        .map(str::trim)
}

fn kib_in(path: &str, name: &str) -> u64 {
    let text = fs::read_to_string(path).expect("this is Linux, and the process runs");
    let kib = field(&text, name).and_then(|kib| kib.strip_suffix(" kB"));
    kib.expect("the kernel counts").parse().expect("a number")
}

fn entries(path: &str) -> usize {
    fs::read_dir(path).expect("this is Linux").count()
}
