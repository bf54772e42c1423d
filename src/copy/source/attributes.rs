//! Reads the metadata of entries.

use std::{collections::HashSet, ffi::CStr, fmt::Write as _, os::fd::AsFd};

use rustix::{
    fs::{Stat, fgetxattr, flistxattr, lgetxattr, llistxattr},
    io::Errno,
};

use crate::copy::{
    metadata::{Metadata, Timestamp},
    record::LaneRecord,
};

/// An extended attribute: name and value.
pub(crate) type Attribute = (Vec<u8>, Vec<u8>);

/// The most bytes of an attribute's value, and of the list of names, on Linux.
const MAX_ATTRIBUTE_BYTES: usize = 64 << 10;

/// The bytes that suffice for the names of most files.
const USUAL_BYTES: usize = 256;

/// Returns the metadata in `stat`, without extended attributes.
pub(crate) fn metadata_of(stat: &Stat) -> Metadata {
    Metadata {
        mode: stat.st_mode & 0o7777,
        uid: stat.st_uid,
        gid: stat.st_gid,
        modified: modified(stat),
        accessed: timestamp(stat.st_atime, stat.st_atime_nsec),
        attributes: Vec::new(),
    }
}

/// Returns the time of the last modification.
pub(crate) fn modified(stat: &Stat) -> Timestamp {
    timestamp(stat.st_mtime, stat.st_mtime_nsec)
}

fn timestamp(seconds: i64, nanoseconds: impl TryInto<u32>) -> Timestamp {
    Timestamp {
        seconds,
        nanoseconds: nanoseconds.try_into().unwrap_or(0),
    }
}

/// Returns the size of a file.
pub(crate) fn size(stat: &Stat) -> u64 {
    u64::try_from(stat.st_size).unwrap_or(0)
}

/// Returns the bytes of a file without its holes, as far as its blocks tell.
pub(crate) fn content_size(stat: &Stat) -> u64 {
    let blocks = u64::try_from(stat.st_blocks).unwrap_or(0);
    size(stat).min(blocks.saturating_mul(512))
}

/// Returns the number of names of a file.
#[allow(
    clippy::useless_conversion,
    reason = "the width of the field depends on the processor"
)]
pub(crate) fn link_count(stat: &Stat) -> u64 {
    u64::from(stat.st_nlink).max(1)
}

/// Reads the extended attributes of an open file.
///
/// # Errors
///
/// Those of flistxattr(2) and fgetxattr(2).
pub(crate) fn attributes_of(file: impl AsFd) -> Result<Vec<Attribute>, Errno> {
    let file = file.as_fd();
    attributes(
        |buffer| flistxattr(file, buffer),
        |name, buffer| fgetxattr(file, name, buffer),
    )
}

/// Reads the extended attributes of an entry that is not opened: a link, a FIFO, a socket or a device.
///
/// # Errors
///
/// Those of llistxattr(2) and lgetxattr(2).
pub(crate) fn attributes_at(folder: impl AsFd, name: &CStr) -> Result<Vec<Attribute>, Errno> {
    use std::os::fd::AsRawFd;
    // Before Linux 6.13 there is no call that takes a folder and a name.
    let mut path = String::from("/proc/self/fd/");
    let _ = write!(path, "{}/", folder.as_fd().as_raw_fd());
    let mut path = path.into_bytes();
    path.extend_from_slice(name.to_bytes());
    attributes(
        |buffer| llistxattr(&path[..], buffer),
        |name, buffer| lgetxattr(&path[..], name, buffer),
    )
}

fn attributes(
    list: impl Fn(&mut [u8]) -> Result<usize, Errno>,
    get: impl Fn(&CStr, &mut [u8]) -> Result<usize, Errno>,
) -> Result<Vec<Attribute>, Errno> {
    let names = match growing(list) {
        Ok(names) if names.is_empty() => return Ok(Vec::new()),
        Ok(names) => names,
        Err(Errno::NOTSUP) => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut attributes = Vec::new();
    for name in names.split_inclusive(|&byte| byte == 0) {
        let Ok(name) = CStr::from_bytes_with_nul(name) else {
            continue;
        };
        match growing(|buffer| get(name, buffer)) {
            Ok(value) => attributes.push((name.to_bytes().to_vec(), value)),
            // Removed meanwhile, or listed by a file system that has no value for it.
            Err(Errno::NODATA | Errno::NOTSUP) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(attributes)
}

/// Calls with a small buffer, and with the largest if that is too small.
fn growing(call: impl Fn(&mut [u8]) -> Result<usize, Errno>) -> Result<Vec<u8>, Errno> {
    let mut usual = [0; USUAL_BYTES];
    match call(&mut usual) {
        Ok(count) => Ok(usual[..count].to_vec()),
        Err(Errno::RANGE) => {
            let mut buffer = vec![0; MAX_ATTRIBUTE_BYTES];
            let count = call(&mut buffer)?;
            buffer.truncate(count);
            Ok(buffer)
        }
        Err(error) => Err(error),
    }
}

/// The names of owners that a lane has sent.
#[derive(Default)]
pub(crate) struct OwnerNames {
    users: HashSet<u32>,
    groups: HashSet<u32>,
    last: Option<(u32, u32)>,
}

impl OwnerNames {
    /// Returns the record that names the owners of an entry, if one of them was not named before.
    pub(crate) fn record(&mut self, uid: u32, gid: u32) -> Option<LaneRecord> {
        if self.last.replace((uid, gid)) == Some((uid, gid)) {
            return None;
        }
        let text = |name: &std::ffi::OsStr| name.to_str().map(str::to_owned);
        let user = self.users.insert(uid).then(|| {
            let user = uzers::get_user_by_uid(uid)?;
            Some((uid, text(user.name())?))
        });
        let group = self.groups.insert(gid).then(|| {
            let group = uzers::get_group_by_gid(gid)?;
            Some((gid, text(group.name())?))
        });
        let (user, group) = (user.flatten(), group.flatten());
        let is_named = user.is_some() || group.is_some();
        is_named.then_some(LaneRecord::Owner { user, group })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_are_named_once() {
        let mut names = OwnerNames::default();
        let Some(LaneRecord::Owner { user, group }) = names.record(0, 0) else {
            panic!("root has no name");
        };
        assert_eq!(user, Some((0, "root".to_owned())));
        assert!(group.is_some());
        assert_eq!(names.record(0, 0), None);
        assert_eq!(names.record(3_999_999_999, 0), None);
        assert_eq!(names.record(0, 0), None);
    }
}
