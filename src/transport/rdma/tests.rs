//! Whole machines: what is found on them, what is chosen, and what is said.

#[cfg(feature = "fault-injection")]
mod counts;
mod memory;

use super::{
    ports::{
        device::{Inventory, Roots},
        fixtures::{FakeSystem, V1, V2, infiniband, roce},
        network::GidKind,
        offer::{Candidate, DeviceChoice, MAX_OFFERS, NoRdma, Offers, networks_differ},
        proposal::rank,
    },
    verbs::queue_pair::QueuePairConfig,
};
use crate::transport::{control::noise::Role, rdma::ports::device::MTUS};

const EDR: &str = "100 Gb/sec (4X EDR)";

/// Two ports, one of each kind, as a VPI card has them.
fn dual_port() -> FakeSystem {
    let tree = FakeSystem::new();
    tree.hardware("mlx5_0");
    tree.port("mlx5_0", 1, "InfiniBand", "200 Gb/sec (4X HDR)");
    tree.gid("mlx5_0", 1, 0, "fe80::e41d:2d03:1", V1, "");
    tree.gid("mlx5_0", 1, 1, "fe80::e41d:2d03:99", V1, "");
    tree.port("mlx5_0", 2, "Ethernet", EDR);
    roce_gids(&tree, "mlx5_0", 2);
    tree
}

/// The usual six: each address under both versions, link-local ones first.
fn roce_gids(tree: &FakeSystem, device: &str, port: u8) {
    let addresses = ["fe80::1", "::ffff:10.1.0.5", "fd00::5"];
    for (slot, address) in (0..).zip(addresses) {
        tree.gid(device, port, 2 * slot, address, V1, "eth0");
        tree.gid(device, port, 2 * slot + 1, address, V2, "eth0");
    }
    tree.netdev("eth0", 9000);
    tree.routes(&[("eth0", [10, 1, 0, 0], 24)]);
}

fn all(tree: &FakeSystem) -> Vec<Candidate> {
    let choice = DeviceChoice::default();
    choice.candidates(&tree.inventory()).unwrap()
}

fn chosen(tree: &FakeSystem) -> Vec<String> {
    all(tree).iter().map(Candidate::to_string).collect()
}

fn refusal(tree: &FakeSystem, choice: &DeviceChoice) -> String {
    choice
        .candidates(&tree.inventory())
        .unwrap_err()
        .to_string()
}

fn why_not(tree: &FakeSystem) -> String {
    refusal(tree, &DeviceChoice::default())
}

/// Returns the first usable port of this machine, or `None`, and prints why, if there is none.
pub(super) fn config() -> Option<QueuePairConfig> {
    let inventory = Inventory::read(&Roots::default());
    let candidate = match DeviceChoice::default().candidates(&inventory) {
        Ok(mut candidates) => candidates.remove(0),
        Err(reason) => {
            let required = std::env::var_os("RDPIPE_REQUIRE_RDMA").is_some();
            assert!(!required, "{reason}");
            eprintln!("SKIPPED: {reason}");
            return None;
        }
    };
    Some(QueuePairConfig {
        device: candidate.device.clone(),
        port: candidate.port,
        gid_index: usize::from(candidate.gid_index),
        mtu: 1024,
        send_psn: 7,
        receive_psn: 7,
        depth: 4,
        traffic_class: 0,
        service_level: 0,
        pkey_index: 0,
    })
}

#[test]
fn each_port_gives_its_best_address_before_any_gives_its_second() {
    let tree = dual_port();
    assert_eq!(
        chosen(&tree),
        [
            "mlx5_0 port 1, GID 0 (InfiniBand, fe80::e41d:2d03:1)",
            "mlx5_0 port 2, GID 3 (RoCE v2, 10.1.0.5 on eth0)",
            "mlx5_0 port 2, GID 5 (RoCE v2, fd00::5 on eth0)",
            "mlx5_0 port 2, GID 1 (RoCE v2, fe80::1 on eth0)",
            "mlx5_0 port 2, GID 2 (RoCE v1, 10.1.0.5 on eth0)",
            "mlx5_0 port 2, GID 4 (RoCE v1, fd00::5 on eth0)",
            "mlx5_0 port 2, GID 0 (RoCE v1, fe80::1 on eth0)",
        ]
    );
    let candidates = all(&tree);
    let [infiniband, roce] = [&candidates[0].offer, &candidates[1].offer];
    assert_eq!(
        (infiniband.rate_mbps, infiniband.lid, infiniband.mtu),
        (200_000, 0x1f, 2048)
    );
    assert_eq!((roce.rate_mbps, roce.lid, roce.mtu), (100_000, 0, 4096));
    assert_eq!((infiniband.prefix, roce.prefix), (None, Some(24)));
    assert!(!infiniband.software && !roce.software);
    assert_eq!(tree.inventory().devices[0].ports[0].pkeys, 1);
}

