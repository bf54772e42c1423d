//! The output file of `>`: all of it or nothing, where the file system allows that; files, devices and FIFOs that are
//! written in place.

use std::{
    ffi::OsString,
    fmt, io,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::ffi::{OsStrExt, OsStringExt},
    },
    path::{Path, PathBuf},
    time::Duration,
};

use rustix::{
    fs::{
        AtFlags, CWD, FileType, Mode, OFlags, Stat, StatxAttributes, StatxFlags, fchmod, fchown,
        fcntl_getfl, fcntl_setfl, flistxattr, flistxattr_query, fremovexattr, fstat, ftruncate,
        lstat, openat, readlinkat, stat, statfs, statx,
    },
    io::{Errno, retry_on_intr},
    process::{Gid, Uid, geteuid},
};

use super::{Sink, blocking, close, file_type, sync, temporary::TemporaryFile};

/// The most symbolic links that are followed to the target: the kernel's own limit.
const MAX_LINKS: usize = 40;

/// The output file of `>`: under its name, it is either complete or unchanged.
///
/// The bytes go to a temporary file, which takes the name of the target at
/// [`commit`](Self::commit). If an `OutputTarget` is dropped before, the target does not change.
/// [`TemporaryFile`] says what a killed process can leave behind.
///
/// This holds for a target that does not exist, and for a regular file that a new file can replace
/// without a difference. Other targets are opened and truncated in place, as by a shell's `>`:
/// devices, FIFOs, files with several names or extended attributes, files whose owner cannot be
/// kept, and files in directories where nothing can be made or renamed.
pub(crate) struct OutputTarget {
    sink: Sink,
    /// True for a regular file that is written in place, so that a failure leaves a part of the bytes.
    is_plain_in_place: bool,
    /// The rename at the commit; `None` for a file that is written in place.
    pending: Option<PendingCommit>,
}

/// The part of a commit that is still to be done for a file that is written beside its target.
pub(super) struct PendingCommit {
    temporary: TemporaryFile,
    /// The name of the target in the directory of the temporary file.
    target: OsString,
    /// True if there is a file of this name.
    replaces: bool,
}

impl OutputTarget {
    /// Opens a temporary file that is to replace `path`, or `path` itself.
    ///
    /// Symbolic links are followed; a link whose target does not exist names the file that is
    /// created. For a FIFO the call waits until the FIFO has a reader.
    /// Fails if `path` is a directory, may not be written, or cannot be created.
    /// A dropped future leaves no file behind. A regular file that is written in place may be truncated by then.
    pub(crate) async fn create(path: &Path) -> io::Result<Self> {
        let name = path.display().to_string();
        let path = path.to_owned();
        let (fd, pending) = match blocking(move || prepare(&path)).await? {
            PreparedTarget::Beside(fd, pending) => (fd, Some(pending)),
            PreparedTarget::InPlace(fd) => (fd, None),
            PreparedTarget::Special(path) => {
                // With `CREATE` the kernel refuses FIFOs that another user has planted (`fs.protected_fifos`).
                let flags = OFlags::TRUNC | OFlags::CREATE;
                (open_in_place(&path, flags).await?, None)
            }
        };
        let is_plain_in_place =
            pending.is_none() && file_type(fd.as_fd())? == FileType::RegularFile;
        let sink = Sink::new(fd, name)?;
        Ok(Self {
            sink,
            is_plain_in_place,
            pending,
        })
    }

    /// Returns the state that a failure leaves the file in, in words that follow the reason. Returns an empty text if
    /// the target is then unchanged, or is no file.
    pub(crate) fn left(&self) -> String {
        let text = "; it is written in place, because it cannot be replaced, and has only the bytes that had arrived";
        if self.is_plain_in_place {
            text.to_owned()
        } else {
            String::new()
        }
    }

    /// Returns true if the target is a file that stays unchanged until the commit, false if there is no such file, and
    /// none if the target is written in place.
    pub(crate) fn replaces(&self) -> Option<bool> {
        self.pending.as_ref().map(|pending| pending.replaces)
    }

    /// Returns the sink that takes the bytes.
    pub(crate) fn sink(&mut self) -> &mut Sink {
        &mut self.sink
    }

    /// Returns the path as it was given, for messages.
    pub(crate) fn describe(&self) -> &str {
        self.sink.describe()
    }

