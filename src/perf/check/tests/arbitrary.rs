//! No facts make a check panic: an agent sends whatever its host says.

use proptest::prelude::*;

use super::{
    super::{PairEnd, PairFacts, automatic_choice, check_host, check_pair},
    facts::{host, path, proof},
};
use crate::perf::messages::{DeviceFacts, HostFacts, MemlockFacts, PortFacts, PortPairProof};

fn word() -> impl Strategy<Value = String> {
    prop::sample::select(vec![
        "",
        "ACTIVE",
        "DOWN",
        "INIT",
        "InfiniBand",
        "Ethernet",
        "eth0",
        " on ",
        " on )",
        "ib_uverbs",
        "hpet",
        "powersave",
        "/dev/infiniband/uverbs0",
    ])
    .prop_map(str::to_owned)
}

fn maybe() -> impl Strategy<Value = Option<String>> {
    prop::option::of(word())
}

fn port_facts() -> impl Strategy<Value = PortFacts> {
    (
        any::<u8>(),
        word(),
        word(),
        maybe(),
        maybe(),
        prop::collection::vec(word(), 0..2),
    )
        .prop_map(
            |(number, state, link_layer, fault, netdev, gids)| PortFacts {
                number,
                state,
                link_layer,
                rate_mbps: 0,
                fault,
                netdev,
                gids,
            },
        )
}

fn device_facts() -> impl Strategy<Value = DeviceFacts> {
    (
        word(),
        any::<bool>(),
        maybe(),
        maybe(),
        prop::collection::vec(port_facts(), 0..3),
    )
        .prop_map(
            |(name, is_software, fault, forbidden_file, ports)| DeviceFacts {
                name,
                is_software,
                fault,
                forbidden_file,
                firmware: None,
                ports,
            },
        )
}

fn host_facts() -> impl Strategy<Value = HostFacts> {
    let memlock = (
        prop::option::of(any::<u64>()),
        any::<u64>(),
        any::<u64>(),
        any::<bool>(),
    );
    let devices = prop::collection::vec(device_facts(), 0..3);
    (any::<bool>(), maybe(), maybe(), maybe(), memlock, devices).prop_map(
        |(has_rdma_build, no_rdma, governor, clock_source, memlock, devices)| HostFacts {
            has_rdma_build,
            no_rdma,
            governor,
            clock_source,
            memlock: MemlockFacts {
                limit: memlock.0,
                needed: memlock.1,
                least: memlock.2,
                is_privileged: memlock.3,
            },
            devices,
            addresses: Vec::new(),
            ..host(1)
        },
    )
}

fn port_proof() -> impl Strategy<Value = PortPairProof> {
    let result = || prop_oneof![Just(Ok(1)), Just(Err("silent".to_owned()))];
    (
        word(),
        word(),
        any::<bool>(),
        any::<bool>(),
        any::<u16>(),
        result(),
        result(),
    )
        .prop_map(
            |(dialer_text, listener_text, shares_network, is_roce_v2, mtu, short, long)| {
                PortPairProof {
                    dialer_text,
                    listener_text,
                    shares_network,
                    is_roce_v2,
                    mtu,
                    short,
                    long,
                    ..proof()
                }
            },
        )
}

proptest! {
    #[test]
    fn any_facts_can_be_checked(
        hosts in (host_facts(), host_facts()),
        proofs in prop::collection::vec(port_proof(), 0..4),
        paths in ((any::<u32>(), any::<u32>()), (any::<u32>(), any::<u32>())),
        clock_difference_ms in prop::option::of(any::<i64>()),
        insists: bool,
    ) {
        let there = path("eth0", paths.0.0, paths.0.1);
        let back = path("eth0", paths.1.0, paths.1.1);
        let pair = PairFacts {
            dialer: PairEnd { name: "fs1", facts: &hosts.0 },
            listener: PairEnd { name: "fs2", facts: &hosts.1 },
            reached: Some(Ok("10.0.0.2:1")),
            reached_back: None,
            path: Some(&there),
            path_back: Some(&back),
            proofs: Some(Ok(&proofs)),
            ports: Some((0, u16::MAX)),
            clock_difference_ms,
        };
        let mut findings = check_pair(&pair, insists);
        findings.extend(check_host("fs1", &hosts.0, insists));
        let _ = automatic_choice(&pair);
        for finding in findings {
            prop_assert!(!finding.what.ends_with('.'));
        }
    }
}
