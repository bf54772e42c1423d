//! The folders of a copy: opens what is below a directory, and nothing else; makes folders that are missing, and gives
//! them their metadata at the end.

use std::{
    collections::{HashMap, HashSet},
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
    },
};

use rustix::{
    fs::{
        Access, AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, Stat, accessat, chmodat,
        fchmod, fstat, mkdirat, openat, openat2, statat,
    },
    io::Errno,
    process::geteuid,
};

use super::{
    attributes::MetadataKeeper,
    ends::{FolderEnd, FolderEnds},
    mirror::Deletion,
    placement::{EntryNames, PlacedFolder},
    state::{DestinationShared, DestinationState, add, errno_text, lock},
    written::{TargetFolder, id_of},
};
use crate::{
    copy::{
        budget::PATH_ENTRY_BYTES,
        job::CopyError,
        metadata::Metadata,
        path::{EntryName, RelativePath},
        written::EntryId,
    },
    fd::sync,
};

/// The longest local path: the limit of Linux, with its terminating zero.
const MAX_PATH_BYTES: usize = 4095;

/// How many folders are finished before other tasks of the thread run.
const FOLDERS_PER_TURN: usize = 64;

/// The bits that the owner of a folder needs to write in it.
pub(super) const OWNER_BITS: u32 = 0o700;

/// The bits of a folder that `-P` makes, as with `mkdir -p`: the system takes those of the umask or of a default ACL.
const NEW_PARENT_BITS: u32 = 0o777;

/// The folders that the source has named, by their local paths.
#[derive(Debug, Default)]
pub(super) struct FolderTable {
    ends: Mutex<FolderEnds>,
    /// Locked while a folder is made whose owner does not have all rights at once.
    making: Mutex<()>,
    /// Locked while something that is not a folder is removed, to make room for one.
    room: Mutex<()>,
    /// In a dry run: what is in the way of folders, and true if it would be removed.
    foreseen: Mutex<HashMap<RelativePath, bool>>,
    /// Folders that were reported because they cannot be written.
    failed: Mutex<HashSet<RelativePath>>,
}

#[derive(Debug)]
pub(super) struct OpenFolder {
    pub(super) fd: OwnedFd,
    /// The device and the inode of the folder.
    pub(super) id: EntryId,
    /// True if this copy or an earlier one of the run has made the folder.
    pub(super) is_of_run: bool,
}

impl OpenFolder {
    /// Returns the folder as the place of entries.
    pub(super) fn target(&self) -> TargetFolder<'_> {
        TargetFolder {
            fd: self.fd.as_fd(),
            id: self.id,
            is_of_run: self.is_of_run,
        }
    }
}

/// Why there is no folder, and the local path of the folder that could not be had: that one, or one above.
#[derive(Debug)]
pub(super) struct FolderFault {
    pub(super) local: RelativePath,
    pub(super) why: String,
}

impl FolderFault {
    fn new(local: &RelativePath, why: String) -> Self {
        Self {
            local: local.clone(),
            why,
        }
    }
}

impl From<FolderFault> for String {
    fn from(fault: FolderFault) -> Self {
        fault.why
    }
}

