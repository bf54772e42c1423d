//! Opens what is below a directory, and nothing else: no symbolic link leads out, whatever changes meanwhile.

use std::{
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    sync::atomic::{AtomicBool, Ordering},
};

use rustix::{
    fs::{Mode, OFlags, ResolveFlags, openat, openat2},
    io::Errno,
};

use crate::copy::path::RelativePath;

/// How often an open is repeated that the kernel gave up because of a rename at the same time.
const TRIES: usize = 16;

/// Set if the kernel has no openat2(2): before Linux 5.6, or forbidden by a filter of system calls.
static HAS_NO_OPENAT2: AtomicBool = AtomicBool::new(false);

/// Opens the directory `path` below `root`, to read it. A directory that may be searched but not read is opened as a
/// place only (`O_PATH`).
///
/// # Errors
///
/// Fails as openat2(2) does. `ELOOP` or `ENOTDIR` says that something on the way is not a directory.
pub(in crate::copy::destination) fn open_directory(
    root: BorrowedFd<'_>,
    path: &RelativePath,
) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match open_beneath(root, path, flags) {
        Err(Errno::ACCESS) => open_beneath(root, path, flags | OFlags::PATH),
        result => result,
    }
}

/// Opens the directory `name` in `directory`.
///
/// # Errors
///
/// Fails as openat(2) does. `ELOOP` or `ENOTDIR` says that the entry is not a directory.
pub(in crate::copy::destination) fn open_child(
    directory: BorrowedFd<'_>,
    name: &[u8],
) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match openat(directory, name, flags, Mode::empty()) {
        Err(Errno::ACCESS) => openat(directory, name, flags | OFlags::PATH, Mode::empty()),
        result => result,
    }
}

/// Opens a directory again with a position of its own, to list it.
///
/// # Errors
///
/// Fails as openat(2) does.
pub(in crate::copy::destination) fn open_again(
    directory: BorrowedFd<'_>,
) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
    openat(directory, ".", flags, Mode::empty())
}

/// Returns the path under which `/proc` shows what a descriptor is open for. It names that entry even if another has
/// taken the entry's name.
pub(in crate::copy::destination) fn proc_path(fd: impl AsFd) -> String {
    format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd())
}

fn open_beneath(
    root: BorrowedFd<'_>,
    path: &RelativePath,
    flags: OFlags,
) -> rustix::io::Result<OwnedFd> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let name = if path.is_empty() {
        b"."
    } else {
        path.as_bytes()
    };
    for _ in 0..TRIES {
        if HAS_NO_OPENAT2.load(Ordering::Relaxed) {
            return open_by_names(root, path, flags);
        }
        match openat2(root, name, flags, Mode::empty(), resolve) {
            Err(Errno::NOSYS | Errno::PERM) => HAS_NO_OPENAT2.store(true, Ordering::Relaxed),
            Err(Errno::AGAIN | Errno::INTR) => {}
            result => return result,
        }
    }
    Err(Errno::AGAIN)
}

/// Opens one name after the other, without openat2(2).
fn open_by_names(
    root: BorrowedFd<'_>,
    path: &RelativePath,
    flags: OFlags,
) -> rustix::io::Result<OwnedFd> {
    let step = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut directory = openat(root, ".", step, Mode::empty())?;
    for name in path.names() {
        directory = openat(&directory, name, step, Mode::empty())?;
    }
    openat(&directory, ".", flags - OFlags::NOFOLLOW, Mode::empty())
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink};

    use super::*;

    fn path(text: &str) -> RelativePath {
        text.as_bytes().to_vec().try_into().unwrap()
    }

    #[test]
    fn with_and_without_openat2_no_link_is_followed() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir_all(folder.path().join("a/b")).unwrap();
        symlink("b", folder.path().join("a/link")).unwrap();
        symlink("/", folder.path().join("out")).unwrap();
        let root = fs::File::open(folder.path()).unwrap();
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        for open in [open_beneath, open_by_names] {
            for good in ["", "a", "a/b"] {
                open(root.as_fd(), &path(good), flags).unwrap();
            }
            for bad in ["a/link", "out", "out/etc"] {
                let error = open(root.as_fd(), &path(bad), flags).unwrap_err();
                assert!(
                    matches!(error, Errno::LOOP | Errno::NOTDIR),
                    "{bad}: {error}"
                );
            }
            let missing = open(root.as_fd(), &path("a/c"), flags).unwrap_err();
            assert_eq!(missing, Errno::NOENT);
        }
    }
}
