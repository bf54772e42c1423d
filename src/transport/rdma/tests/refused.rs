//! What is said when nothing can be used.

use super::*;

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
