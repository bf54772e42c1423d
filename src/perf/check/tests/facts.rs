//! Facts about hosts on which nothing is wrong.

use crate::{
    perf::messages::{
        AddressFacts, DeviceFacts, HostFacts, MemlockFacts, PathResult, PortFacts, PortPairProof,
        ProbedSize, VerbsPort,
    },
    ssh::protocol::AgentHello,
};

/// A host with RDMA on which nothing is wrong.
pub(super) fn host(number: u8) -> HostFacts {
    HostFacts {
        hello: AgentHello {
            host: format!("fs{number}"),
            machine: format!("machine {number}"),
            addresses: vec![[10, 0, 0, number].into()],
        },
        version: "0.1.0".to_owned(),
        has_rdma_build: true,
        kernel: "6.1.0".to_owned(),
        processor: "A processor".to_owned(),
        processors: 8,
        governor: Some("performance".to_owned()),
        clock_source: Some("tsc".to_owned()),
        clock_ms: 1_700_000_000_000,
        memlock: MemlockFacts {
            limit: None,
            needed: 13_000_000,
            least: 151_552,
            is_privileged: false,
        },
        devices: vec![device(number)],
        no_rdma: None,
        addresses: vec![AddressFacts {
            netdev: "eth0".to_owned(),
            address: [10, 0, 0, number].into(),
            mtu: 1500,
            rate_mbps: Some(1000),
        }],
    }
}

/// A host without an RDMA device.
pub(super) fn host_without_devices(number: u8) -> HostFacts {
    HostFacts {
        devices: Vec::new(),
        no_rdma: Some("no RDMA device".to_owned()),
        ..host(number)
    }
}

/// A card with one port.
pub(super) fn device(number: u8) -> DeviceFacts {
    DeviceFacts {
        name: "mlx5_0".to_owned(),
        is_software: false,
        fault: None,
        forbidden_file: None,
        firmware: Some("16.35.2000".to_owned()),
        ports: vec![port(number)],
    }
}

/// A RoCE port.
pub(super) fn port(number: u8) -> PortFacts {
    PortFacts {
        number: 1,
        state: "ACTIVE".to_owned(),
        link_layer: "Ethernet".to_owned(),
        rate_mbps: 100_000,
        fault: None,
        netdev: Some("eth1".to_owned()),
        gids: vec![format!(
            "GID 3 (RoCE v2, 10.1.0.{number} on eth1), MTU 4096"
        )],
    }
}

/// A path through an interface, over which packets of at most `largest` bytes arrive.
pub(super) fn path(netdev: &str, mtu: u32, largest: u32) -> PathResult {
    let sizes = [576, 1500, 4192, 9000];
    let sizes = sizes.into_iter().chain([largest]);
    let mut sizes: Vec<u32> = sizes.filter(|size| (1..=mtu).contains(size)).collect();
    sizes.sort_unstable();
    sizes.dedup();
    let probe = |bytes| ProbedSize {
        bytes,
        sent: 4,
        arrived: if bytes <= largest { 4 } else { 0 },
    };
    PathResult {
        mtu: Some(mtu),
        netdev: Some(netdev.to_owned()),
        probes: sizes.into_iter().map(probe).collect(),
    }
}

/// A pair of RoCE ports over which all messages travel.
pub(super) fn proof() -> PortPairProof {
    let port = || VerbsPort {
        device: "mlx5_0".to_owned(),
        port: 1,
        gid_index: 3,
    };
    let text = |number| format!("mlx5_0 port 1, GID 3 (RoCE v2, 10.1.0.{number} on eth1)");
    PortPairProof {
        dialer: port(),
        dialer_text: text(1),
        listener: port(),
        listener_text: text(2),
        shares_network: true,
        is_roce_v2: true,
        mtu: 4096,
        limits: None,
        short: Ok(5_000),
        long: Ok(20_000),
    }
}
