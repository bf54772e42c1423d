//! What an entry of a tree has beside its name and its contents. Pure, no I/O.

use rustix::fs::{FileType, Stat};
use serde::{Deserialize, Serialize};

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
    pub(crate) attributes: Vec<(Vec<u8>, Vec<u8>)>,
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

/// What an entry is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum EntryKind {
    /// A plain file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A FIFO.
    Fifo,
    /// A socket, which is made without a listener.
    Socket,
    /// A character device with this number.
    CharacterDevice {
        /// The number, as stat(2) has it in `st_rdev`.
        device: u64,
    },
    /// A block device with this number.
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
