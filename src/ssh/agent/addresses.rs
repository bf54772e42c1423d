//! What tells this host from others.

use std::fs;

use crate::{host::host_name, reach, ssh::protocol::AgentHello};

/// What an agent on this host says first.
pub(super) fn hello() -> AgentHello {
    AgentHello {
        host: host_name(),
        machine: machine(),
        addresses: reach::addresses(),
    }
}

/// The same for two processes if they share a network stack: the kernel's boot and the network
/// namespace. Where the system does not tell, it is this process's alone.
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
    fn a_host_knows_itself() {
        let hello = super::hello();
        assert_eq!(hello.machine, super::hello().machine);
        assert!(hello.machine.contains("net:["), "{}", hello.machine);
        assert!(!hello.host.is_empty());
    }
}
