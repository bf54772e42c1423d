//! Moments in the middle of a copy: the tests wait for bytes to arrive, then kill, cut or change something.

use std::{fs, os::unix::fs::MetadataExt, path::Path};

use crate::support::programs::{Running, eventually};

/// Waits until a copy has `bytes` bytes on the disk, or until rdcp has ended. Returns true if rdcp still runs.
pub(crate) fn arrives(rdcp: &Running, copy: &Path, bytes: u64) -> bool {
    eventually("bytes to arrive", || {
        (arrived(copy) >= bytes || !rdcp.runs()).then_some(())
    });
    rdcp.runs()
}

/// Returns the bytes that the files at and below a path take on the disk.
pub(crate) fn arrived(at: &Path) -> u64 {
    // Entries come and go while they are counted.
    let Ok(info) = fs::symlink_metadata(at) else {
        return 0;
    };
    if !info.is_dir() {
        return info.blocks() * 512;
    }
    let entries = fs::read_dir(at).into_iter().flatten().flatten();
    entries.map(|entry| arrived(&entry.path())).sum()
}