#[test]
fn an_infiniband_port_needs_no_gid_attributes() {
    let tree = FakeSystem::new();
    tree.hardware("ib0");
    tree.port("ib0", 1, "InfiniBand", EDR);
    tree.gid("ib0", 1, 0, "fe80::1", "", "");
    assert_eq!(chosen(&tree), ["ib0 port 1, GID 0 (InfiniBand, fe80::1)"]);
}

#[test]
fn a_bond_and_a_vlan_have_addresses_of_their_own() {
    let tree = FakeSystem::new();
    tree.hardware("mlx5_bond_0");
    tree.port("mlx5_bond_0", 1, "Ethernet", EDR);
    tree.gid("mlx5_bond_0", 1, 3, "::ffff:10.1.0.5", V2, "bond0");
    tree.gid("mlx5_bond_0", 1, 5, "::ffff:10.100.0.5", V2, "bond0.100");
    tree.netdev("bond0", 9000);
    tree.netdev("bond0.100", 1500);
    tree.routes(&[
        ("bond0", [10, 1, 0, 0], 16),
        ("bond0.100", [10, 100, 0, 0], 24),
    ]);
    let found: Vec<_> = all(&tree)
        .into_iter()
        .map(|c| (c.gid_index, c.netdev.unwrap(), c.offer.prefix, c.offer.mtu))
        .collect();
    assert_eq!(
        found,
        [
            (3, "bond0".to_owned(), Some(16), 4096),
            (5, "bond0.100".to_owned(), Some(24), 1024),
        ]
    );
}

#[cfg(feature = "cli")]
#[test]
fn the_drivers_of_the_devices_are_known_by_those_of_the_kernel() {
    let tree = FakeSystem::new();
    for (device, driver) in [
        ("mlx5_0", "mlx5_core"),
        ("rocep1s0", "bnxt_en"),
        ("new0", "newest"),
    ] {
        tree.hardware(device);
        tree.driver(device, driver);
    }
    tree.hardware("without_link");
    tree.rxe("rxe0", "eth0");
    let drivers: Vec<_> = tree.inventory().drivers(&tree.roots()).collect();
    assert_eq!(drivers, ["mlx5", "bnxt_re", "rxe"]);
}

#[test]
fn software_is_known_by_its_parent_or_its_place_and_comes_last() {
    let tree = dual_port();
    for (name, netdev, ip) in [
        ("rxe0", "d0", "::ffff:10.99.0.1"),
        ("named_by_udev", "d1", "::ffff:10.98.0.1"),
    ] {
        tree.rxe(name, netdev);
        tree.port(name, 1, "Ethernet", "400 Gb/sec (4X NDR)");
        tree.gid(name, 1, 1, ip, V2, netdev);
    }
    tree.remove("sys/class/infiniband/named_by_udev/parent");
    // As older kernels place rxe: below the network card.
    tree.hardware("rxe9");
    tree.write("sys/class/infiniband/rxe9/parent", "eth9\n");

    let inventory = tree.inventory();
    let kinds: Vec<_> = inventory
        .devices
        .iter()
        .map(|d| (d.name.as_str(), d.software))
        .collect();
    assert_eq!(
        kinds,
        [
            ("mlx5_0", false),
            ("named_by_udev", true),
            ("rxe0", true),
            ("rxe9", true)
        ]
    );
    let order: Vec<_> = all(&tree).into_iter().map(|c| c.device).collect();
    assert_eq!(order[..4], ["mlx5_0", "mlx5_0", "named_by_udev", "rxe0"]);
}

#[test]
fn an_interface_that_is_out_of_sight_gets_the_mtu_that_always_works() {
    let tree = FakeSystem::new();
    tree.hardware("mlx5_0");
    tree.port("mlx5_0", 1, "Ethernet", EDR);
    tree.gid("mlx5_0", 1, 1, "::ffff:10.1.0.5", V2, "elsewhere");
    tree.gid("mlx5_0", 1, 2, "::ffff:10.1.0.6", V2, "");
    let found: Vec<_> = all(&tree)
        .iter()
        .map(|c| (c.offer.mtu, c.offer.prefix))
        .collect();
    assert_eq!(found, [(1024, None), (1024, None)]);
}