impl FolderTable {
    /// Opens the folder at a local path, makes what is missing, and keeps the metadata for the end. `above` are the
    /// modes of the folders above that are copied too, the nearest first. With `-a`, a normal user gets the right to
    /// write in folders of the copy.
    pub(super) fn open(
        &self,
        state: &DestinationState,
        local: &RelativePath,
        metadata: Option<Metadata>,
        above: &[u32],
    ) -> Result<OpenFolder, FolderFault> {
        let fault = |why| FolderFault::new(local, why);
        if local.as_bytes().len() > MAX_PATH_BYTES {
            return Err(fault(errno_text(Errno::NAMETOOLONG)));
        }
        let root = state.placement.root();
        let fd = match open_directory(root, local) {
            Ok(fd) => fd,
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::ACCESS) => {
                let own = metadata.as_ref().map(|metadata| metadata.mode);
                let modes: Vec<u32> = own.into_iter().chain(above.iter().copied()).collect();
                self.make(state, local, &modes)?
            }
            Err(errno) => return Err(fault(cannot_open(errno))),
        };
        let is_copied = metadata.is_some();
        let metadata = metadata.filter(|_| state.keeper.keeps_all());
        if metadata.is_some() || state.options.fsync {
            self.add_end(
                state,
                &FolderEnd {
                    metadata,
                    ..FolderEnd::bare(local.clone())
                },
            );
        }
        if is_copied || state.placement.target_of(local).is_some() {
            self.unlock(state, local, fd.as_fd());
        }
        let stat = fstat(&fd).map_err(|errno| fault(errno_text(errno)))?;
        Ok(OpenFolder {
            fd,
            id: id_of(&stat),
            is_of_run: state.written.contains(&stat),
        })
    }

    /// Returns true if [`open`](Self::open) could open or make the folder at a local path. Reports once what is in the
    /// way, as a failure or as removed. For a dry run: changes nothing.
    pub(super) fn foresee(&self, state: &DestinationState, local: &RelativePath) -> bool {
        let root = state.placement.root();
        let Ok(mut directory) = open_directory(root, &RelativePath::default()) else {
            return true;
        };
        let mut above = RelativePath::default();
        for name in local.names() {
            let Ok(own) = EntryName::try_from(name.to_vec()) else {
                return false;
            };
            above = above.join(&own);
            directory = match open_child(directory.as_fd(), name) {
                Ok(child) => child,
                Err(errno) => return self.foresee_room(state, &directory, &own, &above, errno),
            };
        }
        true
    }

    fn foresee_room(
        &self,
        state: &DestinationState,
        directory: &OwnedFd,
        name: &EntryName,
        local: &RelativePath,
        errno: Errno,
    ) -> bool {
        let mut foreseen = lock(&self.foreseen);
        if let Some(&is_made) = foreseen.get(local) {
            return is_made;
        }
        let made = match errno {
            Errno::NOENT => check_writable(state, directory.as_fd())
                .map_err(|errno| format!("cannot make the directory: {}", errno_text(errno))),
            Errno::NOTDIR | Errno::LOOP => self.make_room(state, directory, name.as_bytes(), local),
            errno => Err(cannot_open(errno)),
        };
        let is_made = made.is_ok();
        if let Err(why) = made {
            state.fail(local, format!("{why}; nothing in it would be written"));
        }
        if state
            .keep(local.as_bytes().len() + PATH_ENTRY_BYTES)
            .is_ok()
        {
            foreseen.insert(local.clone(), is_made);
        }
        is_made
    }

    /// Reports once that nothing was written in the folder at a local path.
    pub(super) fn fail(&self, state: &DestinationState, local: &RelativePath, why: &str) {
        let mut failed = lock(&self.failed);
        let is_new = !failed.contains(local)
            && state
                .keep(local.as_bytes().len() + PATH_ENTRY_BYTES)
                .is_ok();
        if is_new {
            failed.insert(local.clone());
        }
        drop(failed);
        if is_new {
            state.fail(local, format!("{why}; nothing in it was written"));
        }
    }

    /// Gives the folders their metadata, the deepest first.
    /// Fails if the work is cancelled or the list of folders cannot be read; other failures are reported.
    /// Cancelling leaves the folders that were not reached as they are.
    pub(super) async fn finish(&self, state: &DestinationState) -> Result<(), CopyError> {
        for index in 0.. {
            if index % FOLDERS_PER_TURN == 0 {
                tokio::task::yield_now().await;
            }
            if state.halt.is_cancelled() {
                return Err(CopyError::Cancelled);
            }
            let next = lock(&self.ends).pop();
            let next = next.map_err(|error| {
                CopyError::Local(format!("cannot read the list of directories: {error}"))
            })?;
            let Some((end, locked)) = next else { break };
            if let Err(why) = finish_folder(state, &end, locked) {
                state.fail(&end.local, format!("cannot finish the directory: {why}"));
            }
        }
        Ok(())
    }

    /// Gives the folders that were not finished the modes that they had before a normal user got the right to write in
    /// them.
    pub(super) fn lock_again(&self, state: &DestinationState) {
        while let Some((local, mode)) = lock(&self.ends).pop_locked() {
            if let Ok(folder) = open_directory(state.placement.root(), &local) {
                set_mode(folder.as_fd(), mode);
            }
        }
    }

    /// With `-a`, gives a normal user the right to write in a folder of the copy. Keeps the mode that the folder had.
    fn unlock(&self, state: &DestinationState, local: &RelativePath, folder: BorrowedFd<'_>) {
        let is_kept = state.keeper.is_root() || state.placement.is_served_itself(local);
        if is_kept || !state.keeper.keeps_all() || !state.existing.replaces {
            return;
        }
        if let Some(mode) = make_writable(folder) {
            // Without memory for the mode the copy ends, and the folder gets it back now.
            if lock(&self.ends).lock(state, local, mode).is_err() {
                set_mode(folder, mode);
            }
        }
    }

    fn add_end(&self, state: &DestinationState, end: &FolderEnd) {
        if let Err(error) = lock(&self.ends).push(state, end) {
            let why = format!("cannot keep a list of directories: {error}");
            state.end_early(&CopyError::Local(why));
        }
    }

    /// Makes the folder at a local path, and those above it that are missing. With the option to delete, whatever is
    /// not a folder on the way is removed. `modes` are those of the folder and of the folders above that are copied
    /// too, the nearest first.
    fn make(
        &self,
        state: &DestinationState,
        local: &RelativePath,
        modes: &[u32],
    ) -> Result<OwnedFd, FolderFault> {
        let root = state.placement.root();
        let mut above = RelativePath::default();
        let opened = open_directory(root, &above).map_err(cannot_open);
        let mut directory = opened.map_err(|why| FolderFault::new(&above, why))?;
        let mut left = local.names().count();
        for name in local.names() {
            if state.placement.target_of(&above).is_some() {
                self.unlock(state, &above, directory.as_fd());
            }
            let own = name.to_vec().try_into();
            let own = own.map_err(|error| FolderFault::new(&above, format!("{error}")))?;
            above = above.join(&own);
            left -= 1;
            let make = || self.make_child(state, &directory, name, &above, modes.get(left));
            let child = match open_child(directory.as_fd(), name) {
                Ok(fd) => Ok(fd),
                Err(Errno::NOENT) => make(),
                Err(Errno::NOTDIR | Errno::LOOP) => self
                    .make_room(state, &directory, name, &above)
                    .and_then(|()| make()),
                Err(errno) => Err(cannot_open(errno)),
            };
            directory = child.map_err(|why| FolderFault::new(&above, why))?;
        }
        Ok(directory)
    }

    /// Removes the entry `name`, which is in the way of a folder, unless another lane has done so. One lane at a time
    /// makes room, so that an entry counts once.
    fn make_room(
        &self,
        state: &DestinationState,
        directory: &OwnedFd,
        name: &[u8],
        local: &RelativePath,
    ) -> Result<(), String> {
        if !state.may_replace(local) {
            return Err("the destination has something else of this name, which a directory does not replace".to_owned());
        }
        let _one_at_a_time = lock(&self.room);
        match statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) if FileType::from_raw_mode(stat.st_mode) == FileType::Directory => Ok(()),
            // Another lane has made room, and not yet the folder.
            Err(Errno::NOENT) => Ok(()),
            _ => match written_before(state, directory, name) {
                Some(why) => Err(why.to_owned()),
                None => {
                    Deletion::new(state).make_room_for_directory(directory.as_fd(), name, local)
                }
            },
        }
    }

    /// Makes a folder with the mode that it keeps, as far as it is known, and with all rights of the owner.
    fn make_child(
        &self,
        state: &DestinationState,
        directory: &OwnedFd,
        name: &[u8],
        local: &RelativePath,
        mode: Option<&u32>,
    ) -> Result<OwnedFd, String> {
        let cannot = |errno| format!("cannot make the directory: {}", errno_text::<Errno>(errno));
        let keeper = &state.keeper;
        let source_mode = mode.filter(|_| state.placement.target_of(local).is_some());
        let mode = if state.placement.target_of(local).is_none() {
            NEW_PARENT_BITS
        } else {
            mode.map_or(0, |&mode| keeper.bits_of_new_folder(mode))
        };
        // No other lane opens the folder before the owner has all rights.
        let gives_all = keeper.is_root() || keeper.gives_new_folders(directory.as_fd(), OWNER_BITS);
        let making = (!gives_all).then(|| lock(&self.making));
        match mkdirat(directory, name, Mode::from_raw_mode(mode | OWNER_BITS)) {
            Ok(()) => {}
            // Another lane has made it.
            Err(Errno::EXIST) => return open_child(directory.as_fd(), name).map_err(cannot),
            Err(errno) => return Err(cannot(errno)),
        }
        add(&state.counts.directories, 1);
        let folder = open_child(directory.as_fd(), name).map_err(cannot)?;
        let stat = fstat(&folder).map_err(cannot)?;
        if !gives_all {
            make_writable(folder.as_fd());
        }
        drop(making);
        state.written.note(&stat);
        let owner_bits = source_mode.map(|mode| mode & stat.st_mode & OWNER_BITS);
        let takes_owner_bits = !keeper.keeps_all() && !keeper.keeps_directories_usable();
        let owner_bits = owner_bits.filter(|bits| takes_owner_bits && *bits != OWNER_BITS);
        if owner_bits.is_some() {
            self.add_end(
                state,
                &FolderEnd {
                    owner_bits,
                    ..FolderEnd::bare(local.clone())
                },
            );
        }
        Ok(folder)
    }

    /// Opens a folder of the copy, and makes writable what its owner cannot search, from the top of the copy on.
    fn open_unlocked(
        &self,
        state: &DestinationState,
        local: &RelativePath,
    ) -> rustix::io::Result<OwnedFd> {
        let root = state.placement.root();
        let opened = open_directory(root, local);
        if !matches!(opened, Err(Errno::ACCESS)) {
            if let Ok(directory) = &opened {
                self.unlock(state, local, directory.as_fd());
            }
            return opened;
        }
        let mut above = RelativePath::default();
        let mut directory = open_directory(root, &above)?;
        for name in local.names() {
            if state.placement.target_of(&above).is_some() {
                self.unlock(state, &above, directory.as_fd());
            }
            directory = open_child(directory.as_fd(), name)?;
            above = above.join(&EntryName::try_from(name.to_vec()).map_err(|_| Errno::INVAL)?);
        }
        self.unlock(state, local, directory.as_fd());
        Ok(directory)
    }
}

