//! Opening directories below another one, without following a link.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::{
    fs::{Mode, OFlags, ResolveFlags, openat, openat2},
    io::Errno,
};

use crate::copy::path::RelativePath;

/// The most bytes of a path that are passed to one system call. Linux accepts 4095.
const SEGMENT_BYTES: usize = 3000;

/// The flags for a directory whose entries are read.
pub(crate) const DIRECTORY_FLAGS: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::CLOEXEC)
    .union(OFlags::NONBLOCK);

/// Opens the directory `path` below `root`. A link on the way is an error, so a tree that changes leads nowhere else.
/// The path may be longer than a system call accepts.
///
/// # Errors
///
/// Those of openat2(2).
pub(crate) fn open_below(root: BorrowedFd<'_>, path: &RelativePath) -> Result<OwnedFd, Errno> {
    let mut opened: Option<OwnedFd> = None;
    for segment in segments(path.as_bytes()) {
        let base = opened.as_ref().map_or(root, AsFd::as_fd);
        opened = Some(open_segment(base, segment)?);
    }
    match opened {
        Some(opened) => Ok(opened),
        None => openat(root, ".", DIRECTORY_FLAGS, Mode::empty()),
    }
}

fn open_segment(base: BorrowedFd<'_>, segment: &[u8]) -> Result<OwnedFd, Errno> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    loop {
        match openat2(base, segment, DIRECTORY_FLAGS, Mode::empty(), resolve) {
            // Something was renamed meanwhile.
            Err(Errno::AGAIN | Errno::INTR) => {}
            // Linux before 5.6, or a sandbox that does not know the call.
            Err(Errno::NOSYS | Errno::PERM) => return open_each(base, segment),
            result => return result,
        }
    }
}

/// Opens one directory after another, for systems without openat2(2).
fn open_each(base: BorrowedFd<'_>, segment: &[u8]) -> Result<OwnedFd, Errno> {
    let mut opened: Option<OwnedFd> = None;
    for name in segment.split(|&byte| byte == b'/') {
        let base = opened.as_ref().map_or(base, AsFd::as_fd);
        let flags = DIRECTORY_FLAGS | OFlags::NOFOLLOW;
        opened = Some(openat(base, name, flags, Mode::empty())?);
    }
    opened.ok_or(Errno::NOENT)
}

/// Cuts a path at slashes into pieces that a system call accepts.
fn segments(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = path;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        if rest.len() <= SEGMENT_BYTES {
            return Some(std::mem::take(&mut rest));
        }
        // A name has at most 255 bytes, so there is a slash.
        let cut = rest[..SEGMENT_BYTES]
            .iter()
            .rposition(|&byte| byte == b'/')
            .unwrap_or(rest.len());
        let segment = &rest[..cut];
        rest = rest.get(cut + 1..).unwrap_or_default();
        Some(segment)
    })
}

#[cfg(test)]
mod tests {
    use std::{
        fs,
        os::{fd::AsFd, unix::fs::symlink},
    };

    use super::*;

    fn relative(path: &str) -> RelativePath {
        RelativePath::try_from(path.as_bytes().to_vec()).unwrap()
    }

    #[test]
    fn long_paths_are_cut_at_slashes() {
        let name = "n".repeat(200);
        let path = vec![name.as_str(); 40].join("/");
        let cut: Vec<&[u8]> = segments(path.as_bytes()).collect();
        assert!(cut.len() > 2 && cut.iter().all(|segment| segment.len() <= SEGMENT_BYTES));
        assert_eq!(cut.join(&b'/'), path.as_bytes());
    }

    #[test]
    fn a_link_leads_nowhere() {
        let place = tempfile::tempdir().unwrap();
        fs::create_dir_all(place.path().join("tree/inner")).unwrap();
        fs::create_dir_all(place.path().join("outside/inner")).unwrap();
        symlink("../outside", place.path().join("tree/link")).unwrap();
        let root = fs::File::open(place.path().join("tree")).unwrap();
        assert!(open_below(root.as_fd(), &relative("inner")).is_ok());
        assert!(open_below(root.as_fd(), &relative("")).is_ok());
        for path in ["link", "link/inner"] {
            assert!(open_below(root.as_fd(), &relative(path)).is_err());
            assert!(open_each(root.as_fd(), path.as_bytes()).is_err());
        }
        assert!(open_each(root.as_fd(), b"inner").is_ok());
    }
}
