//! Files without names, for lists of any length.

use std::{env, fs::File, io, os::fd::BorrowedFd};

use rustix::fs::{CWD, MemfdFlags, Mode, OFlags, memfd_create, openat};

/// A file without a name.
#[derive(Debug)]
pub(crate) struct NamelessFile {
    /// The file, open to read and write.
    pub(crate) file: File,
    /// True if its contents are in memory, because no file system has such files.
    pub(crate) is_in_memory: bool,
}

impl NamelessFile {
    /// Makes a file in the file system of a directory, if one is given. If that has no files without names, or this
    /// process may make none there, makes one in the directory for temporary files; otherwise one in memory.
    pub(crate) fn make(near: Option<BorrowedFd<'_>>) -> io::Result<Self> {
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        let mode = Mode::RUSR | Mode::WUSR;
        let opened = near.and_then(|near| openat(near, ".", flags, mode).ok());
        let opened = opened.or_else(|| openat(CWD, env::temp_dir(), flags, mode).ok());
        let is_in_memory = opened.is_none();
        let fd = match opened {
            Some(fd) => fd,
            None => memfd_create(c"rdcp-list", MemfdFlags::CLOEXEC)?,
        };
        Ok(Self {
            file: fd.into(),
            is_in_memory,
        })
    }
}
