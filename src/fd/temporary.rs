//! A file that has no name yet, or a temporary one, until it takes the place of its target.

use std::{
    ffi::{OsStr, OsString},
    fs, io,
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
        unix::ffi::{OsStrExt, OsStringExt},
    },
    path::Path,
};

use data_encoding::HEXLOWER;
use rustix::{
    fs::{
        AtFlags, CWD, FileType, Mode, OFlags, getxattr_query, linkat, openat, renameat, statat,
        unlinkat,
    },
    io::{Errno, retry_on_intr},
};

use super::sync;

/// Most bytes of the target's name in a temporary name: with what is put around it, that stays
/// below the 255 bytes of a name.
const NAME_BYTES: usize = 200;

/// How often a random name may be taken already: at 32 bits a second time is no accident.
const NAME_TRIES: usize = 8;

/// The directory side of a file under construction. Dropped, it leaves nothing behind.
///
/// Where the file system knows `O_TMPFILE`, the file has no name at all and even SIGKILL leaves
/// no litter. Elsewhere (NFS, FUSE) it is `.NAME.rdpipe-` and eight random digits.
pub(super) struct TemporaryFile {
    directory: OwnedFd,
    /// The name in `directory`, if it has one now.
    name: Option<OsString>,
}

impl TemporaryFile {
    /// Creates a file in `directory`, that is going to be `target` there. With `Some(mode)` it
    /// has that mode; with `None` the one that open(2) gives to a new file.
    ///
    /// # Errors
    ///
    /// Those of open(2): above all, when the directory is not writable.
    pub(super) fn create(
        directory: &Path,
        target: &OsStr,
        mode: Option<Mode>,
    ) -> rustix::io::Result<(Self, OwnedFd)> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = openat(CWD, directory, flags, Mode::empty())?;
        let mode = mode.unwrap_or_else(|| mode_of_new_file(directory.as_fd()));
        if let Some(file) = create_nameless(directory.as_fd(), mode)? {
            let name = None;
            return Ok((Self { directory, name }, file));
        }
        Self::create_named(directory, target, mode)
    }

    /// Creates a file with a temporary name.
    pub(super) fn create_named(
        directory: OwnedFd,
        target: &OsStr,
        mode: Mode,
    ) -> rustix::io::Result<(Self, OwnedFd)> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let (name, file) = with_new_name(target, |name| {
            retry_on_intr(|| openat(&directory, name, flags, mode))
        })?;
        let name = Some(name);
        Ok((Self { directory, name }, file))
    }

    /// Makes `file`, which [`create`](Self::create) returned, the file called `target`. With
    /// `fsync` the directory is synced too.
    ///
    /// # Errors
    ///
    /// When `target` is now something else than a plain file, or the system refuses; `target` is
    /// what it was then. Only when the sync of the directory fails it is the new file already.
    pub(super) fn publish(
        mut self,
        file: BorrowedFd<'_>,
        target: &OsStr,
        fsync: bool,
    ) -> io::Result<()> {
        let exists = is_plain(self.directory.as_fd(), target)?;
        if self.name.is_some() || exists || !self.link(file, target)? {
            self.rename(file, target)?;
        }
        if fsync {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            sync(openat(&self.directory, ".", flags, Mode::empty())?.as_fd())?;
        }
        Ok(())
    }

    /// Gives a nameless file its final name. `false` if that is taken by now.
    fn link(&self, file: BorrowedFd<'_>, target: &OsStr) -> rustix::io::Result<bool> {
        match link(file, self.directory.as_fd(), target) {
            Err(Errno::EXIST) => Ok(false),
            result => result.map(|()| true),
        }
    }

    /// Puts the file in the place of `target`. link(2) replaces nothing, so a nameless file gets
    /// a temporary name for the moment between these two calls.
    fn rename(&mut self, file: BorrowedFd<'_>, target: &OsStr) -> rustix::io::Result<()> {
        let name = if let Some(name) = &self.name {
            name
        } else {
            let directory = self.directory.as_fd();
            let (name, ()) = with_new_name(target, |name| link(file, directory, name))?;
            self.name.insert(name)
        };
        renameat(&self.directory, name, &self.directory, target)?;
        self.name = None;
        Ok(())
    }
}

