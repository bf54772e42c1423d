//! Sets, removes and compares extended attributes, ACLs among them.

use std::ffi::CString;

use rustix::io::Errno;

use super::{acl::ACCESS_ACL, entry_handle::EntryHandle};
use crate::copy::{destination::fault_text::errno_text, extended_attributes::Attribute};

/// The beginning of the names of ACLs.
const ACL_PREFIX: &[u8] = b"system.posix_acl_";

/// Sets the extended attributes of an entry. `note` receives what cannot be kept. Those that give rights beyond the files
/// themselves are kept only if `keeps_privileged` is true. ACLs are set last: they may deny the owner to write.
///
/// Returns false if the ACL of the entry is not kept.
pub(super) fn set_attributes(
    entry: EntryHandle<'_>,
    attributes: &[Attribute],
    keeps_privileged: bool,
    note: &dyn Fn(String),
) -> bool {
    let (acls, others): (Vec<_>, Vec<_>) = attributes.iter().partition(|(name, _)| is_acl(name));
    let mut keeps_acl = true;
    for (name, value) in others.into_iter().chain(acls) {
        let kind = kind_of_attribute(name);
        if !keeps_privileged && is_privileged(name) {
            note(format!("{kind} were not kept: a server keeps none"));
            continue;
        }
        let result = CString::new(&name[..]).map_err(|_| Errno::INVAL);
        let result = result.and_then(|name| entry.set_attribute(&name, value));
        if let Err(errno) = result {
            note(format!("some {kind} were not kept: {}", errno_text(errno)));
            keeps_acl &= name != ACCESS_ACL;
        }
    }
    keeps_acl
}

/// Removes what an entry has inherited or had before. Attributes of security modules stay, and trusted ones unless
/// `keeps_privileged` is true.
pub(super) fn remove_other_attributes(
    entry: EntryHandle<'_>,
    attributes: &[Attribute],
    keeps_privileged: bool,
    note: &dyn Fn(String),
) {
    for (name, _) in entry.attributes().unwrap_or_default() {
        if !is_unwanted(&name, attributes, keeps_privileged) {
            continue;
        }
        let kind = kind_of_attribute(&name);
        let removed = CString::new(name).map_err(|_| Errno::INVAL);
        if let Err(errno) = removed.and_then(|name| entry.remove_attribute(&name)) {
            let why = errno_text(errno);
            note(format!("some {kind} that the source has not stay: {why}"));
        }
    }
}

/// Returns true if an entry with the attributes `own` needs to be changed to get the attributes `wanted` and no others.
pub(super) fn have_differences(
    own: &[Attribute],
    wanted: &[Attribute],
    keeps_privileged: bool,
) -> bool {
    let is_missing = |attribute: &Attribute| {
        (keeps_privileged || !is_privileged(&attribute.0)) && !own.contains(attribute)
    };
    wanted.iter().any(is_missing)
        || own
            .iter()
            .any(|(name, _)| is_unwanted(name, wanted, keeps_privileged))
}

/// Returns true for the attributes of a replaced file that the new one gets. Those of security modules are of the program
/// that has written the contents.
pub(super) fn is_of_replaced(name: &[u8], keeps_privileged: bool) -> bool {
    is_removable(name) && (keeps_privileged || !is_privileged(name))
}

/// Returns true for an ACL.
pub(super) fn is_acl(name: &[u8]) -> bool {
    name.starts_with(ACL_PREFIX)
}

fn is_unwanted(name: &[u8], wanted: &[Attribute], keeps_privileged: bool) -> bool {
    is_removable(name)
        && (keeps_privileged || !is_privileged(name))
        && !wanted.iter().any(|(wanted, _)| *wanted == name)
}

fn is_removable(name: &[u8]) -> bool {
    is_acl(name) || name.starts_with(b"user.") || name.starts_with(b"trusted.")
}

/// Returns true for an attribute that only root can set: the capabilities of a program, the labels of security modules,
/// the redirections of overlay file systems.
fn is_privileged(name: &[u8]) -> bool {
    name.starts_with(b"security.") || name.starts_with(b"trusted.")
}

/// Returns a word for the namespace of an attribute: the peer chooses the names, and each text is reported once.
fn kind_of_attribute(name: &[u8]) -> &'static str {
    let kinds: [(&[u8], &str); 4] = [
        (ACL_PREFIX, "ACLs"),
        (b"security.", "security attributes"),
        (b"trusted.", "trusted attributes"),
        (b"user.", "extended attributes"),
    ];
    let known = kinds.iter().find(|(prefix, _)| name.starts_with(prefix));
    known.map_or("attributes of unknown kinds", |(_, kind)| kind)
}
