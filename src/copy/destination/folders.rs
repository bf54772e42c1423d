//! The folders of a copy: opens what is below a directory, and nothing else; makes folders that are missing, and gives
//! them their metadata at the end.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    mem,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
    },
};

use rustix::{
    fs::{
        AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, chmodat, fchmod, fstat, mkdirat,
        openat, openat2, statat,
    },
    io::Errno,
};

use super::{
    mirror::Deletion,
    placement::{EntryNames, PlacedFolder},
    state::{DestinationShared, DestinationState, add, errno_text, lock},
    written::{TargetFolder, id_of},
};
use crate::{
    copy::{
        job::CopyError,
        metadata::Metadata,
        path::{EntryName, RelativePath},
        written::EntryId,
    },
    fd::sync,
};

/// The most bytes of extended attributes that are kept for folders, all in all: they are set at the end. A peer decides
/// how many folders there are, and may thus use memory; this keeps the use small for each folder.
const MAX_ATTRIBUTE_BYTES: usize = 64 << 20;

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
    records: Mutex<FolderRecords>,
    /// Locked while something that is not a folder is removed, to make room for one.
    room: Mutex<()>,
    /// In a dry run: what is in the way of folders, and true if it would be removed.
    foreseen: Mutex<HashMap<RelativePath, bool>>,
    /// Folders that were reported because they cannot be written.
    failed: Mutex<HashSet<RelativePath>>,
}

#[derive(Debug, Default)]
struct FolderRecords {
    records: BTreeMap<RelativePath, FolderRecord>,
    attribute_bytes: usize,
}

/// What is known of a folder.
#[derive(Debug, Default)]
struct FolderRecord {
    metadata: Option<Metadata>,
    /// True if this run has made the folder.
    is_made: bool,
    /// The bits of the owner that the system gave to the folder when it was made.
    owner_bits: u32,
    /// The mode before this run gave the owner the right to write in the folder.
    locked: Option<Mode>,
}

impl FolderRecord {
    /// Returns the bits of the owner that a folder which does not keep all metadata has at the end, if it may have
    /// others until then.
    fn final_owner_bits(&self) -> Option<u32> {
        let metadata = self.metadata.as_ref().filter(|_| self.is_made)?;
        let bits = metadata.mode & self.owner_bits;
        (bits != OWNER_BITS).then_some(bits & OWNER_BITS)
    }
}

/// A folder that is open.
#[derive(Debug)]
pub(super) struct OpenFolder {
    /// The folder.
    pub(super) fd: OwnedFd,
    /// True if this run has made the folder, so that everything in it is of this run.
    pub(super) is_made: bool,
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

impl FolderTable {
    /// Opens the folder at a local path, makes what is missing, and keeps the metadata for the end. `above` are the
    /// modes of the folders above that are copied too, the nearest first. With `-a`, a normal user gets the right to
    /// write in folders of the copy.
    ///
    /// # Errors
    ///
    /// Fails with the reason for the user.
    pub(super) fn open(
        &self,
        state: &DestinationState,
        local: &RelativePath,
        metadata: Option<Metadata>,
        above: &[u32],
    ) -> Result<OpenFolder, String> {
        if local.as_bytes().len() > MAX_PATH_BYTES {
            return Err(errno_text(Errno::NAMETOOLONG));
        }
        let root = state.placement.root();
        let fd = match open_directory(root, local) {
            Ok(fd) => fd,
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::ACCESS) => {
                let own = metadata.as_ref().map(|metadata| metadata.mode);
                let modes: Vec<u32> = own.into_iter().chain(above.iter().copied()).collect();
                self.make(state, local, &modes)?
            }
            Err(errno) => return Err(cannot_open(errno)),
        };
        let is_copied = metadata.is_some();
        let is_made = self.record(state, local, metadata);
        if is_copied || state.placement.target_of(local).is_some() {
            self.unlock(state, local, fd.as_fd());
        }
        let stat = fstat(&fd).map_err(errno_text)?;
        Ok(OpenFolder {
            fd,
            is_made,
            id: id_of(&stat),
            is_of_run: is_made || state.written.contains(&stat),
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
                Err(Errno::NOENT) => return true,
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
            Errno::NOTDIR | Errno::LOOP => self.make_room(state, directory, name.as_bytes(), local),
            errno => Err(cannot_open(errno)),
        };
        let is_made = made.is_ok();
        if let Err(why) = made {
            state.fail(local, format!("{why}; nothing in it would be written"));
        }
        foreseen.insert(local.clone(), is_made);
        is_made
    }

