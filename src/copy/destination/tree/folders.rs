//! The folders of a copy: opens them, makes those that are missing, and gives them their metadata at the end.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    mem,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::Mutex,
};

use rustix::{
    fs::{AtFlags, CWD, FileType, Mode, chmodat, fchmod, fstat, mkdirat, statat},
    io::Errno,
};

use super::{
    beneath::{open_child, open_directory, proc_path},
    deletion::Deletion,
};
use crate::copy::destination::{
    fault_text::errno_text,
    mutex::lock,
    placement::{EntryNames, PlacedFolder},
    shared::DestinationShared,
    state::{DestinationState, add},
    written::{TargetFolder, id_of},
};
use crate::{
    copy::{
        context::CopyFailure,
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
const OWNER_BITS: u32 = 0o700;

/// The folders that the source has named, by their local paths.
#[derive(Debug, Default)]
pub(in crate::copy::destination) struct FolderTable {
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
}

/// A folder that is open.
#[derive(Debug)]
pub(in crate::copy::destination) struct OpenFolder {
    /// The folder.
    pub(in crate::copy::destination) fd: OwnedFd,
    /// True if this run has made the folder, so that everything in it is of this run.
    pub(in crate::copy::destination) is_made: bool,
    /// The device and the inode of the folder.
    pub(in crate::copy::destination) id: EntryId,
    /// True if this copy or an earlier one of the run has made the folder.
    pub(in crate::copy::destination) is_of_run: bool,
}

impl OpenFolder {
    /// Returns the folder as the place of entries.
    pub(in crate::copy::destination) fn target(&self) -> TargetFolder<'_> {
        TargetFolder {
            fd: self.fd.as_fd(),
            id: self.id,
            is_of_run: self.is_of_run,
        }
    }
}

impl FolderTable {
    /// Opens the folder at a local path, makes what is missing, and keeps the metadata for the end.
    ///
    /// # Errors
    ///
    /// Fails with the reason for the user.
    pub(in crate::copy::destination) fn open(
        &self,
        state: &DestinationState,
        local: &RelativePath,
        metadata: Option<Metadata>,
    ) -> Result<OpenFolder, String> {
        if local.as_bytes().len() > MAX_PATH_BYTES {
            return Err(errno_text(Errno::NAMETOOLONG));
        }
        let root = state.placement.root();
        let fd = match open_directory(root, local) {
            Ok(fd) => fd,
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => self.make(state, local)?,
            Err(errno) => return Err(format!("cannot open the directory: {}", errno_text(errno))),
        };
        let keeps_metadata = metadata.is_some();
        let is_made = self.record(state, local, metadata);
        if keeps_metadata && !is_made && state.keeper.keeps_all() && !state.keeper.is_root() {
            make_writable(fd.as_fd());
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
    pub(in crate::copy::destination) fn foresee(
        &self,
        state: &DestinationState,
        local: &RelativePath,
    ) -> bool {
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
            errno => Err(format!("cannot open the directory: {}", errno_text(errno))),
        };
        let is_made = made.is_ok();
        if let Err(why) = made {
            state.fail(local, format!("{why}; nothing in it would be written"));
        }
        foreseen.insert(local.clone(), is_made);
        is_made
    }

    /// Reports once that nothing was written in the folder at a local path.
    pub(in crate::copy::destination) fn fail(
        &self,
        state: &DestinationState,
        local: &RelativePath,
        why: &str,
    ) {
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
    pub(in crate::copy::destination) async fn finish(
        &self,
        state: &DestinationState,
    ) -> Result<(), CopyFailure> {
        let records = mem::take(&mut lock(&self.records).records);
        // A folder is a prefix of what is in it, so it comes later in the reversed order of the paths.
        for (index, (local, record)) in records.into_iter().rev().enumerate() {
            if index % FOLDERS_PER_TURN == 0 {
                tokio::task::yield_now().await;
            }
            if state.halt.is_cancelled() {
                return Err(CopyFailure::Cancelled);
            }
            if let Err(why) = finish_folder(state, &local, &record) {
                state.fail(&local, format!("cannot finish the directory: {why}"));
            }
        }
        Ok(())
    }

    /// Notes a folder. Returns true if this run has made it.
    fn record(
        &self,
        state: &DestinationState,
        local: &RelativePath,
        metadata: Option<Metadata>,
    ) -> bool {
        let mut table = lock(&self.records);
        let mut metadata = metadata;
        if let Some(metadata) = &mut metadata {
            let sizes = metadata.attributes.iter();
            let bytes: usize = sizes.map(|(name, value)| name.len() + value.len()).sum();
            if table.attribute_bytes + bytes > MAX_ATTRIBUTE_BYTES {
                metadata.attributes.clear();
                state.note("attributes of some directories were not kept: too many".to_owned());
            } else {
                table.attribute_bytes += bytes;
            }
        }
        let record = table.records.entry(local.clone()).or_default();
        if metadata.is_some() {
            record.metadata = metadata;
        }
        record.is_made
    }

    /// Makes the folder at a local path, and those above it that are missing. With the option to delete, whatever is not a
    /// folder on the way is removed.
    fn make(&self, state: &DestinationState, local: &RelativePath) -> Result<OwnedFd, String> {
        let root = state.placement.root();
        let mut above = RelativePath::default();
        let mut directory = open_directory(root, &above).map_err(errno_text)?;
        for name in local.names() {
            let own = name.to_vec().try_into();
            above = above.join(&own.map_err(|error| format!("{error}"))?);
            directory = match open_child(directory.as_fd(), name) {
                Ok(fd) => fd,
                Err(Errno::NOENT) => self.make_child(state, &directory, name, &above)?,
                Err(Errno::NOTDIR | Errno::LOOP) => {
                    self.make_room(state, &directory, name, &above)?;
                    self.make_child(state, &directory, name, &above)?
                }
                Err(errno) => {
                    return Err(format!("cannot open the directory: {}", errno_text(errno)));
                }
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

    fn make_child(
        &self,
        state: &DestinationState,
        directory: &OwnedFd,
        name: &[u8],
        local: &RelativePath,
    ) -> Result<OwnedFd, String> {
        let cannot = |errno| format!("cannot make the directory: {}", errno_text::<Errno>(errno));
        let is_new = match mkdirat(directory, name, Mode::from_raw_mode(OWNER_BITS)) {
            Ok(()) => {
                add(&state.counts.directories, 1);
                let mut table = lock(&self.records);
                table.records.entry(local.clone()).or_default().is_made = true;
                true
            }
            // Another lane has made it.
            Err(Errno::EXIST) => false,
            Err(errno) => return Err(cannot(errno)),
        };
        let folder = open_child(directory.as_fd(), name).map_err(cannot)?;
        if is_new {
            state.written.note(&fstat(&folder).map_err(cannot)?);
        }
        Ok(folder)
    }
}

/// Opens a folder to look at what is in it. Returns none if there is no directory. With `-a`, what a normal user cannot
/// search becomes writable first, as for the lanes: copied folders get the mode of the source's folders at the end.
///
/// # Errors
///
/// Fails as openat(2) does.
pub(in crate::copy::destination) fn look_into(
    shared: &DestinationShared,
    placed: &PlacedFolder,
) -> rustix::io::Result<Option<OwnedFd>> {
    let (state, local) = (&shared.state, &placed.path);
    let may_change = state.keeper.keeps_all() && !state.keeper.is_root() && !state.options.dry_run;
    let is_copied = !matches!(placed.entries, EntryNames::Refused(_))
        && state.placement.target_of(local).is_some();
    let opened = if may_change && is_copied && shared.may_write(local) {
        open_unlocked(state, local)
    } else {
        open_directory(state.placement.root(), local)
    };
    match opened {
        Ok(directory) => Ok(Some(directory)),
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(None),
        Err(errno) => Err(errno),
    }
}

/// Opens a folder of the copy, and makes writable what its owner cannot search, from the top of the copy on.
fn open_unlocked(state: &DestinationState, local: &RelativePath) -> rustix::io::Result<OwnedFd> {
    let root = state.placement.root();
    let opened = open_directory(root, local);
    if !matches!(opened, Err(Errno::ACCESS)) {
        if let Ok(directory) = &opened {
            make_writable(directory.as_fd());
        }
        return opened;
    }
    let mut above = RelativePath::default();
    let mut directory = open_directory(root, &above)?;
    for name in local.names() {
        if state.placement.target_of(&above).is_some() {
            make_writable(directory.as_fd());
        }
        directory = open_child(directory.as_fd(), name)?;
        above = above.join(&EntryName::try_from(name.to_vec()).map_err(|_| Errno::INVAL)?);
    }
    make_writable(directory.as_fd());
    Ok(directory)
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
pub(super) fn make_writable(folder: BorrowedFd<'_>) -> Option<Mode> {
    let mode = fstat(folder).ok()?.st_mode & 0o7777;
    if mode & OWNER_BITS == OWNER_BITS {
        return None;
    }
    set_mode(folder, Mode::from_raw_mode(mode | OWNER_BITS));
    Some(Mode::from_raw_mode(mode))
}

/// Gives a folder a mode, if this process may do so.
pub(super) fn set_mode(folder: BorrowedFd<'_>, mode: Mode) {
    let _ = chmodat(CWD, proc_path(folder), mode, AtFlags::empty());
}

fn finish_folder(
    state: &DestinationState,
    local: &RelativePath,
    record: &FolderRecord,
) -> Result<(), String> {
    let is_kept = state.keeper.keeps_all() && record.metadata.is_some();
    if !record.is_made && !is_kept && !state.options.fsync {
        return Ok(());
    }
    let folder = open_directory(state.placement.root(), local).map_err(errno_text)?;
    let stat = fstat(&folder).map_err(errno_text)?;
    match &record.metadata {
        Some(metadata) if is_kept || record.is_made => {
            let note = |text| state.note(text);
            let folder = folder.as_fd();
            state.keeper.apply_to_folder(folder, &stat, metadata, &note);
        }
        None if record.is_made => {
            fchmod(&folder, state.keeper.mode_of_folder()).map_err(errno_text)?;
        }
        _ => {}
    }
    if state.options.fsync {
        sync(folder.as_fd()).map_err(errno_text)?;
    }
    Ok(())
}
