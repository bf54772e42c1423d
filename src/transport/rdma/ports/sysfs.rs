//! Reading attributes: small text files of the kernel, any of which may be missing or refuse.

use std::{
    fs::{self, File},
    io::Read,
    path::{Path, PathBuf},
    str::FromStr,
};

/// Where the kernel's file systems are. A parameter, so that tests bring trees of their own.
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

/// Longest attribute: the kernel gives it one page, and all of it in one read. Half the system calls
/// that [`fs::read`] makes, and of these files there are hundreds.
const PAGE_BYTES: usize = 4096;

/// The trimmed text of an attribute, or nothing when it is missing or cannot be read: an empty
/// slot of the GID table, for one, has attributes that answer EINVAL.
pub(crate) fn text(path: &Path) -> Option<String> {
    let mut page = [0; PAGE_BYTES];
    let count = File::open(path).ok()?.read(&mut page).ok()?;
    Some(String::from_utf8_lossy(&page[..count]).trim().to_owned())
}

/// The text of a file of procfs, which may take many reads.
pub(crate) fn whole(path: &Path) -> Option<String> {
    fs::read_to_string(path).ok()
}

/// An attribute's number, decimal, or hexadecimal after `0x`.
pub(crate) fn number(path: &Path) -> Option<u32> {
    let text = text(path)?;
    match text.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

/// The entries of a directory whose names are a `T`, in its order. Empty when there is no such
/// directory.
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
