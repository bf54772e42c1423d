//! Whole machines: what is found on them, what is chosen, and what is said.

use super::{
    ports::{
        choice::{DeviceChoice, NoRdma},
        device::Inventory,
        explain::networks_differ,
        fixtures::{FakeSystem, V1, V2, infiniband, roce},
        gid::GidKind,
        offer::{Candidate, MAX_OFFERS, Offers},
        rank::rank,
        sysfs::Roots,
    },
    verbs::queue_pair_config::QueuePairConfig,
};

mod chosen;
mod machine;
mod memory;
mod refused;

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
