//! An entry whose metadata are set, and the system calls that set them.

use std::{ffi::CString, os::fd::BorrowedFd};

use rustix::fs::{
    AtFlags, CWD, Gid, Mode, Stat, Timestamps, Uid, XattrFlags, chmodat, chownat, fchmod, fchown,
    fremovexattr, fsetxattr, fstat, futimens, removexattr, setxattr, utimensat,
};

use crate::copy::{
    destination::{stored_times::timespec, tree::beneath::proc_path},
    extended_attributes::{Attribute, attributes_of, attributes_of_place},
    metadata::Timestamp,
};

/// An entry whose metadata are set.
#[derive(Debug, Clone, Copy)]
pub(in crate::copy::destination) enum EntryHandle<'a> {
    /// A file or directory that is open.
    Open(BorrowedFd<'a>),
    /// An entry that is open as a place only (`O_PATH`), and is not a symbolic link.
    Place(BorrowedFd<'a>),
    /// A symbolic link that is open as a place only. A link has no mode.
    Link(BorrowedFd<'a>),
}

impl EntryHandle<'_> {
    pub(super) fn change_owner(
        self,
        (uid, gid): (Option<u32>, Option<u32>),
    ) -> rustix::io::Result<()> {
        let (uid, gid) = (uid.map(Uid::from_raw), gid.map(Gid::from_raw));
        match self {
            Self::Open(fd) => fchown(fd, uid, gid),
            Self::Place(fd) | Self::Link(fd) => chownat(fd, "", uid, gid, AtFlags::EMPTY_PATH),
        }
    }

    pub(super) fn change_mode(self, mode: u32) -> rustix::io::Result<()> {
        let mode = Mode::from_raw_mode(mode);
        match self {
            Self::Open(fd) => fchmod(fd, mode),
            Self::Place(fd) => chmodat(CWD, proc_path(fd), mode, AtFlags::empty()),
            Self::Link(_) => Ok(()),
        }
    }

    pub(super) fn change_times(
        self,
        (accessed, modified): (Timestamp, Timestamp),
    ) -> rustix::io::Result<()> {
        let times = Timestamps {
            last_access: timespec(accessed),
            last_modification: timespec(modified),
        };
        match self {
            Self::Open(fd) => futimens(fd, &times),
            Self::Place(fd) | Self::Link(fd) => {
                utimensat(CWD, proc_path(fd), &times, AtFlags::empty())
            }
        }
    }

    pub(super) fn stat(self) -> rustix::io::Result<Stat> {
        match self {
            Self::Open(fd) | Self::Place(fd) | Self::Link(fd) => fstat(fd),
        }
    }

    pub(super) fn attributes(self) -> rustix::io::Result<Vec<Attribute>> {
        match self {
            Self::Open(fd) => attributes_of(fd),
            Self::Place(fd) | Self::Link(fd) => attributes_of_place(fd),
        }
    }

    pub(super) fn remove_attribute(self, name: &CString) -> rustix::io::Result<()> {
        match self {
            Self::Open(fd) => fremovexattr(fd, name),
            Self::Place(fd) | Self::Link(fd) => removexattr(proc_path(fd), name),
        }
    }

    pub(super) fn set_attribute(self, name: &CString, value: &[u8]) -> rustix::io::Result<()> {
        match self {
            Self::Open(fd) => fsetxattr(fd, name, value, XattrFlags::empty()),
            Self::Place(fd) | Self::Link(fd) => {
                setxattr(proc_path(fd), name, value, XattrFlags::empty())
            }
        }
    }
}
