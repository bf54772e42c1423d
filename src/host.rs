//! The name and the identity of this host.

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
