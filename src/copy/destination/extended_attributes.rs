//! Sets, removes and compares extended attributes, and the rights in ACLs.

use std::ffi::CString;

use rustix::io::Errno;

use super::{attributes::EntryHandle, state::errno_text};
use crate::copy::{metadata::Attribute, order::KeptRights};

const ACL_PREFIX: &[u8] = b"system.posix_acl_";

/// Sets the extended attributes of an entry, as far as `rights` keeps them. `note` receives what cannot be kept. ACLs are
/// set last: they may deny the owner to write.
///
/// Returns false if the ACL of the entry is not kept.
pub(super) fn set_attributes(
    entry: EntryHandle<'_>,
    attributes: &[Attribute],
    rights: KeptRights,
    note: &dyn Fn(String),
) -> bool {
    let (acls, others): (Vec<_>, Vec<_>) = attributes.iter().partition(|(name, _)| is_acl(name));
    let mut keeps_acl = true;
    for (name, value) in others.into_iter().chain(acls) {
        let kind = kind_of_attribute(name);
        if !rights.keep_attribute(name) {
            note(format!("{kind} were not kept: {}", rights.reason()));
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

/// Removes what an entry has inherited or had before. Attributes of security modules stay, and those that `rights` does
/// not keep.
pub(super) fn remove_other_attributes(
    entry: EntryHandle<'_>,
    attributes: &[Attribute],
    rights: KeptRights,
    note: &dyn Fn(String),
) {
    for (name, _) in entry.attributes().unwrap_or_default() {
        if !is_unwanted(&name, attributes, rights) {
            continue;
        }
        let kind = kind_of_attribute(&name);
        let removed = CString::new(name.into_vec()).map_err(|_| Errno::INVAL);
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
    rights: KeptRights,
) -> bool {
    let is_missing =
        |attribute: &Attribute| rights.keep_attribute(&attribute.0) && !own.contains(attribute);
    wanted.iter().any(is_missing)
        || own
            .iter()
            .any(|(name, _)| is_unwanted(name, wanted, rights))
}

/// Returns true for the attributes of a replaced file that the new one gets. Those of security modules are of the
/// program that has written the contents.
pub(super) fn is_of_replaced(name: &[u8], rights: KeptRights) -> bool {
    is_removable(name) && rights.keep_attribute(name)
}

pub(super) fn is_acl(name: &[u8]) -> bool {
    name.starts_with(ACL_PREFIX)
}

fn is_unwanted(name: &[u8], wanted: &[Attribute], rights: KeptRights) -> bool {
    is_removable(name)
        && rights.keep_attribute(name)
        && !wanted.iter().any(|(wanted, _)| *wanted == *name)
}

fn is_removable(name: &[u8]) -> bool {
    is_acl(name) || name.starts_with(b"user.") || name.starts_with(b"trusted.")
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

/// The attribute with the ACL of an entry.
pub(crate) const ACCESS_ACL: &[u8] = b"system.posix_acl_access";

/// The attribute with the ACL that new entries of a directory inherit.
pub(crate) const DEFAULT_ACL: &str = "system.posix_acl_default";

const VERSION: u32 = 2;

const TAG_OWNER: u16 = 0x01;
const TAG_GROUP: u16 = 0x04;
const TAG_MASK: u16 = 0x10;
const TAG_OTHERS: u16 = 0x20;

/// The rights of an ACL that correspond to bits of a mode. Those of named users and groups are left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct AclRights {
    owner: u32,
    group: u32,
    /// The most rights of the group and of named users and groups, if there are such.
    mask: Option<u32>,
    others: u32,
}

impl AclRights {
    /// Returns the rights in the value of an attribute; none if it is not an ACL.
    pub(crate) fn parse(value: &[u8]) -> Option<Self> {
        let (version, entries) = value.split_first_chunk::<4>()?;
        if u32::from_le_bytes(*version) != VERSION {
            return None;
        }
        let rights_of = |wanted: u16| {
            let mut entries = entries.chunks_exact(8);
            let entry = entries.find(|entry| entry[..2] == wanted.to_le_bytes())?;
            Some(u32::from(entry[2] & 7))
        };
        Some(Self {
            owner: rights_of(TAG_OWNER)?,
            group: rights_of(TAG_GROUP)?,
            mask: rights_of(TAG_MASK),
            others: rights_of(TAG_OTHERS)?,
        })
    }

    /// Returns the bits of a mode that entries can have whose ACL is inherited from this one.
    pub(crate) fn inherited_bits(self) -> u32 {
        self.owner << 6 | self.mask.unwrap_or(self.group) << 3 | self.others
    }

    /// Returns the bits of a mode that the owning group has. In the mode of an entry with an ACL, the mask is in their
    /// place.
    pub(crate) fn group_bits(self) -> u32 {
        (self.group & self.mask.unwrap_or(7)) << 3
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn acl(entries: &[(u16, u16)]) -> Vec<u8> {
        let entry = |&(tag, rights): &(u16, u16)| {
            let id = u32::MAX.to_le_bytes();
            [&tag.to_le_bytes()[..], &rights.to_le_bytes(), &id].concat()
        };
        let entries: Vec<u8> = entries.iter().flat_map(entry).collect();
        [&VERSION.to_le_bytes()[..], &entries].concat()
    }

    #[test]
    fn the_mask_limits_the_group() {
        let value = acl(&[(1, 6), (2, 7), (4, 7), (0x10, 5), (0x20, 1)]);
        let rights = AclRights::parse(&value).unwrap();
        assert_eq!(rights.inherited_bits(), 0o651);
        assert_eq!(rights.group_bits(), 0o050);
        let without_mask = AclRights::parse(&acl(&[(1, 7), (4, 4), (0x20, 0)])).unwrap();
        assert_eq!(without_mask.inherited_bits(), 0o740);
        assert_eq!(without_mask.group_bits(), 0o040);
    }

    #[test]
    fn other_bytes_are_no_acl() {
        let value = acl(&[(1, 7), (4, 4), (0x20, 0)]);
        for bad in [
            &[][..],
            &value[..3],
            &value[..20],
            &[&[3], &value[1..]].concat(),
        ] {
            assert_eq!(AclRights::parse(bad), None);
        }
    }
}
