//! Files with no name or a temporary one, until they replace their target, and small files that are replaced as a
//! whole.

use std::{
    ffi::{OsStr, OsString},
    fs::{self, File},
    io::{self, Write},
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
        unix::ffi::{OsStrExt, OsStringExt},
    },
    path::Path,
};

use data_encoding::HEXLOWER;
use rustix::{
    fs::{
        AtFlags, CWD, FileType, Mode, OFlags, fchmod, getxattr_query, linkat, openat, renameat,
        statat, unlinkat,
    },
    io::{Errno, retry_on_intr},
};

use super::{sync, target::create_beside};

/// The most bytes of the target's name in a temporary name. With the 17 bytes around them, the name
/// stays below the system's limit of 255 bytes.
const NAME_BYTES: usize = 200;

/// The most random names that are tried. A name has 32 random bits, so that two names in a row are
/// hardly ever taken by chance.
const NAME_TRIES: usize = 8;

/// A file in the directory of its target, from its creation until it is published or dropped.
///
/// A `TemporaryFile` that is dropped removes its name, so a failure that this process survives
/// leaves nothing behind. If the process is killed (SIGKILL, power failure) before the file is
/// published, this remains:
///
/// - On file systems with `O_TMPFILE` (ext4, XFS, Btrfs, tmpfs): nothing, because the file has no
///   name. One exception: to replace an existing target, the file gets a temporary name just before
///   the rename. A process that is killed between these two system calls leaves the complete file
///   under that name.
/// - On other file systems (NFS, most of FUSE): a partial file under a temporary name.
///
/// A temporary name is `.NAME.rdpipe-` and eight random hexadecimal digits. The target itself is
/// either the old file or the complete new one in every case.
pub(super) struct TemporaryFile {
    directory: OwnedFd,
    /// The temporary name in `directory`, if the file has one now.
    name: Option<OsString>,
}

impl TemporaryFile {
    /// Creates a file in `directory` that is to become `target` there. The file gets the mode `mode`,
    /// or for `None` the mode that open(2) gives to a new file.
    /// Fails as open(2) does, above all if the directory is not writable.
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

    /// Gives `file`, which [`create`](Self::create) returned, the name `target`. With `fsync`, the
    /// directory is synced afterwards.
    /// Fails if `target` has become something other than a regular file, or if a system call fails; `target` is then
    /// unchanged. One exception: if the sync of the directory fails, `target` is the new file already.
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

    /// Gives a file without a name the name `target`. Returns false if the name is taken.
    fn link(&self, file: BorrowedFd<'_>, target: &OsStr) -> rustix::io::Result<bool> {
        match link(file, self.directory.as_fd(), target) {
            Err(Errno::EXIST) => Ok(false),
            result => result.map(|()| true),
        }
    }

    /// Replaces `target` with the file. link(2) cannot replace a file, so a file without a name gets a
    /// temporary one for the moment before the rename.
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

/// Creates a file without a name. Returns `None` if the file system has no `O_TMPFILE`, or if there is
/// no `/proc` through which to name the file later.
fn create_nameless(directory: BorrowedFd<'_>, mode: Mode) -> rustix::io::Result<Option<OwnedFd>> {
    let flags = OFlags::WRONLY | OFlags::TMPFILE | OFlags::CLOEXEC;
    match retry_on_intr(|| openat(directory, ".", flags, mode)) {
        Ok(file) => Ok(Path::new(&proc_path(file.as_fd())).exists().then_some(file)),
        // Kernels and file systems that do not know the flag answer EISDIR.
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

/// Returns true if `name` is a regular file, false if it does not exist.
/// Fails if `name` is anything else.
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

/// Calls `make` with random temporary names until one is free. Returns the name and the result.
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

/// Returns a random temporary name for a file that is to become `target`. No client of `rdcp --serve` may use such a
/// name (`copy/temporary_names.rs`).
pub(crate) fn temporary_name(target: &OsStr) -> rustix::io::Result<OsString> {
    let mut random = [0; 4];
    getrandom::fill(&mut random).map_err(|_| Errno::IO)?;
    let target = target.as_bytes();
    let mut name = b".".to_vec();
    name.extend_from_slice(&target[..target.len().min(NAME_BYTES)]);
    name.extend_from_slice(b".rdpipe-");
    name.extend_from_slice(HEXLOWER.encode(&random).as_bytes());
    Ok(OsString::from_vec(name))
}

/// Returns the mode to request, so that a new file gets the mode that open(2) would give it.
///
/// The kernel applies the umask, or the directory's default ACL instead. Before Linux 6.0 the kernel
/// did not apply the umask for `O_TMPFILE` on file systems without ACLs. This function therefore
/// applies the umask too, unless the directory has a default ACL.
///
/// The umask is read from `/proc`, because umask(2) can only be read by changing it for every thread.
/// Without `/proc` the file is not created with `O_TMPFILE` (see [`create_nameless`]), and the
/// kernel applies the umask.
fn mode_of_new_file(directory: BorrowedFd<'_>) -> Mode {
    let mode = Mode::from_raw_mode(0o666);
    let path = proc_path(directory);
    if getxattr_query(path.as_str(), "system.posix_acl_default").is_ok() {
        return mode;
    }
    mode - umask()
}

/// Returns the umask of this process; empty if the system does not show it.
pub(crate) fn umask() -> Mode {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    umask_in(&status).unwrap_or(Mode::empty())
}

/// Returns the umask from the text of `/proc/PID/status`, which has it since Linux 4.7.
pub(super) fn umask_in(status: &str) -> Option<Mode> {
    let mut lines = status.lines();
    let umask = lines.find_map(|line| line.strip_prefix("Umask:"))?;
    let umask = u32::from_str_radix(umask.trim(), 8).ok()?;
    Some(Mode::from_raw_mode(umask))
}

/// Replaces the file at `path` with a file that has this content and this mode, whatever the umask is. A reader finds
/// either the old file or the new one. The file may be lost by a power failure. Blocks.
/// Fails if the directory cannot be written, or if `path` is something other than a regular file. The old file is then
/// unchanged, and no other file is left behind.
pub(crate) fn replace_file(path: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    let mode = Mode::from_raw_mode(mode);
    let (fd, pending) = create_beside(path, Some(mode))?;
    fchmod(&fd, mode)?;
    let mut file = File::from(fd);
    file.write_all(content)?;
    pending.commit(OwnedFd::from(file), false)
}