#[test]
fn a_gid_table_is_read_up_to_many_empty_entries() {
    let tree = FakeSystem::new();
    tree.hardware("mlx5_0");
    tree.port("mlx5_0", 1, "Ethernet", EDR);
    for index in [0, 16, 32, 49] {
        tree.gid("mlx5_0", 1, index, "::ffff:10.1.0.5", V2, "eth0");
    }
    let gids = &tree.inventory().devices[0].ports[0].gids;
    let read: Vec<_> = gids.iter().map(|entry| entry.index).collect();
    assert_eq!(
        read,
        [0, 16, 32],
        "16 empty entries come before the last one"
    );
}

#[test]
fn malformed_files_are_missing_files() {
    let tree = dual_port();
    tree.write("sys/class/infiniband/stray_file", "");
    tree.write("sys/class/infiniband/mlx5_0/ports/x/state", "4: ACTIVE\n");
    tree.set("mlx5_0", 1, "gids/0", "not:a:gid");
    tree.set("mlx5_0", 1, "lid", "0xfffff");
    tree.set("mlx5_0", 2, "rate", "very fast");
    tree.set("mlx5_0", 2, "gid_attrs/types/3", "RoCE v9");
    tree.set("mlx5_0", 2, "pkeys/none", "0xffff");
    tree.write("sys/class/net/eth0/mtu", "large\n");
    let candidates = all(&tree);
    let best = &candidates[0];
    assert_eq!((best.port, best.gid_index), (2, 5));
    assert_eq!((best.offer.rate_mbps, best.offer.mtu), (0, 1024));
    assert!(
        candidates
            .iter()
            .all(|c| c.offer.kind != GidKind::InfiniBand)
    );
    let ports = &tree.inventory().devices[0].ports;
    assert_eq!((ports.len(), ports[0].lid), (2, 0));
    assert_eq!(ports[1].pkeys, 1);

    tree.set("mlx5_0", 2, "link_layer", "Carrier Pigeon");
    tree.set("mlx5_0", 1, "state", "1: DOWN");
    assert_eq!(
        why_not(&tree),
        "device mlx5_0 port 1 is DOWN (set its network interface up, or see to the cable); device mlx5_0 port 2 is neither InfiniBand nor Ethernet"
    );
}

#[test]
fn the_user_may_choose() {
    let tree = dual_port();
    let inventory = tree.inventory();
    let choose = |device: Option<&str>, port, gid_index| {
        let device = device.map(str::to_owned);
        let choice = DeviceChoice {
            device,
            port,
            gid_index,
            pkey_index: 0,
        };
        let candidates = choice.candidates(&inventory)?;
        Ok(candidates
            .iter()
            .map(|c| (c.port, c.gid_index))
            .collect::<Vec<_>>())
    };
    assert_eq!(choose(None, Some(1), None), Ok(vec![(1, 0)]));
    assert_eq!(choose(Some("mlx5_0"), Some(2), Some(4)), Ok(vec![(2, 4)]));
    assert_eq!(choose(None, None, Some(1)), Ok(vec![(1, 1), (2, 1)]));

    let error = |text: &str| Err(NoRdma::Choice(text.to_owned()));
    assert_eq!(
        choose(Some("mlx5_9"), None, None),
        error(
            "there is no RDMA device mlx5_9; there is: mlx5_0 port 1 (InfiniBand, ACTIVE), mlx5_0 port 2 (Ethernet, ACTIVE)"
        )
    );
    assert_eq!(
        choose(Some("mlx5_0"), Some(1), Some(7)),
        error(
            "there is no GID with index 7; there is: 0 on mlx5_0 port 1 (InfiniBand, fe80::e41d:2d03:1), 1 on mlx5_0 port 1 (InfiniBand, fe80::e41d:2d03:99)"
        )
    );
    let third = DeviceChoice {
        port: Some(3),
        ..DeviceChoice::default()
    };
    assert!(
        refusal(&tree, &third)
            .starts_with("there is no RDMA device with a port 3; there is: mlx5_0 port 1")
    );
    assert_eq!(
        refusal(&FakeSystem::new(), &third),
        "there is no RDMA device with a port 3, nor any other"
    );
}

