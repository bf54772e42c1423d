//! The file of an RDMA device.

use rustix::{
    fs::{Mode, OFlags, open},
    io::Errno,
};

use crate::perf::facts::host_roots::{HostRoots, names, trimmed};

/// Returns the path of the device's file, if this user may not open it. A container may be forbidden to open a file that
/// it may read and write by its mode, so the file is opened.
pub(super) fn forbidden(roots: &HostRoots, device: &str) -> Option<String> {
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
