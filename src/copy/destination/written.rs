//! Gives entries their names, and overwrites nothing that the run has written: neither what another source of it has
//! brought nor an entry whose name the file system takes for the same.
//!
//! Everything in a directory that the run has made is of the run. Elsewhere the run remembers what it has written.

use std::{
    os::fd::BorrowedFd,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
};

use rustix::{
    fs::{AtFlags, FileType, RenameFlags, Stat, renameat, renameat_with, statat},
    io::Errno,
};

use super::{ExistingRights, state::lock};
use crate::copy::{
    budget::ListBudget,
    order::{CopyOptions, ExistingFiles, RunPart},
    written::{BLOCK_BYTES, EntryId, WrittenEntries, WrittenPart},
};

/// The locks for replacing entries: more than lanes, so that two directories seldom have the same.
const LOCKS: usize = 32;

/// How often a rename is tried again, because another process makes or removes an entry of the name meanwhile.
const TRIES: usize = 8;

/// The reason for the user if `--no-clobber` keeps what was not there when the source asked.
const APPEARED: &str =
    "another program has made an entry of this name meanwhile, which --no-clobber keeps";

/// The reason for the user if a client of a server may replace nothing.
pub(super) const MAY_NOT_REPLACE: &str = "exists already as something else, which this client may not replace (append in the server's key file)";

/// What the run has written so far.
#[derive(Debug)]
pub(super) struct WrittenGuard {
    entries: Mutex<WrittenEntries>,
    /// Held while an entry is looked at and replaced, by directory.
    replacing: [Mutex<()>; LOCKS],
    /// Set if the file system has no rename that replaces nothing.
    has_plain_rename: AtomicBool,
    kept: KeptExisting,
    part: RunPart,
    budget: Arc<ListBudget>,
}

/// Which entries are kept that the run has not made. Directories stay in any case: rename(2) replaces none by something
/// else.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum KeptExisting {
    /// None.
    #[default]
    Nothing,
    /// All: the user has asked for it (`--no-clobber`).
    Asked,
    /// All: the client of a server may replace none.
    Enforced,
}

impl KeptExisting {
    /// Returns what a copy with these options keeps for a source that has these rights.
    pub(super) fn of(options: &CopyOptions, rights: ExistingRights) -> Self {
        if !rights.replaces {
            Self::Enforced
        } else if options.existing == ExistingFiles::Keep {
            Self::Asked
        } else {
            Self::Nothing
        }
    }

    /// Returns the fault of an entry that would replace another one; none if it may.
    fn fault(self) -> Option<RenameFault> {
        match self {
            Self::Nothing => None,
            Self::Asked => Some(RenameFault::Taken(APPEARED)),
            Self::Enforced => Some(RenameFault::Exists),
        }
    }
}

/// An open directory that receives entries.
#[derive(Debug, Clone, Copy)]
pub(super) struct TargetFolder<'a> {
    /// The directory.
    pub(super) fd: BorrowedFd<'a>,
    /// Its device and inode.
    pub(super) id: EntryId,
    /// True if the run has made it, so that everything in it is of the run.
    pub(super) is_of_run: bool,
}

/// The reason why an entry did not get its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum RenameFault {
    /// The run has written an entry of this name: the reason for the user.
    Taken(&'static str),
    /// An entry has the name, and the source may replace none.
    Exists,
    /// The system call failed.
    System(Errno),
}

impl From<Errno> for RenameFault {
    fn from(errno: Errno) -> Self {
        Self::System(errno)
    }
}

impl WrittenGuard {
    /// Returns the guard of a copy, which is this part of its run. `kept` is what it does not replace.
    pub(super) fn new(
        part: RunPart,
        earlier: WrittenEntries,
        kept: KeptExisting,
        budget: Arc<ListBudget>,
    ) -> Self {
        Self {
            entries: Mutex::new(earlier),
            replacing: Default::default(),
            has_plain_rename: AtomicBool::new(false),
            kept,
            part,
            budget,
        }
    }

    /// Gives the entry `from` the name `name` in its directory. What has the name is replaced, unless it is of the run.
    /// Fails as renameat(2) does, or if the run has written what has the name.
    pub(super) fn rename(
        &self,
        folder: TargetFolder<'_>,
        from: &[u8],
        name: &[u8],
    ) -> Result<(), RenameFault> {
        if folder.is_of_run {
            return self.rename_within(folder, from, name);
        }
        let own = id_of(&statat(folder.fd, from, AtFlags::SYMLINK_NOFOLLOW)?);
        // Before the entry has its name: another lane that finds it there knows it.
        let is_new = self.insert(&mut lock(&self.entries), own);
        let renamed = self.rename_within(folder, from, name);
        if renamed.is_err() && is_new {
            lock(&self.entries).remove(own);
        }
        renamed
    }