impl Drop for TemporaryFile {
    fn drop(&mut self) {
        if let Some(name) = &self.name {
            let _ = unlinkat(&self.directory, name, AtFlags::empty());
        }
    }
}

/// `None` where the file system has no `O_TMPFILE`, or there is no `/proc` to name the file later.
fn create_nameless(directory: BorrowedFd<'_>, mode: Mode) -> rustix::io::Result<Option<OwnedFd>> {
    let flags = OFlags::WRONLY | OFlags::TMPFILE | OFlags::CLOEXEC;
    match retry_on_intr(|| openat(directory, ".", flags, mode)) {
        Ok(file) => Ok(Path::new(&proc_path(file.as_fd())).exists().then_some(file)),
        // EISDIR is what kernels and file systems say that never heard of the flag.
        Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL | Errno::NOSYS) => Ok(None),
        Err(error) => Err(error),
    }
}

fn link(file: BorrowedFd<'_>, directory: BorrowedFd<'_>, name: &OsStr) -> rustix::io::Result<()> {
    linkat(
        CWD,
        proc_path(file).as_str(),
        directory,
        name,
        AtFlags::SYMLINK_FOLLOW,
    )
}

fn proc_path(file: BorrowedFd<'_>) -> String {
    format!("/proc/self/fd/{}", file.as_raw_fd())
}

/// Whether there is a plain file of this name; nothing is `false`.
fn is_plain(directory: BorrowedFd<'_>, name: &OsStr) -> io::Result<bool> {
    match statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
        Err(Errno::NOENT) => Ok(false),
        Err(error) => Err(error.into()),
        Ok(stat) if FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile => Ok(true),
        Ok(_) => Err(io::Error::new(
            io::ErrorKind::AlreadyExists,
            "something that is not a plain file has taken its place meanwhile",
        )),
    }
}

/// Tries random temporary names until `make` finds one that is free.
fn with_new_name<T>(
    target: &OsStr,
    mut make: impl FnMut(&OsStr) -> rustix::io::Result<T>,
) -> rustix::io::Result<(OsString, T)> {
    for _ in 0..NAME_TRIES {
        let name = temporary_name(target)?;
        match make(&name) {
            Err(Errno::EXIST) => {}
            result => return Ok((name, result?)),
        }
    }
    Err(Errno::EXIST)
}

fn temporary_name(target: &OsStr) -> rustix::io::Result<OsString> {
    let mut random = [0; 4];
    getrandom::fill(&mut random).map_err(|_| Errno::IO)?;
    let target = target.as_bytes();
    let mut name = b".".to_vec();
    name.extend_from_slice(&target[..target.len().min(NAME_BYTES)]);
    name.extend_from_slice(b".rdpipe-");
    name.extend_from_slice(HEXLOWER.encode(&random).as_bytes());
    Ok(OsString::from_vec(name))
}

/// The mode to ask for, so that a new file gets what open(2) would give it.
///
/// The kernel applies the umask, or the directory's default ACL in its place; but before Linux
/// 6.0 it forgot the umask for `O_TMPFILE` on file systems without ACLs. So the umask is applied
/// here as well, except where an ACL is to rule. It is read from `/proc`, since umask(2) can only
/// be read by changing it for every thread; with no `/proc` there is no `O_TMPFILE` either
/// (see [`create_nameless`]), and the kernel's own umask is enough.
fn mode_of_new_file(directory: BorrowedFd<'_>) -> Mode {
    let mode = Mode::from_raw_mode(0o666);
    let path = proc_path(directory);
    if getxattr_query(path.as_str(), "system.posix_acl_default").is_ok() {
        return mode;
    }
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    mode - umask_in(&status).unwrap_or(Mode::empty())
}

/// The `Umask:` line of `/proc/PID/status`, there since Linux 4.7.
pub(super) fn umask_in(status: &str) -> Option<Mode> {
    let mut lines = status.lines();
    let umask = lines.find_map(|line| line.strip_prefix("Umask:"))?;
    let umask = u32::from_str_radix(umask.trim(), 8).ok()?;
    Some(Mode::from_raw_mode(umask))
}