    /// Closes the file and gives it the name of the target. With `fsync`, the file and its directory
    /// are on the disk when the call returns.
    /// Fails as fsync(2), close(2), link(2) and rename(2) do. The target is then unchanged, unless it was written in
    /// place. One exception: if the final sync of the directory fails, the new file has its name already, but a power
    /// failure may undo that.
    /// Not cancel safe: a commit that has begun continues, and its result is lost.
    pub(crate) async fn commit(self, fsync: bool) -> io::Result<()> {
        match self.pending {
            None => self.sink.close(fsync).await,
            Some(pending) => {
                let fd = self.sink.into_fd();
                blocking(move || pending.commit(fd, fsync)).await
            }
        }
    }

    /// Returns true if the target does not change before the commit.
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
    /// Closes the file and gives it the name of the target, with `fsync` on the disk. Blocks.
    pub(super) fn commit(self, fd: OwnedFd, fsync: bool) -> io::Result<()> {
        if fsync {
            sync(fd.as_fd())?;
        }
        // A file without a name exists as long as one of its descriptors, and the file may get its
        // name only if close(2) reports no error. So one descriptor is closed, and a duplicate names
        // the file.
        let file = fd.try_clone()?;
        close(fd)?;
        self.temporary.publish(file.as_fd(), &self.target, fsync)
    }
}

/// A target that is ready to be written, or known to be special.
enum PreparedTarget {
    /// A temporary file, and the rest of its commit.
    Beside(OwnedFd, PendingCommit),
    /// The target itself, truncated.
    InPlace(OwnedFd),
    /// A path that is not a regular file, or leads through `/proc`; not open yet.
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

/// Prepares the replacement of a regular file, or truncates it where no replacement is possible.
///
/// The file is first opened for writing, as by a shell, which tests the permission. The flag `CREATE`
/// makes the kernel refuse files that another user has planted in a directory like `/tmp`
/// (`fs.protected_regular`).
fn prepare_plain(path: &Path) -> io::Result<PreparedTarget> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = retry_on_intr(|| openat(CWD, path, flags, Mode::from_raw_mode(0o666)))?;
    if let Some((fd, pending)) = replacement(path, file.as_fd())? {
        return Ok(PreparedTarget::Beside(fd, pending));
    }
    if file_type(file.as_fd())? == FileType::RegularFile {
        retry_on_intr(|| ftruncate(&file, 0))?;
    }
    Ok(PreparedTarget::InPlace(file))
}

