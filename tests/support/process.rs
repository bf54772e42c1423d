//! What the kernel reports about processes, above all about the test's own process, and about itself.

use std::fs;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

pub(crate) fn threads() -> usize {
    entries("/proc/self/task")
}

/// Returns the number of open descriptors of this process.
pub(crate) fn descriptors() -> usize {
    // Every count includes the descriptor that reads the directory.
    entries("/proc/self/fd")
}

/// Raises the limit of open descriptors of this process as far as it may, and returns it.
pub(crate) fn raise_descriptor_limit() -> u64 {
    let maximum = getrlimit(Resource::Nofile).maximum;
    let raised = Rlimit {
        current: maximum,
        maximum,
    };
    setrlimit(Resource::Nofile, raised).expect("every process may raise it up to its hard limit");
    maximum.unwrap_or(u64::MAX)
}

/// Returns the resident memory that this process has written to, in bytes. The pages of the program file do not
/// count.
pub(crate) fn resident_bytes() -> u64 {
    status_kib("self", "RssAnon:") << 10
}

/// Returns the memory that this process has registered with devices, in bytes.
pub(crate) fn pinned_bytes() -> u64 {
    status_kib("self", "VmPin:") << 10
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
