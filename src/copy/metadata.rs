//! What an entry of a tree has beside its name and its contents: metadata, extended attributes, owners.

use std::{
    collections::{HashMap, HashSet},
    ffi::CStr,
    fmt::Write as _,
    os::fd::{AsFd, AsRawFd},
};

use rustix::{
    fs::{FileType, Stat, fgetxattr, flistxattr, getxattr, lgetxattr, listxattr, llistxattr},
    io::Errno,
};
use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;
use uzers::{get_group_by_name, get_user_by_name};

use super::bounded::{MAX_ATTRIBUTES, at_most};

/// The metadata of an entry.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Metadata {
    /// The permission bits, with set-user-ID, set-group-ID and the sticky bit (0o7777).
    pub(crate) mode: u32,
    /// The number of the owner at the source.
    pub(crate) uid: u32,
    /// The number of the group at the source.
    pub(crate) gid: u32,
    /// The time of the last modification.
    pub(crate) modified: Timestamp,
    /// The time of the last access.
    pub(crate) accessed: Timestamp,
    /// Extended attributes, ACLs among them: name and value. Empty unless all metadata are kept.
    #[serde(deserialize_with = "at_most::<MAX_ATTRIBUTES, _, _>")]
    pub(crate) attributes: Vec<Attribute>,
}

/// A time of a file: seconds since 1970 and nanoseconds, as statx(2) gives them.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub(crate) struct Timestamp {
    /// Seconds since 1970, negative before.
    pub(crate) seconds: i64,
    /// Nanoseconds, less than a thousand million.
    pub(crate) nanoseconds: u32,
}

impl Timestamp {
    /// Returns the date and the time of day in UTC, as `2038-01-19 03:14:07 UTC`.
    pub(crate) fn utc_text(self) -> String {
        let (days, second) = (
            self.seconds.div_euclid(86_400),
            self.seconds.rem_euclid(86_400),
        );
        // A year that begins in March ends with the leap day. 400 of them have 146,097 days; day 0 is 0000-03-01.
        let day = days + 719_468;
        let (era, day) = (day.div_euclid(146_097), day.rem_euclid(146_097));
        let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
        let day = day - (365 * year + year / 4 - year / 100);
        let month = (5 * day + 2) / 153;
        let day = day - (153 * month + 2) / 5 + 1;
        let (month, is_next) = if month < 10 {
            (month + 3, 0)
        } else {
            (month - 9, 1)
        };
        let year = era * 400 + year + is_next;
        let (hour, minute, second) = (second / 3_600, second / 60 % 60, second % 60);
        format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02} UTC")
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum EntryKind {
    File,
    Directory,
    /// A symbolic link.
    Symlink,
    Fifo,
    /// A socket, which is made without a listener.
    Socket,
    CharacterDevice {
        /// The number, as stat(2) has it in `st_rdev`.
        device: u64,
    },
    BlockDevice {
        /// The number, as stat(2) has it in `st_rdev`.
        device: u64,
    },
}

impl EntryKind {
    /// Returns true if the entry is a device node.
    pub(crate) fn is_device(self) -> bool {
        matches!(
            self,
            Self::CharacterDevice { .. } | Self::BlockDevice { .. }
        )
    }

    /// Returns what kind of entry `stat` describes; none for a type that this program does not know.
    pub(crate) fn of(stat: &Stat) -> Option<Self> {
        let device = stat.st_rdev;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => Some(Self::File),
            FileType::Directory => Some(Self::Directory),
            FileType::Symlink => Some(Self::Symlink),
            FileType::Fifo => Some(Self::Fifo),
            FileType::Socket => Some(Self::Socket),
            FileType::CharacterDevice => Some(Self::CharacterDevice { device }),
            FileType::BlockDevice => Some(Self::BlockDevice { device }),
            FileType::Unknown => None,
        }
    }
}

/// An extended attribute: name and value. serde takes the bytes of a `ByteBuf` at once, and those of a `Vec<u8>` one by one.
pub(crate) type Attribute = (ByteBuf, ByteBuf);

/// The most bytes of an attribute's value, and of the list of names, on Linux.
const MAX_ATTRIBUTE_BYTES: usize = 64 << 10;

/// The bytes that suffice for the names of most files.
const USUAL_BYTES: usize = 256;

/// Reads the extended attributes of an open file.
pub(crate) fn attributes_of(file: impl AsFd) -> Result<Vec<Attribute>, Errno> {
    let file = file.as_fd();
    attributes(
        |buffer| flistxattr(file, buffer),
        |name, buffer| fgetxattr(file, name, buffer),
    )
}

