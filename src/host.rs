//! The name and the identity of this host, and how many streams suit it.

use std::fs;

/// Returns this host's own name, as `uname -n` prints it. Messages to users and peers contain this name.
pub(crate) fn host_name() -> String {
    rustix::system::uname()
        .nodename()
        .to_string_lossy()
        .into_owned()
}

/// Returns the identity of the network stack: the id of the kernel's boot and the network namespace. Two processes
/// with the same one reach each other at 127.0.0.1. If the system does not show both, the identity is unique to this
/// process.
pub(crate) fn machine() -> String {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id");
    let network = fs::read_link("/proc/self/ns/net");
    match (boot, network) {
        (Ok(boot), Ok(network)) => format!("{} {}", boot.trim(), network.display()),
        _ => format!("process {}", std::process::id()),
    }
}

/// Returns the number of streams that suit one transfer on this host, where more streams use more processors: half of
/// the processors that this process may use, because the programs at both ends of the streams need some too. Where the
/// host has RDMA devices, it is at most the number of streams whose pools fit under the memlock limit. At least 1.
#[cfg(feature = "cli")]
pub(crate) fn streams() -> u16 {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let most = (processors / 2).min(pinnable());
    u16::try_from(most).unwrap_or(u16::MAX).max(1)
}

/// Returns how many streams can pin as much memory as one of them may.
#[cfg(all(feature = "cli", feature = "rdma"))]
fn pinnable() -> usize {
    let devices = fs::read_dir("/sys/class/infiniband");
    if !devices.is_ok_and(|mut devices| devices.next().is_some()) {
        return usize::MAX;
    }
    let memlock = crate::transport::Memlock::now();
    let left = memlock
        .limit
        .map(|limit| limit.saturating_sub(memlock.pinned));
    left.map_or(usize::MAX, |left| {
        usize::try_from(left / memlock.cap).unwrap_or(usize::MAX)
    })
}

/// Returns how many streams can pin memory: without RDMA none pins any.
#[cfg(all(feature = "cli", not(feature = "rdma")))]
fn pinnable() -> usize {
    usize::MAX
}