/// Checks that entries can be made in a directory. For a dry run: with `-a`, a real one gives its owner the right.
/// Fails as a call that makes an entry would.
pub(super) fn check_writable(
    state: &DestinationState,
    directory: BorrowedFd<'_>,
) -> rustix::io::Result<()> {
    let wanted = Access::WRITE_OK | Access::EXEC_OK;
    let is_ours = |stat: Stat| state.keeper.keeps_all() && stat.st_uid == geteuid().as_raw();
    match accessat(CWD, proc_path(directory), wanted, AtFlags::EACCESS) {
        Err(Errno::ACCESS) if !fstat(directory).is_ok_and(is_ours) => Err(Errno::ACCESS),
        Err(Errno::ROFS) => Err(Errno::ROFS),
        _ => Ok(()),
    }
}

fn cannot_open(errno: Errno) -> String {
    format!("cannot open the directory: {}", errno_text(errno))
}

/// Opens a folder to look at what is in it. Returns none if there is no directory. With `-a`, what a normal user cannot
/// search becomes writable first, as for the lanes: copied folders get the mode of the source's folders at the end.
/// Fails as openat(2) does.
pub(super) fn look_into(
    shared: &DestinationShared,
    placed: &PlacedFolder,
) -> rustix::io::Result<Option<OwnedFd>> {
    let (state, local) = (&shared.state, &placed.path);
    let may_change = state.keeper.keeps_all() && !state.keeper.is_root() && !state.options.dry_run;
    let is_copied = !matches!(placed.entries, EntryNames::Refused(_))
        && state.placement.target_of(local).is_some();
    let opened = if may_change && is_copied && shared.may_write(local) {
        shared.folders.open_unlocked(state, local)
    } else {
        open_directory(state.placement.root(), local)
    };
    match opened {
        Ok(directory) => Ok(Some(directory)),
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(None),
        Err(errno) => Err(errno),
    }
}

