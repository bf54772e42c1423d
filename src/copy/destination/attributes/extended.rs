//! Sets and removes extended attributes, ACLs among them.

use std::{ffi::CString, os::fd::BorrowedFd};

use rustix::{
    fs::{flistxattr, fremovexattr},
    io::Errno,
};

use super::entry_handle::EntryHandle;
use crate::copy::destination::fault_text::errno_text;

/// The largest list of attribute names: the limit of Linux.
const MAX_LIST_BYTES: usize = 64 << 10;

/// Sets the extended attributes of an entry. `note` receives what cannot be kept. Those that give rights beyond the files
/// themselves are kept only if `keeps_privileged` is true.
pub(super) fn set_attributes(
    entry: EntryHandle<'_>,
    attributes: &[(Vec<u8>, Vec<u8>)],
    keeps_privileged: bool,
    note: &dyn Fn(String),
) {
    for (name, value) in attributes {
        if !keeps_privileged && is_privileged(name) {
            let kind = kind_of_attribute(name);
            note(format!("{kind} were not kept: a server keeps none"));
            continue;
        }
        let result = CString::new(&name[..]).map_err(|_| Errno::INVAL);
        let result = result.and_then(|name| entry.set_attribute(&name, value));
        if let Err(errno) = result {
            let kind = kind_of_attribute(name);
            note(format!("some {kind} were not kept: {}", errno_text(errno)));
        }
    }
}

/// Removes what an entry has inherited or had before. Attributes of security modules stay, and trusted ones unless
/// `keeps_privileged` is true.
pub(super) fn remove_other_attributes(
    entry: EntryHandle<'_>,
    attributes: &[(Vec<u8>, Vec<u8>)],
    keeps_privileged: bool,
) {
    let EntryHandle::Open(fd) = entry else {
        return;
    };
    for name in attribute_names(fd) {
        let is_wanted = attributes.iter().any(|(wanted, _)| *wanted == name);
        let is_removable = ["user.", "trusted.", "system.posix_acl_"]
            .iter()
            .any(|prefix| name.starts_with(prefix.as_bytes()));
        let is_removable = is_removable && (keeps_privileged || !is_privileged(&name));
        if is_removable && !is_wanted {
            let _ = fremovexattr(fd, name);
        }
    }
}

fn attribute_names(fd: BorrowedFd<'_>) -> Vec<Vec<u8>> {
    let mut list = Vec::with_capacity(256);
    let filled = match flistxattr(fd, rustix::buffer::spare_capacity(&mut list)) {
        Err(Errno::RANGE) => {
            list.reserve(MAX_LIST_BYTES);
            flistxattr(fd, rustix::buffer::spare_capacity(&mut list))
        }
        result => result,
    };
    if filled.is_err() {
        return Vec::new();
    }
    let names = list.split(|&byte| byte == 0);
    names
        .filter(|name| !name.is_empty())
        .map(<[u8]>::to_vec)
        .collect()
}

/// Returns true for an attribute that only root can set: the capabilities of a program, the labels of security modules,
/// the redirections of overlay file systems.
fn is_privileged(name: &[u8]) -> bool {
    name.starts_with(b"security.") || name.starts_with(b"trusted.")
}

/// Returns a word for the namespace of an attribute: the peer chooses the names, and each text is reported once.
fn kind_of_attribute(name: &[u8]) -> &'static str {
    let kinds: [(&[u8], &str); 4] = [
        (b"system.posix_acl_", "ACLs"),
        (b"security.", "security attributes"),
        (b"trusted.", "trusted attributes"),
        (b"user.", "extended attributes"),
    ];
    let known = kinds.iter().find(|(prefix, _)| name.starts_with(prefix));
    known.map_or("attributes of unknown kinds", |(_, kind)| kind)
}
