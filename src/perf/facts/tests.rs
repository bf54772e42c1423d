//! Facts about hosts that are trees in a temporary directory.

use std::{fs, path::Path};

use tempfile::TempDir;

use super::*;
use crate::perf::messages::DeviceFacts;

/// The tree of a host.
struct FactsTree(TempDir);

impl FactsTree {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.0.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, format!("{text}\n")).unwrap();
    }

    /// Adds an rxe device over an interface, with one address.
    fn rxe(&self, device: &str, netdev: &str, state: &str) {
        let class = format!("sys/class/infiniband/{device}");
        self.write(&format!("{class}/node_type"), "1: CA");
        self.write(&format!("{class}/parent"), netdev);
        self.write(&format!("{class}/fw_ver"), "");
        let port = format!("{class}/ports/1");
        for (name, text) in [
            ("state", state),
            ("link_layer", "Ethernet"),
            ("rate", "2.5 Gb/sec (1X SDR)"),
            ("gids/0", "0000:0000:0000:0000:0000:ffff:0a01:0005"),
            ("gid_attrs/types/0", "RoCE v2"),
            ("gid_attrs/ndevs/0", netdev),
        ] {
            self.write(&format!("{port}/{name}"), text);
        }
        let verbs = format!("sys/class/infiniband_verbs/uverbs_{device}/ibdev");
        self.write(&verbs, device);
        self.write(&format!("dev/infiniband/uverbs_{device}"), "");
        self.write(&format!("sys/class/net/{netdev}/mtu"), "1500");
    }

    fn facts(&self) -> HostFacts {
        let hello = AgentHello {
            host: "fs1".to_owned(),
            machine: String::new(),
            addresses: Vec::new(),
        };
        let roots = HostRoots::below(self.0.path());
        collect_below(&roots, &StreamConfig::default(), hello)
    }

    fn device(&self) -> DeviceFacts {
        self.facts().devices.remove(0)
    }

    fn path(&self) -> &Path {
        self.0.path()
    }
}

#[test]
fn the_facts_of_an_empty_host_are_found() {
    let facts = FactsTree::new().facts();
    assert_eq!(facts.hello.host, "fs1");
    assert_eq!(facts.version, env!("CARGO_PKG_VERSION"));
    assert_eq!((facts.governor, facts.clock_source), (None, None));
    assert!(!facts.kernel.is_empty() && !facts.processor.is_empty());
    assert!(facts.processors >= 1);
    assert!(facts.clock_ms > 1_600_000_000_000);
    assert!(facts.devices.is_empty());
    assert!(facts.no_rdma.is_some());
}

#[test]
fn the_facts_of_this_host_fit_into_a_message() {
    let hello = FactsTree::new().facts().hello;
    let facts = collect_below(&HostRoots::default(), &StreamConfig::default(), hello);
    crate::ssh::protocol::Payload::encode(&facts).unwrap();
}

#[test]
fn one_processor_that_saves_power_is_reported() {
    let tree = FactsTree::new();
    let governor = |number, text| {
        let path = format!("sys/devices/system/cpu/cpu{number}/cpufreq/scaling_governor");
        tree.write(&path, text);
    };
    tree.write("sys/devices/system/cpu/cpuidle/current_driver", "none");
    tree.write(
        "sys/devices/system/clocksource/clocksource0/current_clocksource",
        "hpet",
    );
    governor(0, "performance");
    governor(1, "performance");
    let facts = tree.facts();
    assert_eq!(facts.governor.as_deref(), Some("performance"));
    assert_eq!(facts.clock_source.as_deref(), Some("hpet"));
    governor(1, "powersave");
    assert_eq!(tree.facts().governor.as_deref(), Some("powersave"));
}

#[cfg(feature = "rdma")]
#[test]
fn a_device_is_reported_with_its_port_and_its_addresses() {
    let tree = FactsTree::new();
    tree.rxe("rxe0", "eth0", "4: ACTIVE");
    let device = tree.device();
    assert_eq!(device.name, "rxe0");
    assert!(device.is_software);
    assert_eq!((device.fault, device.firmware), (None, None));
    let port = &device.ports[0];
    assert_eq!((port.number, port.rate_mbps), (1, 2500));
    assert_eq!((port.state.as_str(), &port.fault), ("ACTIVE", &None));
    assert_eq!(port.link_layer, "Ethernet");
    assert_eq!(port.netdev.as_deref(), Some("eth0"));
    assert_eq!(port.gids, ["GID 0 (RoCE v2, 10.1.0.5 on eth0), MTU 1024"]);
}

#[cfg(feature = "rdma")]
#[test]
fn a_port_that_is_down_has_a_fault_and_its_interface() {
    let tree = FactsTree::new();
    tree.rxe("rxe0", "eth0", "1: DOWN");
    tree.write("sys/class/infiniband/rxe0/fw_ver", "16.35.2000");
    let class = tree.path().join("sys/class/infiniband/rxe0");
    fs::remove_dir_all(class.join("ports/1/gids")).unwrap();
    fs::remove_file(class.join("parent")).unwrap();
    tree.write("sys/class/infiniband/rxe0/device/net/ens1f1/dev_port", "1");
    tree.write("sys/class/infiniband/rxe0/device/net/ens1f0/dev_port", "0");
    let facts = tree.facts();
    assert!(facts.no_rdma.unwrap().contains("is DOWN"));
    let device = &facts.devices[0];
    assert_eq!(device.firmware.as_deref(), Some("16.35.2000"));
    let port = &device.ports[0];
    assert!(port.fault.as_deref().unwrap().starts_with("is DOWN"));
    assert_eq!(port.netdev.as_deref(), Some("ens1f0"));
    assert!(port.gids.is_empty());
}

/// Root may open every file, whatever its mode.
#[test]
fn a_device_file_without_rights_is_named() {
    use std::os::unix::fs::PermissionsExt;

    let tree = FactsTree::new();
    tree.rxe("rxe0", "eth0", "4: ACTIVE");
    assert_eq!(tree.device().forbidden_file, None);
    let file = tree.path().join("dev/infiniband/uverbs_rxe0");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o000)).unwrap();
    let is_closed = fs::File::open(&file).is_err();
    let device = tree.device();
    if is_closed {
        let file = "/dev/infiniband/uverbs_rxe0";
        assert_eq!(device.forbidden_file.as_deref(), Some(file));
        assert!(device.fault.is_some());
    } else {
        assert_eq!(device.forbidden_file, None);
    }
}

#[test]
fn the_least_memory_is_below_what_a_stream_takes() {
    let memlock = FactsTree::new().facts().memlock;
    if cfg!(feature = "rdma") {
        assert!(0 < memlock.least && memlock.least < memlock.needed);
    } else {
        assert_eq!((memlock.least, memlock.needed), (0, 0));
    }
}
