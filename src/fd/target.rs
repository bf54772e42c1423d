//! The output file of `>`: all of it or nothing, where the file system allows that.

use std::{
    ffi::OsString,
    fmt, fs, io,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    path::{Path, PathBuf},
    time::Duration,
};

use rustix::{
    fs::{
        AtFlags, CWD, FileType, Mode, OFlags, Stat, StatxAttributes, StatxFlags, fchmod, fchown,
        fcntl_getfl, fcntl_setfl, flistxattr, flistxattr_query, fstat, ftruncate, lstat, openat,
        stat, statfs, statx,
    },
    io::{Errno, retry_on_intr},
    process::{Gid, Uid, geteuid},
};

use super::{Sink, blocking, close, file_type, sync, temporary::TemporaryFile};

/// How often a FIFO is tried until a reader has opened it: nobody notices a twentieth of a
/// second, and twenty calls a second cost nothing.
const FIFO_INTERVAL: Duration = Duration::from_millis(50);

/// Most symbolic links on the way to the target: the kernel's own limit.
const MAX_LINKS: usize = 40;

/// A file that appears under its name when it is complete.
///
/// What is written goes to a temporary file, which takes the name at [`commit`](Self::commit); a
/// `OutputTarget` that is dropped before leaves the file as it was. That holds for a file that does not
/// exist yet, and for a plain one of which the new one can be a true replacement. Devices, FIFOs,
/// files with several names, extended attributes, or an owner that cannot be kept are opened and
/// truncated in place, as a shell's `>` does it.
pub(crate) struct OutputTarget {
    sink: Sink,
    /// `None` for a file written in place.
    pending: Option<PendingCommit>,
}

/// A file written beside its target.
struct PendingCommit {
    temporary: TemporaryFile,
    /// The target's name in the temporary file's directory.
    target: OsString,
}

impl OutputTarget {
    /// Opens the file to be written instead of `path`, or `path` itself in place. Symbolic links
    /// are followed; one that leads nowhere names the file to be made. Waits until a FIFO has a
    /// reader.
    ///
    /// # Errors
    ///
    /// When `path` is a directory, is not ours to write, or cannot be created.
    ///
    /// # Cancel safety
    ///
    /// Nothing is created or left behind when the future is dropped. A plain file that has to be
    /// written in place may have been truncated by then.
    pub(crate) async fn create(path: &Path) -> io::Result<Self> {
        let name = path.display().to_string();
        let path = path.to_owned();
        let (fd, pending) = match blocking(move || prepare(&path)).await? {
            PreparedTarget::Beside(fd, pending) => (fd, Some(pending)),
            PreparedTarget::InPlace(fd) => (fd, None),
            PreparedTarget::Special(path) => (open_special(path).await?, None),
        };
        let sink = Sink::new(fd, name)?;
        Ok(Self { sink, pending })
    }

    /// Where to write.
    pub(crate) fn sink(&mut self) -> &mut Sink {
        &mut self.sink
    }

    /// The path as it was given, for messages.
    pub(crate) fn describe(&self) -> &str {
        self.sink.describe()
    }

    /// Closes the file and gives it its name. With `fsync` file and directory are on the disk
    /// when this returns.
    ///
    /// # Errors
    ///
    /// Those of fsync(2), close(2), link(2) and rename(2): the target is what it was before,
    /// unless it was written in place. Only when the sync of the directory comes last and fails,
    /// the new file is there, and may be lost if the power is.
    ///
    /// # Cancel safety
    ///
    /// Not cancel safe: a commit that was begun goes on, and its result is lost.
    pub(crate) async fn commit(self, fsync: bool) -> io::Result<()> {
        match self.pending {
            None => self.sink.close(fsync).await,
            Some(pending) => {
                let fd = self.sink.into_fd();
                blocking(move || pending.commit(fd, fsync)).await
            }
        }
    }

    /// Whether the target stays as it is until the commit.
    #[cfg(test)]
    pub(super) fn is_beside(&self) -> bool {
        self.pending.is_some()
    }
}

impl fmt::Display for OutputTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.describe())
    }
}

impl PendingCommit {
    fn commit(self, fd: OwnedFd, fsync: bool) -> io::Result<()> {
        if fsync {
            sync(fd.as_fd())?;
        }
        // A nameless file lives as long as a descriptor does, and the errors that close(2) tells
        // must come before the name: one descriptor is closed, the other names the file.
        let file = fd.try_clone()?;
        close(fd)?;
        self.temporary.publish(file.as_fd(), &self.target, fsync)
    }
}