#[test]
fn a_large_machine_offers_every_port() {
    let tree = FakeSystem::new();
    for n in 0..10 {
        let name = format!("mlx5_{n}");
        tree.hardware(&name);
        tree.port(&name, 1, "Ethernet", EDR);
        roce_gids(&tree, &name, 1);
    }
    let candidates = all(&tree);
    assert_eq!(candidates.len(), MAX_OFFERS);
    let first: Vec<_> = candidates[..10].iter().map(|c| c.device.as_str()).collect();
    let names: Vec<_> = (0..10).map(|n| format!("mlx5_{n}")).collect();
    assert_eq!(first, names);
}

#[test]
fn two_machines_find_their_best_pair() {
    let (here, there) = (dual_port(), FakeSystem::new());
    there.hardware("mlx5_1");
    there.port("mlx5_1", 1, "Ethernet", EDR);
    there.gid("mlx5_1", 1, 0, "fe80::2", V2, "eth1");
    there.gid("mlx5_1", 1, 1, "::ffff:10.1.0.9", V2, "eth1");
    there.netdev("eth1", 1500);
    there.routes(&[("eth1", [10, 1, 0, 0], 24)]);
    let (ours, theirs) = (all(&here), all(&there));
    let offers = Offers::of(&theirs);
    let pairs = rank(Role::Dialer, &ours, offers.as_slice());
    let named: Vec<_> = pairs
        .iter()
        .map(|&(i, j)| (ours[i].gid_index, theirs[j].gid_index))
        .collect();
    assert_eq!(named, [(3, 1), (1, 0)]);
    assert_eq!(
        ours[pairs[0].0].path_mtu(&offers.as_slice()[pairs[0].1]),
        1024
    );
}

#[test]
fn a_port_that_cannot_be_used_says_why() {
    assert_eq!(why_not(&FakeSystem::new()), "no RDMA device");

    let tree = FakeSystem::new();
    tree.hardware("mlx5_0");
    tree.port("mlx5_0", 1, "Ethernet", EDR);
    roce_gids(&tree, "mlx5_0", 1);
    for (state, reason) in [
        (
            "1: DOWN",
            "device mlx5_0 port 1 is DOWN (set its network interface up, or see to the cable)",
        ),
        (
            "2: INIT",
            "device mlx5_0 port 1 is INIT (no subnet manager has set it up)",
        ),
        ("garbage", "device mlx5_0 port 1 has no readable state"),
    ] {
        tree.set("mlx5_0", 1, "state", state);
        assert_eq!(why_not(&tree), reason);
    }

    tree.hardware("irdma0");
    tree.write("sys/class/infiniband/irdma0/node_type", "4: RNIC\n");
    for port in [1, 2] {
        tree.port("irdma0", port, "Ethernet", EDR);
    }
    tree.set("mlx5_0", 1, "state", "1: DOWN");
    assert_eq!(
        why_not(&tree),
        "irdma0 is iWARP, which rdpipe does not use; device mlx5_0 port 1 is DOWN (set its network interface up, or see to the cable)"
    );
}

#[test]
fn many_reasons_are_cut_short() {
    let tree = FakeSystem::new();
    for n in 0..8 {
        let name = format!("mlx5_{n}");
        tree.hardware(&name);
        tree.port(&name, 1, "InfiniBand", EDR);
        tree.set(&name, 1, "state", "1: DOWN");
    }
    assert!(why_not(&tree).ends_with("device mlx5_3 port 1 is DOWN (set its network interface up, or see to the cable); and so on for 4 more"));
}

#[test]
fn a_device_that_programs_cannot_open_says_why() {
    let tree = dual_port();
    tree.remove("dev/infiniband/uverbs_mlx5_0");
    assert_eq!(
        why_not(&tree),
        "mlx5_0 has no /dev/infiniband/uverbs_mlx5_0 (in a container, pass it in)"
    );
    tree.remove("sys/class/infiniband_verbs/uverbs_mlx5_0/ibdev");
    assert_eq!(
        why_not(&tree),
        "mlx5_0 is closed to programs (load the kernel module ib_uverbs)"
    );
}