/// Returns the temporary file that can replace the regular file `path`, which `file` is open on; none if none can.
fn replacement(path: &Path, file: BorrowedFd<'_>) -> io::Result<Option<(OwnedFd, PendingCommit)>> {
    let stat = fstat(file)?;
    if write_method(&facts(path, file, &stat)?, geteuid()) == WriteMethod::InPlace {
        return Ok(None);
    }
    match create_beside(path, Some(Mode::RUSR | Mode::WUSR)) {
        Ok((fd, pending)) if adopt(fd.as_fd(), &stat)? => Ok(Some((fd, pending))),
        Ok(_) | Err(Errno::ACCESS | Errno::PERM | Errno::ROFS) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Returns true if `path` is a regular file that [`OutputTarget::create`] would empty at once, because it cannot be
/// replaced at the end. The file is not changed.
pub(crate) fn is_emptied(path: &Path) -> bool {
    let Ok(ResolvedPath::Plain(path)) = resolve(path) else {
        return false;
    };
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = openat(CWD, &path, flags, Mode::empty());
    file.is_ok_and(|file| matches!(replacement(&path, file.as_fd()), Ok(None)))
}

/// Creates the temporary file that is to become `path`, with `mode` if it is to replace a file.
pub(super) fn create_beside(
    path: &Path,
    mode: Option<Mode>,
) -> rustix::io::Result<(OwnedFd, PendingCommit)> {
    let target = path.file_name().ok_or(Errno::NOENT)?.to_owned();
    let (temporary, fd) = TemporaryFile::create(parent(path), &target, mode)?;
    let pending = PendingCommit {
        temporary,
        target,
        replaces: mode.is_some(),
    };
    Ok((fd, pending))
}

/// Gives `file` the owner, group and mode of the file that it is to replace, which has no ACL. Returns false if one
/// of them could not be set.
fn adopt(file: BorrowedFd<'_>, old: &Stat) -> io::Result<bool> {
    let (owner, group) = (Uid::from_raw(old.st_uid), Gid::from_raw(old.st_gid));
    let adopted = fchown(file, Some(owner), Some(group))
        .and_then(|()| remove_acl(file))
        .and_then(|()| fchmod(file, Mode::from_raw_mode(old.st_mode)));
    // Some file systems refuse; some report success and change nothing (vfat, NFS with squashed ids).
    let new = fstat(file)?;
    let same = (new.st_uid, new.st_gid, new.st_mode) == (old.st_uid, old.st_gid, old.st_mode);
    Ok(adopted.is_ok() && same)
}

/// Removes the ACL that a file has inherited from its directory: the mode would become its mask.
fn remove_acl(file: BorrowedFd<'_>) -> rustix::io::Result<()> {
    match fremovexattr(file, "system.posix_acl_access") {
        // There is none, or the file system has none.
        Err(Errno::NODATA | Errno::OPNOTSUPP | Errno::NOSYS) => Ok(()),
        result => result,
    }
}

/// A path without symbolic links, and what is there.
enum ResolvedPath {
    Missing(PathBuf),
    Plain(PathBuf),
    Special(PathBuf),
}

/// Follows symbolic links until the path is no link or does not exist.
fn resolve(path: &Path) -> io::Result<ResolvedPath> {
    let mut path = path.to_owned();
    for _ in 0..MAX_LINKS {
        let stat = match lstat(&path) {
            // As in a shell, "dir/" can only be a directory.
            Err(Errno::NOENT) if path.as_os_str().as_bytes().ends_with(b"/") => {
                return Err(Errno::ISDIR.into());
            }
            Err(Errno::NOENT) => return Ok(ResolvedPath::Missing(path)),
            result => result?,
        };
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => return Ok(ResolvedPath::Plain(path)),
            FileType::Directory => return Err(Errno::ISDIR.into()),
            // The text of a link in /proc/self/fd is not always a path: "pipe:[42]" is none.
            FileType::Symlink if !is_in_proc(&path)? => {
                path = parent(&path).join(link_target(&path)?);
            }
            _ => return Ok(ResolvedPath::Special(path)),
        }
    }
    Err(Errno::LOOP.into())
}

/// Returns the target of the symbolic link `path`, if the kernel would follow the link.
/// Fails with `EACCES` for a link that another user has planted in a directory like `/tmp`.
fn link_target(path: &Path) -> io::Result<PathBuf> {
    // One link is looked at and followed, whatever takes its name meanwhile.
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let link = openat(CWD, path, flags, Mode::empty())?;
    if !may_follow(&fstat(&link)?, &stat(parent(path))?, geteuid()) {
        return Err(Errno::ACCESS.into());
    }
    let target = readlinkat(&link, "", Vec::new())?;
    Ok(PathBuf::from(OsString::from_vec(target.into_bytes())))
}

/// Returns true if `caller` may follow a symbolic link in `directory`: the rule of `fs.protected_symlinks` in proc(5),
/// which the kernel cannot apply to links that are read here. In a directory where everybody can make names that others
/// cannot remove, a link must belong to who follows it, or to the owner of the directory.
fn may_follow(link: &Stat, directory: &Stat, caller: Uid) -> bool {
    let shared = Mode::SVTX | Mode::WOTH;
    let is_shared = Mode::from_raw_mode(directory.st_mode).contains(shared);
    !is_shared || link.st_uid == caller.as_raw() || link.st_uid == directory.st_uid
}

/// Returns the path without symbolic links of what `path` leads to, if that is a device, a FIFO or a socket, or named
/// by a link of `/proc` such as `/dev/stdout`; none for everything else.
pub(crate) fn special_path(path: &Path) -> Option<PathBuf> {
    match resolve(path) {
        Ok(ResolvedPath::Special(path)) => Some(path),
        _ => None,
    }
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

/// The way to write a target that exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WriteMethod {
    /// The bytes go to a temporary file, which replaces the target at the commit.
    Beside,
    /// The target itself is truncated and written.
    InPlace,
}

/// The properties of an existing target that decide on its [`WriteMethod`].
#[derive(Debug, Clone)]
pub(super) struct TargetFacts {
    pub(super) file_type: FileType,
    /// The number of names that the file has.
    pub(super) links: u64,
    pub(super) mode: Mode,
    pub(super) owner: Uid,
    /// The names of the extended attributes, each ended by a NUL, as listxattr(2) returns them.
    pub(super) attributes: Vec<u8>,
    /// True for a mount point (a container's `/etc/hosts`), where rename(2) fails with EBUSY.
    pub(super) is_mounted: bool,
    /// True if names in the directory can be neither changed nor removed (`chattr +a`).
    pub(super) is_append_only: bool,
}

/// Decides whether a new file can replace the file that `facts` describe without a difference.
///
/// Only root can keep an owner other than `caller`. Two conditions are not checked here, and show
/// when the temporary file is created: that the group can be kept, and that the directory is
/// writable.
pub(super) fn write_method(facts: &TargetFacts, caller: Uid) -> WriteMethod {
    let special = Mode::SUID | Mode::SGID | Mode::SVTX;
    let mut attributes = facts.attributes.split(|byte| *byte == 0);
    let replaceable = facts.file_type == FileType::RegularFile
        && facts.links == 1
        && !facts.mode.intersects(special)
        && (caller.is_root() || caller == facts.owner)
        // SELinux labels new files itself, by the rules of the directory.
        && attributes.all(|name| name.is_empty() || name == b"security.selinux")
        && !facts.is_mounted
        && !facts.is_append_only;
    if replaceable {
        WriteMethod::Beside
    } else {
        WriteMethod::InPlace
    }
}

fn facts(path: &Path, file: BorrowedFd<'_>, stat: &Stat) -> io::Result<TargetFacts> {
    Ok(TargetFacts {
        file_type: FileType::from_raw_mode(stat.st_mode),
        #[allow(
            clippy::useless_conversion,
            reason = "st_nlink is not a u64 on every architecture"
        )]
        links: u64::from(stat.st_nlink),
        mode: Mode::from_raw_mode(stat.st_mode),
        owner: Uid::from_raw(stat.st_uid),
        attributes: attributes(file)?,
        is_mounted: is_mounted(file),
        is_append_only: is_append_only(parent(path)),
    })
}

