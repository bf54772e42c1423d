//! The rights in an ACL, as Linux stores it in an extended attribute: version u32, then entries of tag u16, rights u16, id
//! u32, all little-endian.

/// The attribute with the ACL of an entry.
pub(super) const ACCESS_ACL: &[u8] = b"system.posix_acl_access";

/// The attribute with the ACL that new entries of a directory inherit.
pub(super) const DEFAULT_ACL: &str = "system.posix_acl_default";

/// The version of the format.
const VERSION: u32 = 2;

const TAG_OWNER: u16 = 0x01;
const TAG_GROUP: u16 = 0x04;
const TAG_MASK: u16 = 0x10;
const TAG_OTHERS: u16 = 0x20;

/// The rights of an ACL that correspond to bits of a mode. Those of named users and groups are left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct AclRights {
    owner: u32,
    group: u32,
    /// The most rights of the group and of named users and groups, if there are such.
    mask: Option<u32>,
    others: u32,
}

impl AclRights {
    /// Returns the rights in the value of an attribute; none if it is not an ACL.
    pub(super) fn parse(value: &[u8]) -> Option<Self> {
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
    pub(super) fn inherited_bits(self) -> u32 {
        self.owner << 6 | self.mask.unwrap_or(self.group) << 3 | self.others
    }

    /// Returns the bits of a mode that the owning group has. In the mode of an entry with an ACL, the mask is in their place.
    pub(super) fn group_bits(self) -> u32 {
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