#[test]
fn types_without_reliable_queue_pairs_are_left_alone() {
    let tree = dual_port();
    for (node_type, reason) in [
        (
            "6: usNIC UDP\n",
            "mlx5_0 is of type usNIC UDP, which rdpipe does not use",
        ),
        (
            "7: unspecified\n",
            "mlx5_0 is of type unspecified, which rdpipe does not use",
        ),
        (
            "\u{0}\u{1}",
            "mlx5_0 is of type unknown, which rdpipe does not use",
        ),
    ] {
        tree.write("sys/class/infiniband/mlx5_0/node_type", node_type);
        assert_eq!(why_not(&tree), reason);
    }
}

#[test]
fn loopback_and_empty_slots_are_no_addresses() {
    let tree = FakeSystem::new();
    tree.rxe("rxe0", "lo");
    tree.port("rxe0", 1, "Ethernet", "2.5 Gb/sec (1X SDR)");
    tree.gid("rxe0", 1, 0, "::ffff:127.0.0.1", V2, "lo");
    assert_eq!(
        why_not(&tree),
        "device rxe0 port 1 has no address (give its network interface one)"
    );
}

#[test]
fn a_chosen_port_that_is_down_is_no_mistake_in_the_choice() {
    let tree = dual_port();
    tree.set("mlx5_0", 2, "state", "1: DOWN");
    tree.set("mlx5_0", 2, "phys_state", "3: Disabled");
    let choice = DeviceChoice {
        port: Some(2),
        ..DeviceChoice::default()
    };
    assert_eq!(
        choice.candidates(&tree.inventory()),
        Err(NoRdma::Unusable(
            "device mlx5_0 port 2 is DOWN (set its network interface up, or see to the cable)"
                .to_owned()
        ))
    );
    let nowhere = DeviceChoice {
        device: Some("x".to_owned()),
        ..DeviceChoice::default()
    };
    assert!(refusal(&tree, &nowhere).ends_with("mlx5_0 port 2 (Ethernet, DOWN, Disabled)"));
}

#[test]
fn different_networks_are_named() {
    let differ = |ours: &[Candidate], theirs: &[Candidate]| {
        networks_differ(ours, Offers::of(theirs).as_slice())
    };
    let here = [roce("10.1.0.5"), roce("10.1.0.6"), roce("fe80::1")];
    assert_eq!(
        differ(&here, &[roce("10.2.0.5")]),
        "the hosts' RDMA networks differ (10.1.0.0/24 here, 10.2.0.0/24 there): put a port of each into one"
    );
    assert_eq!(
        differ(&here, &[infiniband(1), roce("fd00::1")]),
        "the hosts' RDMA networks differ (10.1.0.0/24 here, InfiniBand subnet fe80000000000000 and fd00::/64 there): put a port of each into one"
    );
    let mut unknown = roce("10.1.0.5");
    (unknown.offer.prefix, unknown.offer.kind) = (None, GidKind::RoceV1);
    assert_eq!(
        differ(&[unknown], &[roce("fe80::1")]),
        "the hosts' RDMA networks differ (10.1.0.5 by RoCE v1 here, fe80::/64 there): put a port of each into one"
    );
    assert_eq!(
        differ(&[infiniband(1)], &[infiniband(2)]),
        "no message crosses the hosts' RDMA networks (InfiniBand subnet fe80000000000000 on both): join them"
    );
}

#[test]
fn the_ports_of_this_machine_are_found() {
    let inventory = Inventory::read(&Roots::default());
    let candidates = match DeviceChoice::default().candidates(&inventory) {
        Ok(candidates) => candidates,
        Err(reason) => {
            assert!(
                std::env::var_os("RDPIPE_REQUIRE_RDMA").is_none(),
                "{reason}"
            );
            eprintln!("SKIPPED: {reason}");
            return;
        }
    };
    for candidate in &candidates {
        eprintln!("{candidate}: {:?}", candidate.offer);
        assert!(MTUS.contains(&candidate.offer.mtu));
    }
    // scripts/guest says what its guests have.
    if std::env::var("RDPIPE_RIG").is_ok_and(|rig| rig.starts_with("guest")) {
        let first: Vec<_> = candidates
            .iter()
            .take(2)
            .map(Candidate::to_string)
            .collect();
        let expected = [
            "rxe0 port 1, GID 1 (RoCE v2, 10.99.0.1 on d0)",
            "rxe1 port 1, GID 1 (RoCE v2, 10.98.0.1 on d1)",
        ];
        assert_eq!(first, expected);
        let offer = &candidates[0].offer;
        assert!(offer.software);
        assert_eq!(
            (offer.prefix, offer.mtu, offer.rate_mbps),
            (Some(24), 4096, 2_500)
        );
    }
}
