//! The RDMA devices as a build without RDMA sees them: their names.

use super::FoundDevices;
use crate::{
    StreamConfig,
    perf::{
        facts::host_roots::{HostRoots, names, trimmed},
        messages::DeviceFacts,
    },
};

/// The reason why this build cannot use RDMA.
const NOT_BUILT: &str = "this rdpipe was built without RDMA";

/// Reads the names of the devices.
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