    /// Reports once that nothing was written in the folder at a local path.
    pub(super) fn fail(&self, state: &DestinationState, local: &RelativePath, why: &str) {
        if lock(&self.failed).insert(local.clone()) {
            state.fail(local, format!("{why}; nothing in it was written"));
        }
    }

    /// Gives the folders their metadata, the deepest first.
    ///
    /// # Errors
    ///
    /// Fails only if the work is cancelled; other failures are reported.
    ///
    /// # Cancel safety
    ///
    /// The folders that were not reached keep what they have.
    pub(super) async fn finish(&self, state: &DestinationState) -> Result<(), CopyError> {
        for index in 0.. {
            if index % FOLDERS_PER_TURN == 0 {
                tokio::task::yield_now().await;
            }
            if state.halt.is_cancelled() {
                return Err(CopyError::Cancelled);
            }
            // A folder is a prefix of what is in it, so it comes later in the reversed order of the paths.
            let Some((local, record)) = lock(&self.records).records.pop_last() else {
                break;
            };
            if let Err(why) = finish_folder(state, &local, &record) {
                state.fail(&local, format!("cannot finish the directory: {why}"));
            }
        }
        Ok(())
    }

    /// Gives the folders that were not finished the modes that they had before a normal user got the right to write in
    /// them.
    pub(super) fn lock_again(&self, state: &DestinationState) {
        let records = mem::take(&mut lock(&self.records).records);
        for (local, record) in records.into_iter().rev() {
            if let Some(mode) = record.locked {
                if let Ok(folder) = open_directory(state.placement.root(), &local) {
                    set_mode(folder.as_fd(), mode);
                }
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
            let mut table = lock(&self.records);
            let record = table.records.entry(local.clone()).or_default();
            record.locked.get_or_insert(mode);
        }
    }

    /// Notes a folder. Returns true if this run has made it.
    fn record(
        &self,
        state: &DestinationState,
        local: &RelativePath,
        metadata: Option<Metadata>,
    ) -> bool {
        let mut table = lock(&self.records);
        let FolderRecords {
            records,
            attribute_bytes,
        } = &mut *table;
        let record = records.entry(local.clone()).or_default();
        if let Some(mut metadata) = metadata {
            // Several lanes may name the folder.
            *attribute_bytes -= record.metadata.as_ref().map_or(0, bytes_of_attributes);
            let bytes = bytes_of_attributes(&metadata);
            if *attribute_bytes + bytes > MAX_ATTRIBUTE_BYTES {
                metadata.attributes.clear();
                state.note("attributes of some directories were not kept: too many".to_owned());
            } else {
                *attribute_bytes += bytes;
            }
            record.metadata = Some(metadata);
        }
        record.is_made
    }

    /// Makes the folder at a local path, and those above it that are missing. With the option to delete, whatever is
    /// not a folder on the way is removed. `modes` are those of the folder and of the folders above that are copied
    /// too, the nearest first.
    fn make(
        &self,
        state: &DestinationState,
        local: &RelativePath,
        modes: &[u32],
    ) -> Result<OwnedFd, String> {
        let root = state.placement.root();
        let mut above = RelativePath::default();
        let mut directory = open_directory(root, &above).map_err(cannot_open)?;
        let mut left = local.names().count();
        for name in local.names() {
            if state.placement.target_of(&above).is_some() {
                self.unlock(state, &above, directory.as_fd());
            }
            let own = name.to_vec().try_into();
            above = above.join(&own.map_err(|error| format!("{error}"))?);
            left -= 1;
            let make = || self.make_child(state, &directory, name, &above, modes.get(left));
            directory = match open_child(directory.as_fd(), name) {
                Ok(fd) => fd,
                Err(Errno::NOENT) => make()?,
                Err(Errno::NOTDIR | Errno::LOOP) => {
                    self.make_room(state, &directory, name, &above)?;
                    make()?
                }
                Err(errno) => return Err(cannot_open(errno)),
            };
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
            return Err("a directory cannot replace something else".to_owned());
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
        let mode = if state.placement.target_of(local).is_none() {
            NEW_PARENT_BITS
        } else {
            mode.map_or(0, |&mode| keeper.bits_of_new_folder(mode))
        };
        // No other lane opens the folder before the owner has all rights.
        let gives_all = keeper.is_root() || keeper.gives_new_folders(directory.as_fd(), OWNER_BITS);
        let table = (!gives_all).then(|| lock(&self.records));
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
        let mut table = table.unwrap_or_else(|| lock(&self.records));
        let record = table.records.entry(local.clone()).or_default();
        record.is_made = true;
        record.owner_bits = stat.st_mode & OWNER_BITS;
        drop(table);
        state.written.note(&stat);
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

fn bytes_of_attributes(metadata: &Metadata) -> usize {
    let sizes = metadata.attributes.iter();
    sizes.map(|(name, value)| name.len() + value.len()).sum()
}

fn cannot_open(errno: Errno) -> String {
    format!("cannot open the directory: {}", errno_text(errno))
}

/// Opens a folder to look at what is in it. Returns none if there is no directory. With `-a`, what a normal user cannot
/// search becomes writable first, as for the lanes: copied folders get the mode of the source's folders at the end.
///
/// # Errors
///
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
    local: &RelativePath,
    record: &FolderRecord,
) -> Result<(), String> {
    let keeps_all = state.keeper.keeps_all();
    let takes_owner_bits = !keeps_all && !state.keeper.keeps_directories_usable();
    let owner_bits = record.final_owner_bits().filter(|_| takes_owner_bits);
    let kept = record.metadata.as_ref().filter(|_| keeps_all);
    let is_changed = kept.is_some() || owner_bits.is_some() || record.locked.is_some();
    if !is_changed && !state.options.fsync {
        return Ok(());
    }
    let folder = open_directory(state.placement.root(), local).map_err(errno_text)?;
    if let Some(metadata) = kept {
        let stat = fstat(&folder).map_err(errno_text)?;
        let note = |text| state.note(text);
        let keeper = &state.keeper;
        let may_change = record.is_made || state.existing.replaces;
        if state.placement.is_served_itself(local) {
            keeper.note_served(&stat, metadata, &note);
        } else if may_change {
            keeper.apply_to_folder(folder.as_fd(), &stat, metadata, &note);
        }
    } else if let Some(bits) = owner_bits {
        // All other bits are those that the system gave to the folder. With an ACL, they stand for its mask.
        let mode = fstat(&folder).map_err(errno_text)?.st_mode & 0o7777;
        let mode = Mode::from_raw_mode(mode & !OWNER_BITS | bits);
        fchmod(&folder, mode).map_err(errno_text)?;
    } else if let Some(mode) = record.locked {
        set_mode(folder.as_fd(), mode);
    }
    if state.options.fsync {
        sync(folder.as_fd()).map_err(errno_text)?;
    }
    Ok(())
}

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
///
/// # Errors
///
/// Fails as openat(2) does. `ELOOP` or `ENOTDIR` says that the entry is not a directory.
pub(super) fn open_child(directory: BorrowedFd<'_>, name: &[u8]) -> rustix::io::Result<OwnedFd> {
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
