//! Facts: what an agent has found out about its host.

use serde::{Deserialize, Serialize};

use crate::ssh::protocol::AgentHello;

/// What an agent has found out about its host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct HostFacts {
    /// The name of the host, and its addresses.
    pub(crate) hello: AgentHello,
    /// The version of rdpipe.
    pub(crate) version: String,
    /// True if this rdpipe was built with RDMA.
    pub(crate) has_rdma_build: bool,
    /// The release of the kernel: `6.1.0-18-amd64`.
    pub(crate) kernel: String,
    /// The name of the processor.
    pub(crate) processor: String,
    /// The number of processors that this process may use.
    pub(crate) processors: u32,
    /// The scaling governor of the processors; none if the frequency is not scaled, or not by this kernel.
    pub(crate) governor: Option<String>,
    /// The clock source of the kernel: `tsc`, `kvm-clock`.
    pub(crate) clock_source: Option<String>,
    /// The time of the host's clock, in milliseconds since 1970.
    pub(crate) clock_ms: u64,
    /// How much memory may be pinned.
    pub(crate) memlock: MemlockFacts,
    /// The RDMA devices, usable or not.
    pub(crate) devices: Vec<DeviceFacts>,
    /// The reason why this host cannot use RDMA; none if it can.
    pub(crate) no_rdma: Option<String>,
    /// The interfaces with an address that other hosts may use.
    pub(crate) addresses: Vec<AddressFacts>,
}

/// How much memory may be pinned.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct MemlockFacts {
    /// The limit in bytes; none if there is none.
    pub(crate) limit: Option<u64>,
    /// What one end of a stream with the settings of the order pins, in bytes; 0 in a build without RDMA.
    pub(crate) needed: u64,
    /// The least that one end of a stream needs, in bytes; 0 in a build without RDMA.
    pub(crate) least: u64,
    /// True if the process is root's, with the right to pin any amount.
    pub(crate) is_privileged: bool,
}

/// One RDMA device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct DeviceFacts {
    /// The name: `mlx5_0`.
    pub(crate) name: String,
    /// True for a software device.
    pub(crate) is_software: bool,
    /// The reason why the device cannot be used, in words that follow its name; none if it can.
    pub(crate) fault: Option<String>,
    /// The device file that this user may not open; none if rights are no problem.
    pub(crate) forbidden_file: Option<String>,
    /// The version of the firmware, if the device has one.
    pub(crate) firmware: Option<String>,
    /// The ports, by number.
    pub(crate) ports: Vec<PortFacts>,
}

/// One port of an RDMA device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PortFacts {
    /// The number, from 1.
    pub(crate) number: u8,
    /// `ACTIVE` and others.
    pub(crate) state: String,
    /// `InfiniBand`, `Ethernet`, or what the kernel says.
    pub(crate) link_layer: String,
    /// The rate in Mbit/s; 0 if it is not known. Software devices always say 2,500.
    pub(crate) rate_mbps: u32,
    /// The reason why the port cannot be used, in words that follow its name; none if it can.
    pub(crate) fault: Option<String>,
    /// The network interface of the port: of Ethernet only, and only if it is known.
    pub(crate) netdev: Option<String>,
    /// The addresses that a peer may use, for the user: `GID 3 (RoCE v2, 10.1.0.5 on eth0), MTU 1024`.
    pub(crate) gids: Vec<String>,
}

/// An interface with an address.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct AddressFacts {
    /// The name of the interface.
    pub(crate) netdev: String,
    /// The address.
    pub(crate) address: std::net::IpAddr,
    /// The MTU of the interface in bytes; 0 if it is not known.
    pub(crate) mtu: u32,
    /// The rate of the interface in Mbit/s; none if the driver does not say it.
    pub(crate) rate_mbps: Option<u32>,
}