/// What became of a path.
enum PreparedTarget {
    /// A temporary file, and what takes it to the target.
    Beside(OwnedFd, PendingCommit),
    /// The target itself, truncated.
    InPlace(OwnedFd),
    /// Something that is not a plain file, or is reached through `/proc`; not open yet.
    Special(PathBuf),
}

fn prepare(path: &Path) -> io::Result<PreparedTarget> {
    match resolve(path)? {
        ResolvedPath::Special(path) => Ok(PreparedTarget::Special(path)),
        ResolvedPath::Missing(path) => {
            let (fd, pending) = create_beside(&path, None)?;
            Ok(PreparedTarget::Beside(fd, pending))
        }
        ResolvedPath::Plain(path) => prepare_plain(&path),
    }
}

/// Opens a plain file as a shell would, which is the test whether we may write it, and looks at it
/// through that descriptor. With `CREATE`, because only then the kernel protects against files
/// that somebody has planted in a directory like `/tmp` (`fs.protected_regular`).
fn prepare_plain(path: &Path) -> io::Result<PreparedTarget> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = retry_on_intr(|| openat(CWD, path, flags, Mode::from_raw_mode(0o666)))?;
    let stat = fstat(&file)?;
    if write_method(&facts(file.as_fd(), &stat)?, geteuid()) == WriteMethod::Beside {
        match create_beside(path, Some(Mode::RUSR | Mode::WUSR)) {
            Ok((fd, pending)) if adopt(fd.as_fd(), &stat)? => {
                return Ok(PreparedTarget::Beside(fd, pending));
            }
            Ok(_) | Err(Errno::ACCESS | Errno::PERM | Errno::ROFS) => {}
            Err(error) => return Err(error.into()),
        }
    }
    if file_type(file.as_fd())? == FileType::RegularFile {
        retry_on_intr(|| ftruncate(&file, 0))?;
    }
    Ok(PreparedTarget::InPlace(file))
}

/// Creates the file that is going to be `path`.
fn create_beside(path: &Path, mode: Option<Mode>) -> rustix::io::Result<(OwnedFd, PendingCommit)> {
    let target = path.file_name().ok_or(Errno::NOENT)?.to_owned();
    let (temporary, fd) = TemporaryFile::create(parent(path), &target, mode)?;
    Ok((fd, PendingCommit { temporary, target }))
}

/// Gives `file` the owner, group and mode of the one it is to replace. `false` if it could not.
fn adopt(file: BorrowedFd<'_>, old: &Stat) -> io::Result<bool> {
    let (owner, group) = (Uid::from_raw(old.st_uid), Gid::from_raw(old.st_gid));
    let adopted = fchown(file, Some(owner), Some(group))
        .and_then(|()| fchmod(file, Mode::from_raw_mode(old.st_mode)));
    // Some file systems refuse, some agree and do as they like (vfat, NFS with squashed ids).
    let new = fstat(file)?;
    let same = (new.st_uid, new.st_gid, new.st_mode) == (old.st_uid, old.st_gid, old.st_mode);
    Ok(adopted.is_ok() && same)
}

/// Where a path leads.
enum ResolvedPath {
    Missing(PathBuf),
    Plain(PathBuf),
    Special(PathBuf),
}

/// Follows symbolic links to a name that is none, or that does not exist.
fn resolve(path: &Path) -> io::Result<ResolvedPath> {
    let mut path = path.to_owned();
    for _ in 0..MAX_LINKS {
        let stat = match lstat(&path) {
            // As a shell says: "dir/" can only be a directory.
            Err(Errno::NOENT) if path.as_os_str().as_bytes().ends_with(b"/") => {
                return Err(Errno::ISDIR.into());
            }
            Err(Errno::NOENT) => return Ok(ResolvedPath::Missing(path)),
            result => result?,
        };
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => return Ok(ResolvedPath::Plain(path)),
            FileType::Directory => return Err(Errno::ISDIR.into()),
            // The links of /proc/self/fd do not lead where they say: "pipe:[42]" is no path.
            FileType::Symlink if !is_in_proc(&path)? => {
                path = parent(&path).join(fs::read_link(&path)?);
            }
            _ => return Ok(ResolvedPath::Special(path)),
        }
    }
    Err(Errno::LOOP.into())
}

