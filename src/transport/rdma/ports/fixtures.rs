//! Trees that look like sysfs, procfs and devtmpfs, for the tests. The tree of rxe was recorded under Linux 6.1; the
//! others follow the kernel's source.

use std::{fs, net::Ipv4Addr, os::unix::fs::symlink, path::PathBuf};

use tempfile::TempDir;

use super::{
    device::{Inventory, Roots},
    network::{Gid, GidKind},
    offer::{Candidate, Offer},
};

pub(crate) const V1: &str = "IB/RoCE v1";
pub(crate) const V2: &str = "RoCE v2";

/// The file systems of a machine in a temporary directory, with only the files that the tests need.
pub(crate) struct FakeSystem(TempDir);

impl FakeSystem {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub(crate) fn roots(&self) -> Roots {
        let root = |name| self.0.path().join(name);
        Roots {
            sys: root("sys"),
            proc: root("proc"),
            dev: root("dev"),
        }
    }

    pub(crate) fn inventory(&self) -> Inventory {
        Inventory::read(&self.roots())
    }

    /// Writes a file, and the directories above it.
    pub(crate) fn write(&self, path: &str, text: &str) {
        let path = self.0.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    pub(crate) fn remove(&self, path: &str) {
        fs::remove_file(self.0.path().join(path)).unwrap();
    }

    /// An adapter on the PCI bus, its device file included.
    pub(crate) fn hardware(&self, name: &str) {
        self.device(name, "pci0000:00/0000:01:00.0/infiniband");
    }

    /// The kernel's driver of an adapter.
    #[cfg(feature = "cli")]
    pub(crate) fn driver(&self, device: &str, driver: &str) {
        let function = format!("sys/class/infiniband/{device}/device");
        let function = self.0.path().join(function);
        fs::create_dir_all(&function).unwrap();
        let target = PathBuf::from("../../../../bus/pci/drivers").join(driver);
        symlink(target, function.join("driver")).unwrap();
    }

    /// An rxe device over `netdev`.
    pub(crate) fn rxe(&self, name: &str, netdev: &str) {
        self.device(name, "virtual/infiniband");
        self.write(
            &format!("sys/class/infiniband/{name}/parent"),
            &line(netdev),
        );
    }

    fn device(&self, name: &str, below: &str) {
        let class = self.0.path().join("sys/class/infiniband");
        let target = PathBuf::from("../../devices").join(below).join(name);
        fs::create_dir_all(&class).unwrap();
        fs::create_dir_all(self.0.path().join("sys/devices").join(below).join(name)).unwrap();
        symlink(target, class.join(name)).unwrap();
        self.write(&format!("sys/class/infiniband/{name}/node_type"), "1: CA\n");
        let uverbs = format!("uverbs_{name}");
        self.write("sys/class/infiniband_verbs/abi_version", "6\n");
        self.write(
            &format!("sys/class/infiniband_verbs/{uverbs}/ibdev"),
            &line(name),
        );
        self.write(&format!("dev/infiniband/{uverbs}"), "");
    }

    /// An active port with an empty GID table.
    pub(crate) fn port(&self, device: &str, number: u8, link_layer: &str, rate: &str) {
        let set = |name: &str, text: &str| self.set(device, number, name, text);
        set("state", "4: ACTIVE");
        set("phys_state", "5: LinkUp");
        set("link_layer", link_layer);
        set("rate", rate);
        set(
            "lid",
            if link_layer == "InfiniBand" {
                "0x1f"
            } else {
                "0x0"
            },
        );
        set("pkeys/0", "0xffff");
        for index in 0..8 {
            set(&format!("gids/{index}"), &Gid([0; 16]).hex());
            // Reading a directory fails, as reading an empty slot's attribute does.
            for name in ["types", "ndevs"] {
                let path = format!("{}/gid_attrs/{name}/{index}", port_path(device, number));
                fs::create_dir_all(self.0.path().join(path)).unwrap();
            }
        }
    }

    pub(crate) fn set(&self, device: &str, port: u8, name: &str, text: &str) {
        self.write(&format!("{}/{name}", port_path(device, port)), &line(text));
    }

    /// Fills a slot of a GID table.
    pub(crate) fn gid(
        &self,
        device: &str,
        port: u8,
        index: u8,
        gid: &str,
        kind: &str,
        netdev: &str,
    ) {
        self.set(
            device,
            port,
            &format!("gids/{index}"),
            &Gid::parse(gid).unwrap().hex(),
        );
        for (name, text) in [("types", kind), ("ndevs", netdev)] {
            let attribute = format!("gid_attrs/{name}/{index}");
            // Not there in tables of more than the eight slots above.
            let _ = fs::remove_dir(self.0.path().join(port_path(device, port)).join(&attribute));
            if !text.is_empty() {
                self.set(device, port, &attribute, text);
            }
        }
    }

    pub(crate) fn netdev(&self, name: &str, mtu: u32) {
        self.write(
            &format!("sys/class/net/{name}/mtu"),
            &line(&mtu.to_string()),
        );
    }

    /// Adds directly connected IPv4 networks.
    pub(crate) fn routes(&self, routes: &[(&str, [u8; 4], u8)]) {
        let hex = |address: Ipv4Addr| format!("{:08X}", u32::from_ne_bytes(address.octets()));
        let line = |&(netdev, network, prefix): &(&str, [u8; 4], u8)| {
            let (network, mask) = (network.into(), (u32::MAX << (32 - prefix)).into());
            let (network, mask) = (hex(network), hex(mask));
            format!("{netdev}\t{network}\t00000000\t0001\t0\t0\t0\t{mask}\t0\t0\t0\n")
        };
        let head = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\n";
        let lines: String = routes.iter().map(line).collect();
        self.write("proc/net/route", &format!("{head}{lines}"));
    }
}

impl Gid {
    /// As sysfs writes it.
    fn hex(self) -> String {
        let groups = self
            .0
            .chunks(2)
            .map(|pair| format!("{:02x}{:02x}", pair[0], pair[1]));
        groups.collect::<Vec<_>>().join(":")
    }
}

/// A RoCE v2 port of 100 Gbit/s with this address, in a /24 or /64.
pub(crate) fn roce(ip: &str) -> Candidate {
    let v4 = !ip.contains(':');
    let gid = if v4 {
        format!("::ffff:{ip}")
    } else {
        ip.to_owned()
    };
    candidate(Offer {
        port: 0,
        gid: Gid::parse(&gid).unwrap(),
        kind: GidKind::RoceV2,
        prefix: Some(if v4 { 24 } else { 64 }),
        lid: 0,
        rate_mbps: 100_000,
        mtu: 4096,
        software: false,
    })
}

/// An InfiniBand port in the default subnet.
pub(crate) fn infiniband(number: u8) -> Candidate {
    let mut gid = Gid::parse("fe80::").unwrap();
    gid.0[15] = number;
    candidate(Offer {
        gid,
        kind: GidKind::InfiniBand,
        prefix: None,
        lid: number.into(),
        ..roce("10.1.0.1").offer
    })
}

fn candidate(offer: Offer) -> Candidate {
    Candidate {
        device: "mlx5_0".to_owned(),
        port: 1,
        gid_index: 3,
        netdev: None,
        offer,
    }
}

fn port_path(device: &str, port: u8) -> String {
    format!("sys/class/infiniband/{device}/ports/{port}")
}

fn line(text: &str) -> String {
    format!("{text}\n")
}
