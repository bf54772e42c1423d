//! The table of the files that arrive in parts, through any lane.
//!
//! The parts are written to `.NAME.rdcp-part`, from all lanes, with `pwrite`. After a range is written it is appended
//! to the map `.NAME.rdcp-map`. When all parts have been counted the file gets its metadata, is synchronised if the
//! user asked for that, and gets its name; the map is removed.
//!
//! With `--resume` the destination answers with the ranges of the map. If the machine was restarted since, a range may
//! be in the map though its contents never reached the disk; if the source's file was changed since, a range may have
//! its old contents. So each block of 16 MiB has a digest of what is there now, and the source sends the blocks that
//! differ. A lock on the part file keeps a second run away.

pub(super) mod map;
pub(super) mod part;
pub(super) mod target;

use std::{
    collections::{HashMap, HashSet, hash_map::Entry},
    sync::{Arc, Mutex},
};

use self::{
    part::{MAX_PROMISES, PartPromise},
    target::LargeTarget,
};
use super::{
    reader::broken,
    state::{DestinationState, lock},
    tree::folders::FolderTable,
};
use crate::copy::{job::CopyFailure, path::RelativePath, record::LargeFile};

/// The most files that are open at a time: each needs three descriptors, of the 1,024 that a process usually has.
pub(super) const MAX_OPEN: usize = 64;

/// The most files whose parts are dropped, because they could not be written.
const MAX_ABANDONED: usize = 1 << 20;

/// The files that arrive in parts.
#[derive(Debug, Default)]
pub(super) struct LargeTable {
    files: Mutex<LargeFiles>,
    /// What earlier runs have left of files, as the source was told.
    promises: Mutex<HashMap<RelativePath, PartPromise>>,
}

#[derive(Debug, Default)]
struct LargeFiles {
    open: HashMap<u64, Arc<LargeTarget>>,
    abandoned: HashSet<u64>,
}

/// What the table knows of a number.
pub(super) enum FoundFile {
    /// The file is open.
    Open(Arc<LargeTarget>),
    /// The file could not be written, so its parts are dropped.
    Abandoned,
    /// The number is not known yet, or the file is complete.
    Unknown,
}

impl LargeTable {
    /// Returns what is known of a number.
    pub(super) fn find(&self, id: u64) -> FoundFile {
        let files = lock(&self.files);
        match files.open.get(&id) {
            Some(target) => FoundFile::Open(Arc::clone(target)),
            None if files.abandoned.contains(&id) => FoundFile::Abandoned,
            None => FoundFile::Unknown,
        }
    }

    /// Opens a file that was announced, unless another lane has opened it meanwhile.
    ///
    /// # Errors
    ///
    /// The outer error says that the source breaks the protocol. The inner one is the reason for the user.
    pub(super) fn open(
        &self,
        state: &DestinationState,
        folders: &FolderTable,
        file: &LargeFile,
    ) -> Result<Result<Arc<LargeTarget>, String>, CopyFailure> {
        let mut files = lock(&self.files);
        let count = files.open.len();
        match files.open.entry(file.id) {
            Entry::Occupied(entry) => Ok(Ok(Arc::clone(entry.get()))),
            Entry::Vacant(_) if count >= MAX_OPEN => {
                Err(broken("too many large files at the same time"))
            }
            Entry::Vacant(entry) => {
                match LargeTarget::open(state, folders, file, |local| self.take_promise(local)) {
                    Ok(target) => Ok(Ok(Arc::clone(entry.insert(Arc::new(target))))),
                    Err(why) => Ok(Err(why)),
                }
            }
        }
    }

    /// Drops all further parts of a file. Returns false if they are dropped already.
    ///
    /// # Errors
    ///
    /// Fails if this happens to too many files.
    pub(super) fn abandon(&self, id: u64) -> Result<bool, CopyFailure> {
        let mut files = lock(&self.files);
        files.open.remove(&id);
        if files.abandoned.len() >= MAX_ABANDONED {
            return Err(broken("too many large files that cannot be written"));
        }
        Ok(files.abandoned.insert(id))
    }

    /// Forgets a file that is complete.
    pub(super) fn remove(&self, id: u64) {
        lock(&self.files).open.remove(&id);
    }

    /// Forgets every file. Those that are not complete stay under their temporary names, if they are large enough.
    pub(super) fn clear(&self) -> Vec<Arc<LargeTarget>> {
        let mut files = lock(&self.files);
        files.open.drain().map(|(_, target)| target).collect()
    }

    /// Remembers what the source was told of a file. Returns false if too many files are remembered.
    pub(super) fn promise(&self, local: RelativePath, promise: PartPromise) -> bool {
        let mut promises = lock(&self.promises);
        let has_room = promises.len() < MAX_PROMISES;
        if has_room {
            promises.insert(local, promise);
        }
        has_room
    }

    /// Returns what the source was told of a file, once.
    fn take_promise(&self, local: &RelativePath) -> Option<PartPromise> {
        lock(&self.promises).remove(local)
    }
}