fn is_in_proc(path: &Path) -> io::Result<bool> {
    Ok(statfs(parent(path))?.f_type == rustix::fs::PROC_SUPER_MAGIC)
}

fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    }
}

/// Opens a device, a FIFO, or what a link in `/proc` leads to.
///
/// To open a FIFO that nobody reads would block a thread, and nothing could stop it.
async fn open_special(path: PathBuf) -> io::Result<OwnedFd> {
    loop {
        let path = path.clone();
        if let Some(fd) = blocking(move || try_open_special(&path)).await? {
            return Ok(fd);
        }
        tokio::time::sleep(FIFO_INTERVAL).await;
    }
}

/// `None` for a FIFO without a reader.
pub(super) fn try_open_special(path: &Path) -> io::Result<Option<OwnedFd>> {
    let flags =
        OFlags::WRONLY | OFlags::TRUNC | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let fd = match retry_on_intr(|| openat(CWD, path, flags, Mode::empty())) {
        Ok(fd) => fd,
        Err(Errno::NXIO) if is_fifo(path)? => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    if file_type(fd.as_fd())? != FileType::Fifo {
        // A device that cannot be polled must wait in its write, not fail with EAGAIN.
        fcntl_setfl(&fd, fcntl_getfl(&fd)? - OFlags::NONBLOCK)?;
    }
    Ok(Some(fd))
}

fn is_fifo(path: &Path) -> io::Result<bool> {
    Ok(FileType::from_raw_mode(stat(path)?.st_mode) == FileType::Fifo)
}

/// How a target that exists is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WriteMethod {
    /// Beside it, and renamed at the commit.
    Beside,
    /// Truncated and written as it is.
    InPlace,
}

/// What is known of a target that exists, as far as it matters for the [`WriteMethod`].
#[derive(Debug, Clone)]
pub(super) struct TargetFacts {
    pub(super) file_type: FileType,
    /// Names that the file has.
    pub(super) links: u64,
    pub(super) mode: Mode,
    pub(super) owner: Uid,
    /// Names of the extended attributes, each ended by a NUL, as listxattr(2) gives them.
    pub(super) attributes: Vec<u8>,
    /// Whether it is mounted there (a container's `/etc/hosts`): rename(2) would say EBUSY.
    pub(super) is_mounted: bool,
}

/// Whether a new file can be a true replacement of the one that `facts` describe.
///
/// An owner other than `caller` can be kept by root alone. Whether the group can be kept and the
/// directory is writable shows when it is tried.
pub(super) fn write_method(facts: &TargetFacts, caller: Uid) -> WriteMethod {
    let special = Mode::SUID | Mode::SGID | Mode::SVTX;
    let mut attributes = facts.attributes.split(|byte| *byte == 0);
    let replaceable = facts.file_type == FileType::RegularFile
        && facts.links == 1
        && !facts.mode.intersects(special)
        && (caller.is_root() || caller == facts.owner)
        // SELinux labels new files by itself, by the rules of the directory.
        && attributes.all(|name| name.is_empty() || name == b"security.selinux")
        && !facts.is_mounted;
    if replaceable {
        WriteMethod::Beside
    } else {
        WriteMethod::InPlace
    }
}

fn facts(file: BorrowedFd<'_>, stat: &Stat) -> io::Result<TargetFacts> {
    Ok(TargetFacts {
        file_type: FileType::from_raw_mode(stat.st_mode),
        #[allow(
            clippy::useless_conversion,
            reason = "it is not a u64 on every architecture"
        )]
        links: u64::from(stat.st_nlink),
        mode: Mode::from_raw_mode(stat.st_mode),
        owner: Uid::from_raw(stat.st_uid),
        attributes: attributes(file)?,
        is_mounted: is_mounted(file),
    })
}

fn attributes(file: BorrowedFd<'_>) -> io::Result<Vec<u8>> {
    let bytes = match flistxattr_query(file) {
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => 0,
        result => result?,
    };
    let mut names = vec![0; bytes];
    if bytes > 0 {
        // ERANGE, when one was added in between, is as good a reason to stop as any.
        let filled = flistxattr(file, &mut names[..])?;
        names.truncate(filled);
    }
    Ok(names)
}

/// Kernels before 5.8 cannot tell; a rename then fails at the commit.
fn is_mounted(file: BorrowedFd<'_>) -> bool {
    statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::empty())
        .is_ok_and(|found| found.stx_attributes.contains(StatxAttributes::MOUNT_ROOT))
}