fn attributes(file: BorrowedFd<'_>) -> io::Result<Vec<u8>> {
    let bytes = match flistxattr_query(file) {
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => 0,
        result => result?,
    };
    let mut names = vec![0; bytes];
    if bytes > 0 {
        // ERANGE (an attribute was added between the two calls) fails, as any other error does.
        let filled = flistxattr(file, &mut names[..])?;
        names.truncate(filled);
    }
    Ok(names)
}

/// Returns true if names in the directory can be neither changed nor removed.
pub(super) fn is_append_only(directory: &Path) -> bool {
    statx(CWD, directory, AtFlags::empty(), StatxFlags::empty())
        .is_ok_and(|found| found.stx_attributes.contains(StatxAttributes::APPEND))
}

/// Returns true if the file is a mount point. Kernels before 5.8 do not report it; there the rename
/// fails at the commit.
fn is_mounted(file: BorrowedFd<'_>) -> bool {
    statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::empty())
        .is_ok_and(|found| found.stx_attributes.contains(StatxAttributes::MOUNT_ROOT))
}

/// The time between two attempts to open a FIFO that has no reader yet. A twentieth of a second is
/// too short for a user to see, and twenty calls a second cost nothing.
const FIFO_INTERVAL: Duration = Duration::from_millis(50);

/// Opens `path` to be written, with `flags` beside those that every such file has. For a FIFO, waits
/// until it has a reader.
///
/// A FIFO without a reader is tried again and again: an open that waits would block a thread, and
/// could not be cancelled.
/// Dropping the future may leave an empty file behind, if `flags` create it.
pub(crate) async fn open_in_place(path: &Path, flags: OFlags) -> io::Result<OwnedFd> {
    loop {
        let path = path.to_owned();
        if let Some(fd) = blocking(move || try_open_in_place(&path, flags)).await? {
            return Ok(fd);
        }
        tokio::time::sleep(FIFO_INTERVAL).await;
    }
}

/// Opens the file without waiting. Returns `None` for a FIFO that has no reader.
pub(super) fn try_open_in_place(path: &Path, flags: OFlags) -> io::Result<Option<OwnedFd>> {
    let flags = flags | OFlags::WRONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let mode = Mode::from_raw_mode(0o666);
    let fd = match retry_on_intr(|| openat(CWD, path, flags, mode)) {
        Ok(fd) => fd,
        Err(Errno::NXIO) if is_fifo(path)? => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    if file_type(fd.as_fd())? != FileType::Fifo {
        // A write to a device that cannot be polled must wait, and not fail with EAGAIN.
        fcntl_setfl(&fd, fcntl_getfl(&fd)? - OFlags::NONBLOCK)?;
    }
    Ok(Some(fd))
}

fn is_fifo(path: &Path) -> io::Result<bool> {
    Ok(FileType::from_raw_mode(stat(path)?.st_mode) == FileType::Fifo)
}
