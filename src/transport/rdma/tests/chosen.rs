//! What is found, and in which order it is offered.

use super::*;
use crate::transport::control::role::Role;

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