/// Returns why the entry `name` is not removed to make room for a folder, if the run has written it.
fn written_before(
    state: &DestinationState,
    directory: &OwnedFd,
    name: &[u8],
) -> Option<&'static str> {
    let stat = fstat(directory).ok()?;
    let target = TargetFolder {
        fd: directory.as_fd(),
        id: id_of(&stat),
        is_of_run: state.written.contains(&stat),
    };
    state.written.refusal(target, name)
}

/// Gives its owner the right to read and write in a folder. Returns the mode that it had, if that was another.
pub(crate) fn make_writable(folder: BorrowedFd<'_>) -> Option<Mode> {
    let mode = fstat(folder).ok()?.st_mode & 0o7777;
    if mode & OWNER_BITS == OWNER_BITS {
        return None;
    }
    set_mode(folder, Mode::from_raw_mode(mode | OWNER_BITS));
    Some(Mode::from_raw_mode(mode))
}

/// Gives a folder a mode, if this process may do so.
pub(crate) fn set_mode(folder: BorrowedFd<'_>, mode: Mode) {
    let _ = chmodat(CWD, proc_path(folder), mode, AtFlags::empty());
}

fn finish_folder(
    state: &DestinationState,
    end: &FolderEnd,
    locked: Option<Mode>,
) -> Result<(), String> {
    let local = &end.local;
    let folder = open_directory(state.placement.root(), local).map_err(errno_text)?;
    if let Some(metadata) = &end.metadata {
        let stat = fstat(&folder).map_err(errno_text)?;
        if is_finished(state, &stat, metadata) {
            return Ok(());
        }
        let note = |text| state.note(text);
        let keeper = &state.keeper;
        let may_change = state.written.contains(&stat) || state.existing.replaces;
        if state.placement.is_served_itself(local) {
            MetadataKeeper::note_served(&stat, metadata, &note);
        } else if may_change {
            keeper.apply_to_folder(folder.as_fd(), &stat, metadata, &note);
        }
    } else if let Some(bits) = end.owner_bits {
        // All other bits are those that the system gave to the folder. With an ACL, they stand for its mask.
        let mode = fstat(&folder).map_err(errno_text)?.st_mode & 0o7777;
        let mode = Mode::from_raw_mode(mode & !OWNER_BITS | bits);
        fchmod(&folder, mode).map_err(errno_text)?;
    } else if let Some(mode) = locked {
        set_mode(folder.as_fd(), mode);
    }
    if state.options.fsync {
        sync(folder.as_fd()).map_err(errno_text)?;
    }
    Ok(())
}

