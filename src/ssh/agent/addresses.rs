//! The name, the addresses and the identity of this host.

use std::fs;

use crate::{host::host_name, reach, ssh::protocol::AgentHello};

/// Returns the first message of an agent on this host.
pub(crate) fn hello() -> AgentHello {
    AgentHello {
        host: host_name(),
        machine: machine(),
        addresses: reach::addresses(),
    }
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

#[cfg(test)]
mod tests {
    #[test]
    fn a_host_has_a_name_and_an_identity_that_stays_the_same() {
        let hello = super::hello();
        assert_eq!(hello.machine, super::hello().machine);
        assert!(hello.machine.contains("net:["), "{}", hello.machine);
        assert!(!hello.host.is_empty());
    }
}
