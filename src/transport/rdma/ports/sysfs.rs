//! Reads the small text files of the kernel. Any of them may be missing or unreadable.

use std::{
    fs::{self, File},
    io::Read,
    path::{Path, PathBuf},
    str::FromStr,
};

/// The mount points of the kernel's file systems. Tests replace them by trees of their own.
#[derive(Debug, Clone)]
pub(crate) struct Roots {
    /// sysfs.
    pub(crate) sys: PathBuf,
    /// procfs.
    pub(crate) proc: PathBuf,
    /// devtmpfs.
    pub(crate) dev: PathBuf,
}

impl Default for Roots {
    fn default() -> Self {
        Self {
            sys: "/sys".into(),
            proc: "/proc".into(),
            dev: "/dev".into(),
        }
    }
}

/// The longest attribute, which the kernel returns in one read. That takes half the system calls of [`fs::read`], and
/// there are hundreds of these files.
const PAGE_BYTES: usize = 4096;

/// Reads an attribute and trims it. Returns `None` if it is missing or cannot be read: the attributes of an empty entry
/// of the GID table, for instance, return EINVAL.
pub(crate) fn text(path: &Path) -> Option<String> {
    let mut page = [0; PAGE_BYTES];
    let count = File::open(path).ok()?.read(&mut page).ok()?;
    Some(String::from_utf8_lossy(&page[..count]).trim().to_owned())
}

/// Reads a file of procfs, which may take many reads.
pub(crate) fn whole(path: &Path) -> Option<String> {
    fs::read_to_string(path).ok()
}

/// Reads an attribute that is a number, decimal or hexadecimal after `0x`.
pub(crate) fn number(path: &Path) -> Option<u32> {
    let text = text(path)?;
    match text.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

/// Returns the entries of a directory whose names parse as `T`, sorted. Empty if there is no such directory.
pub(crate) fn entries<T: FromStr + Ord>(path: &Path) -> Vec<T> {
    let Ok(directory) = fs::read_dir(path) else {
        return Vec::new();
    };
    let mut names: Vec<T> = directory
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .collect();
    names.sort_unstable();
    names
}