/// Reads the extended attributes of an entry that is not opened: a link, a FIFO, a socket or a device.
pub(crate) fn attributes_at(folder: impl AsFd, name: &CStr) -> Result<Vec<Attribute>, Errno> {
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

/// Reads the extended attributes of an entry that is open as a place only (`O_PATH`).
pub(crate) fn attributes_of_place(place: impl AsFd) -> Result<Vec<Attribute>, Errno> {
    let path = format!("/proc/self/fd/{}", place.as_fd().as_raw_fd());
    attributes(
        |buffer| listxattr(&path[..], buffer),
        |name, buffer| getxattr(&path[..], name, buffer),
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
            Ok(value) => attributes.push((ByteBuf::from(name.to_bytes()), value.into())),
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

/// The most owners whose names one stream may send: far more than a host has, and little memory.
const MAX_OWNERS: usize = 1 << 16;

/// The numbers that users and groups of the source have at this host.
#[derive(Debug, Clone, Default)]
pub(crate) struct LocalOwners {
    users: HashMap<u32, u32>,
    groups: HashMap<u32, u32>,
}

impl LocalOwners {
    /// Notes the names of a user and of a group of the source. Returns false if there are too many.
    pub(crate) fn add_names(
        &mut self,
        user: Option<(u32, String)>,
        group: Option<(u32, String)>,
    ) -> bool {
        if let Some((number, name)) = user {
            if let Some(user) = get_user_by_name(&name) {
                self.users.insert(number, user.uid());
            }
        }
        if let Some((number, name)) = group {
            if let Some(group) = get_group_by_name(&name) {
                self.groups.insert(number, group.gid());
            }
        }
        self.users.len() <= MAX_OWNERS && self.groups.len() <= MAX_OWNERS
    }

    /// Returns the number that a user of the source has here: the same if its name is not known.
    pub(crate) fn user(&self, number: u32) -> u32 {
        self.users.get(&number).copied().unwrap_or(number)
    }

    /// Returns the number that a group of the source has here: the same if its name is not known.
    pub(crate) fn group(&self, number: u32) -> u32 {
        self.groups.get(&number).copied().unwrap_or(number)
    }
}

/// Returns the metadata in `stat`, without extended attributes.
pub(crate) fn metadata_of(stat: &Stat) -> Metadata {
    Metadata {
        mode: stat.st_mode & 0o7777,
        uid: stat.st_uid,
        gid: stat.st_gid,
        modified: modified(stat),
        accessed: accessed(stat),
        attributes: Vec::new(),
    }
}

/// Returns the time of the last modification.
pub(crate) fn modified(stat: &Stat) -> Timestamp {
    timestamp(stat.st_mtime, stat.st_mtime_nsec)
}

/// Returns the time of the last access.
pub(crate) fn accessed(stat: &Stat) -> Timestamp {
    timestamp(stat.st_atime, stat.st_atime_nsec)
}

/// Returns the time of the last change, which no program can set.
pub(crate) fn changed(stat: &Stat) -> Timestamp {
    timestamp(stat.st_ctime, stat.st_ctime_nsec)
}

fn timestamp(seconds: i64, nanoseconds: impl TryInto<u32>) -> Timestamp {
    Timestamp {
        seconds,
        nanoseconds: nanoseconds.try_into().unwrap_or(0),
    }
}

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

/// The names of owners that a stream has sent.
#[derive(Default)]
pub(crate) struct OwnerNames {
    users: HashSet<u32>,
    groups: HashSet<u32>,
    last: Option<(u32, u32)>,
}

/// The numbers and the names of owners: of a user, of a group.
pub(crate) type NamedOwners = (Option<(u32, String)>, Option<(u32, String)>);

impl OwnerNames {
    /// Returns the names of the owners of an entry, if one of them was not named before.
    pub(crate) fn names(&mut self, uid: u32, gid: u32) -> Option<NamedOwners> {
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
        is_named.then_some((user, group))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_shown_as_dates() {
        for (seconds, text) in [
            (0, "1970-01-01 00:00:00 UTC"),
            (-1, "1969-12-31 23:59:59 UTC"),
            (951_825_600, "2000-02-29 12:00:00 UTC"),
            (951_868_800, "2000-03-01 00:00:00 UTC"),
            (2_147_483_647, "2038-01-19 03:14:07 UTC"),
            (4_107_542_399, "2100-02-28 23:59:59 UTC"),
            (4_107_542_400, "2100-03-01 00:00:00 UTC"),
            (-11_644_473_600, "1601-01-01 00:00:00 UTC"),
        ] {
            let time = Timestamp {
                seconds,
                nanoseconds: 1,
            };
            assert_eq!(time.utc_text(), text);
        }
        for seconds in [i64::MIN, i64::MAX] {
            let time = Timestamp {
                seconds,
                nanoseconds: 0,
            };
            assert!(time.utc_text().ends_with(" UTC"));
        }
    }

    #[test]
    fn owners_are_named_once() {
        let mut names = OwnerNames::default();
        let Some((user, group)) = names.names(0, 0) else {
            panic!("root has no name");
        };
        assert_eq!(user, Some((0, "root".to_owned())));
        assert!(group.is_some());
        assert_eq!(names.names(0, 0), None);
        assert_eq!(names.names(3_999_999_999, 0), None);
        assert_eq!(names.names(0, 0), None);
    }
}