/// Returns true if a folder has got its metadata before, and its owner has lost the right to write in it: several lanes
/// have named it.
fn is_finished(state: &DestinationState, stat: &Stat, metadata: &Metadata) -> bool {
    let mode = stat.st_mode & 0o7777;
    !state.keeper.is_root() && mode & OWNER_BITS != OWNER_BITS && mode == metadata.mode & 0o7777
}

/// How often an open is repeated that the kernel gave up because of a rename at the same time.
const TRIES: usize = 16;

/// Set if the kernel has no openat2(2): before Linux 5.6, or forbidden by a filter of system calls.
static HAS_NO_OPENAT2: AtomicBool = AtomicBool::new(false);

/// Opens the directory `path` below `root`, to read it. A directory that may be searched but not read is opened as a
/// place only (`O_PATH`).
/// Fails as openat2(2) does. `ELOOP` or `ENOTDIR` says that something on the way is not a directory.
pub(super) fn open_directory(
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
/// Fails as openat(2) does. `ELOOP` or `ENOTDIR` says that the entry is not a directory.
pub(super) fn open_child(directory: BorrowedFd<'_>, name: &[u8]) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match openat(directory, name, flags, Mode::empty()) {
        Err(Errno::ACCESS) => openat(directory, name, flags | OFlags::PATH, Mode::empty()),
        result => result,
    }
}

/// Opens a directory again with a position of its own, to list it.
/// Fails as openat(2) does.
pub(super) fn open_again(directory: BorrowedFd<'_>) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
    openat(directory, ".", flags, Mode::empty())
}

/// Returns the path under which `/proc` shows what a descriptor is open for. It names that entry even if another has
/// taken the entry's name.
pub(super) fn proc_path(fd: impl AsFd) -> String {
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
