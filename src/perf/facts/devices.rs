//! The RDMA devices, and what this user may do with them.

#[cfg(feature = "rdma")]
mod inventory;
#[cfg(not(feature = "rdma"))]
#[path = "devices/names.rs"]
mod inventory;

use rustix::{
    fs::{Mode, OFlags, open},
    io::Errno,
};

use super::host_roots::HostRoots;
use crate::{
    StreamConfig,
    perf::{
        facts::host_roots::{names, trimmed},
        messages::DeviceFacts,
    },
};

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
