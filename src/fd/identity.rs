//! Which file a path or a descriptor leads to, whatever name, link or host leads to it.

use std::{fs, os::fd::AsFd, path::Path, sync::OnceLock};

use rustix::fs::{FileType, Stat, fstat, stat};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// A digest of the start of a machine, a device and an inode: equal for two entries only if they are one. It tells a
/// peer nothing else.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct EntryIdentity([u8; 16]);

impl EntryIdentity {
    /// Returns the identity of an entry. None if the system does not show the id of its start.
    pub(crate) fn of(stat: &Stat) -> Option<Self> {
        static BOOT: OnceLock<Option<Vec<u8>>> = OnceLock::new();
        let boot = BOOT.get_or_init(|| fs::read("/proc/sys/kernel/random/boot_id").ok());
        let mut digest = Sha256::new_with_prefix(boot.as_ref()?);
        digest.update(stat.st_dev.to_le_bytes());
        digest.update(stat.st_ino.to_le_bytes());
        let digest = digest.finalize();
        digest.first_chunk().copied().map(Self)
    }

    /// Returns the identity of the regular file at a path; none if it is no regular file, or cannot be looked at.
    pub(crate) fn of_file(path: &Path) -> Option<Self> {
        regular(&stat(path).ok()?)
    }

    /// Returns the identity of the regular file that a descriptor is open on; none if it is no regular file.
    pub(crate) fn of_open_file(file: impl AsFd) -> Option<Self> {
        regular(&fstat(file).ok()?)
    }
}

fn regular(stat: &Stat) -> Option<EntryIdentity> {
    let is_regular = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
    is_regular.then(|| EntryIdentity::of(stat)).flatten()
}
