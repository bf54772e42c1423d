//! The RDMA devices, and what this user may do with them.

use rustix::{
    fs::{Mode, OFlags, open},
    io::Errno,
};

use super::HostRoots;
use super::{names, trimmed};
use crate::{StreamConfig, perf::messages::DeviceFacts};

/// The RDMA devices of a host.
pub(super) struct FoundDevices {
    /// The devices, usable or not, by name.
    pub(super) devices: Vec<DeviceFacts>,
    /// The reason why this host cannot use RDMA with the settings of the order; none if it can.
    pub(super) no_rdma: Option<String>,
}

/// Finds the devices below `roots`, and opens the file of each one.
pub(super) fn find(roots: &HostRoots, config: &StreamConfig) -> FoundDevices {
    let mut found = inventory::find(roots, config);
    for device in &mut found.devices {
        device.forbidden_file = forbidden(roots, &device.name);
        if let (None, Some(file)) = (&device.fault, &device.forbidden_file) {
            device.fault = Some(format!("may not be used: no rights on {file}"));
        }
    }
    let all_forbidden =
        !found.devices.is_empty() && found.devices.iter().all(|device| device.fault.is_some());
    if found.no_rdma.is_none() && all_forbidden {
        let faults = found.devices.iter().filter_map(|device| {
            let fault = device.fault.as_ref()?;
            Some(format!("{} {fault}", device.name))
        });
        found.no_rdma = Some(faults.collect::<Vec<_>>().join("; "));
    }
    found
}

/// Returns the path of the device's file, if this user may not open it. A container may be forbidden to open a file
/// that it may read and write by its mode, so the file is opened.
fn forbidden(roots: &HostRoots, device: &str) -> Option<String> {
    let class = roots.sys.join("class/infiniband_verbs");
    let mut names = names(&class).into_iter();
    let name = names.find(|name| {
        let opens = trimmed(&class.join(name).join("ibdev"));
        opens.is_some_and(|text| text == device)
    })?;
    let path = roots.dev.join("infiniband").join(&name);
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK;
    match open(&path, flags, Mode::empty()) {
        Err(Errno::ACCESS | Errno::PERM) => Some(format!("/dev/infiniband/{name}")),
        _ => None,
    }
}

#[cfg(feature = "rdma")]
mod inventory {
    //! The RDMA devices as streams see them.

    use std::path::Path;

    use super::FoundDevices;
    use crate::{
        StreamConfig,
        perf::{
            facts::{HostRoots, decimal, names, trimmed},
            messages::{DeviceFacts, PortFacts},
        },
        transport::{Device, GidEntry, Inventory, LocalPorts, Port, Roots},
    };

    /// The most addresses of a port that are reported. rxe has one for each address of its interface.
    const MAX_GID_FACTS: usize = 16;

    /// Reads the devices, and the reason why streams with these settings cannot use them.
    pub(super) fn find(roots: &HostRoots, config: &StreamConfig) -> FoundDevices {
        let HostRoots { sys, proc, dev } = roots.clone();
        let inventory = Inventory::read(&Roots { sys, proc, dev });
        let devices = inventory.devices.iter();
        FoundDevices {
            devices: devices.map(|device| device_facts(roots, device)).collect(),
            no_rdma: LocalPorts::among(&inventory, config)
                .err()
                .map(|none| none.reason),
        }
    }

    fn device_facts(roots: &HostRoots, device: &Device) -> DeviceFacts {
        let path = roots.sys.join("class/infiniband").join(&device.name);
        let ports = device.ports.iter();
        DeviceFacts {
            name: device.name.clone(),
            is_software: device.software,
            fault: device.fault.as_ref().map(ToString::to_string),
            forbidden_file: None,
            firmware: trimmed(&path.join("fw_ver")),
            ports: ports.map(|port| port_facts(&path, port)).collect(),
        }
    }

    fn port_facts(device: &Path, port: &Port) -> PortFacts {
        let link_layer = port.link_layer.map(|layer| layer.to_string());
        let path = device.join("ports").join(port.number.to_string());
        let gids = port.gids.iter().filter(|entry| entry.is_reachable());
        PortFacts {
            number: port.number,
            state: port.state.clone(),
            link_layer: link_layer
                .or_else(|| trimmed(&path.join("link_layer")))
                .unwrap_or_else(|| "unknown".to_owned()),
            rate_mbps: port.rate_mbps,
            fault: port.fault().map(|fault| fault.to_string()),
            netdev: netdev(device, port),
            gids: gids.take(MAX_GID_FACTS).map(gid_text).collect(),
        }
    }

    /// Returns the address for the user: `GID 3 (RoCE v2, 10.1.0.5 on eth0), MTU 1024`.
    fn gid_text(entry: &GidEntry) -> String {
        let GidEntry {
            index,
            gid,
            kind,
            netdev,
            mtu,
            ..
        } = entry;
        match netdev {
            Some(netdev) => format!("GID {index} ({kind}, {gid} on {netdev}), MTU {mtu}"),
            None => format!("GID {index} ({kind}, {gid}), MTU {mtu}"),
        }
    }

    /// Returns the interface of a port: of one of its addresses; of a port without addresses the interface below rxe,
    /// or the interface of the same card that has the port's number.
    fn netdev(device: &Path, port: &Port) -> Option<String> {
        let of_gid = port.gids.iter().find_map(|entry| entry.netdev.clone());
        of_gid
            .or_else(|| trimmed(&device.join("parent")))
            .or_else(|| {
                let cards = device.join("device/net");
                let index = u32::from(port.number).checked_sub(1);
                let mut names = names(&cards).into_iter();
                names.find(|name| decimal(&cards.join(name).join("dev_port")) == index)
            })
    }
}

#[cfg(not(feature = "rdma"))]
mod inventory {
    //! The RDMA devices as a build without RDMA sees them: their names.

    use super::FoundDevices;
    use crate::{
        StreamConfig,
        perf::{
            facts::{HostRoots, names, trimmed},
            messages::DeviceFacts,
        },
    };

    /// The reason why this build cannot use RDMA.
    const NOT_BUILT: &str = "this rdpipe was built without RDMA";

    pub(super) fn find(roots: &HostRoots, _config: &StreamConfig) -> FoundDevices {
        let class = roots.sys.join("class/infiniband");
        let device = |name: String| DeviceFacts {
            is_software: class.join(&name).join("parent").is_file(),
            fault: Some(format!("is not used: {NOT_BUILT}")),
            forbidden_file: None,
            firmware: trimmed(&class.join(&name).join("fw_ver")),
            ports: Vec::new(),
            name,
        };
        FoundDevices {
            devices: names(&class).into_iter().map(device).collect(),
            no_rdma: Some(NOT_BUILT.to_owned()),
        }
    }
}
