//! The mount points of the kernel's file systems, and how their small files are read.

use std::{
    fs,
    path::{Path, PathBuf},
    str::FromStr,
};

/// The mount points of the kernel's file systems. Tests replace them by trees of their own.
#[derive(Debug, Clone)]
pub(crate) struct HostRoots {
    /// sysfs.
    pub(crate) sys: PathBuf,
    /// procfs.
    pub(crate) proc: PathBuf,
    /// devtmpfs.
    pub(crate) dev: PathBuf,
}

impl Default for HostRoots {
    fn default() -> Self {
        Self::below(Path::new("/"))
    }
}

impl HostRoots {
    /// Returns the roots `sys`, `proc` and `dev` of a directory.
    pub(crate) fn below(root: &Path) -> Self {
        Self {
            sys: root.join("sys"),
            proc: root.join("proc"),
            dev: root.join("dev"),
        }
    }
}

/// Reads a file and trims it. Returns none if it is empty, missing or unreadable.
pub(crate) fn trimmed(path: &Path) -> Option<String> {
    let bytes = fs::read(path).ok()?;
    let text = String::from_utf8_lossy(&bytes).trim().to_owned();
    (!text.is_empty()).then_some(text)
}

/// Reads a file that is a decimal number.
pub(crate) fn decimal<T: FromStr>(path: &Path) -> Option<T> {
    trimmed(path)?.parse().ok()
}

/// Returns the names in a directory, sorted; none if there is no such directory.
pub(crate) fn names(path: &Path) -> Vec<String> {
    let Ok(directory) = fs::read_dir(path) else {
        return Vec::new();
    };
    let names = directory.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let mut names: Vec<String> = names.collect();
    names.sort_unstable();
    names
}