    fn rename_within(
        &self,
        folder: TargetFolder<'_>,
        from: &[u8],
        name: &[u8],
    ) -> Result<(), RenameFault> {
        for _ in 0..TRIES {
            if !self.has_plain_rename.load(Ordering::Relaxed) {
                let flags = RenameFlags::NOREPLACE;
                match renameat_with(folder.fd, from, folder.fd, name, flags) {
                    Err(Errno::EXIST) => {}
                    Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
                        self.has_plain_rename.store(true, Ordering::Relaxed);
                    }
                    result => return Ok(result?),
                }
            }
            if let Some(replaced) = self.replace(folder, from, name) {
                return replaced;
            }
        }
        Err(Errno::EXIST.into())
    }

    /// Replaces what has the name. Returns none if nothing has it any more.
    fn replace(
        &self,
        folder: TargetFolder<'_>,
        from: &[u8],
        name: &[u8],
    ) -> Option<Result<(), RenameFault>> {
        let shard = usize::try_from(folder.id.1 % LOCKS as u64).unwrap_or(0);
        let _replacing = lock(&self.replacing[shard]);
        let plain = || renameat(folder.fd, from, folder.fd, name).map_err(RenameFault::from);
        let (found, is_directory) = match statat(folder.fd, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(found) => (
                id_of(&found),
                FileType::from_raw_mode(found.st_mode) == FileType::Directory,
            ),
            Err(Errno::NOENT) if self.has_plain_rename.load(Ordering::Relaxed) => {
                return Some(plain());
            }
            Err(Errno::NOENT) => return None,
            Err(errno) => return Some(Err(errno.into())),
        };
        let own = statat(folder.fd, from, AtFlags::SYMLINK_NOFOLLOW);
        // Two names of one file: rename(2) does nothing.
        if own.is_ok_and(|own| id_of(&own) == found) {
            return Some(plain());
        }
        Some(match self.reason_to_keep(folder.is_of_run, found) {
            Some(why) => Err(RenameFault::Taken(why)),
            // rename(2) replaces no directory by something else.
            None if is_directory => plain(),
            None => self.kept.fault().map_or_else(plain, Err),
        })
    }

    /// Returns why an entry of a directory is not replaced, for the user; none if it may be.
    fn reason_to_keep(&self, is_in_own_folder: bool, found: EntryId) -> Option<&'static str> {
        let entries = lock(&self.entries);
        if is_in_own_folder || entries.contains(found) {
            return Some(if self.part.merges {
                "has the same name as another source, which was copied before, and would replace it"
            } else {
                "the file system takes its name for that of an entry that was copied before, or another program has \
                 made an entry of this name meanwhile; nothing was replaced"
            });
        }
        (self.part.merges && entries.is_full()).then_some(
            "may have the same name as another source: the run has written more entries than it can remember, so it \
             replaces none; copy the sources one after the other",
        )
    }

    /// Returns why the entry `name` may not be written, if the run has written it; none if it may be.
    pub(super) fn refusal(&self, folder: TargetFolder<'_>, name: &[u8]) -> Option<&'static str> {
        let found = statat(folder.fd, name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
        self.reason_to_keep(folder.is_of_run, id_of(&found))
    }

    /// Returns true if the run has written an entry, or has found there what one of its sources has.
    pub(super) fn contains(&self, entry: &Stat) -> bool {
        lock(&self.entries).contains(id_of(entry))
    }

    /// Notes an entry that the run has written, or has found there as one of its sources has it.
    pub(super) fn note(&self, entry: &Stat) {
        self.insert(&mut lock(&self.entries), id_of(entry));
    }

    /// Notes an entry that is about to be written in place. Returns false if the run has noted it before: each lane asks,
    /// and one of them gets it.
    pub(super) fn claim(&self, entry: &Stat) -> bool {
        let mut entries = lock(&self.entries);
        let is_free = !entries.contains(id_of(entry));
        self.insert(&mut entries, id_of(entry));
        is_free
    }

    /// Adds an entry. Returns true if the set did not have it. Without memory the set is full, as after its most entries.
    fn insert(&self, entries: &mut WrittenEntries, entry: EntryId) -> bool {
        if entries.grows_with(entry) && !self.budget.take_spare(BLOCK_BYTES) {
            entries.set_full();
            return false;
        }
        entries.insert(entry)
    }

    /// Lets an entry that was noted be replaced.
    pub(super) fn forget(&self, entry: &Stat) {
        lock(&self.entries).remove(id_of(entry));
    }

    /// Returns what later copies of the run must not replace; nothing if there are none.
    pub(super) fn for_later(&self) -> Vec<WrittenPart> {
        if self.part.has_later {
            lock(&self.entries).parts()
        } else {
            Vec::new()
        }
    }
}

/// Returns the device and the inode of an entry.
pub(super) fn id_of(stat: &Stat) -> EntryId {
    (stat.st_dev, stat.st_ino)
}
