//! The files that arrive in parts, through any lane.
//!
//! The parts are written to `.NAME.rdcp-part`, from all lanes, with `pwrite`. After a range is written it is appended
//! to the map `.NAME.rdcp-map`. When all parts have been counted the file gets its metadata, is synchronised if the
//! user asked for that, and gets its name; the map is removed.
//!
//! With `--resume` the destination answers with the ranges of the map. If the machine was restarted since, a range may
//! be in the map though its contents never reached the disk; if the source's file was changed since, a range may have
//! its old contents; and a server does not trust what is on its disk. So each block of 16 MiB has a digest of what is
//! there now, and the source sends the blocks that differ. What the map does not tell becomes a hole. A lock on the part
//! file keeps a second run away.

use std::{
    collections::{HashMap, HashSet, hash_map::Entry},
    sync::{Arc, Mutex},
};

use super::{
    folders::FolderTable,
    lane::{LaneWriter, broken},
    large_target::{LargeTarget, PartUse},
    part_file::{MAX_PROMISES, PartPromise},
    state::{DestinationState, add, lock},
};
use crate::copy::{
    budget::{PATH_ENTRY_BYTES, SET_ENTRY_BYTES},
    job::CopyError,
    path::RelativePath,
    question::ByteRange,
    record::LargeFile,
};

/// The most files that are open at a time: each needs three descriptors, of the 1,024 that a process usually has.
pub(super) const MAX_OPEN: usize = 64;

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
    /// The outer error says that the source breaks the protocol. The inner one is the reason for the user.
    pub(super) fn open(
        &self,
        state: &DestinationState,
        folders: &FolderTable,
        file: &LargeFile,
    ) -> Result<Result<Arc<LargeTarget>, String>, CopyError> {
        let mut files = lock(&self.files);
        let count = files.open.len();
        match files.open.entry(file.id) {
            Entry::Occupied(entry) => Ok(Ok(Arc::clone(entry.get()))),
            Entry::Vacant(_) if count >= MAX_OPEN => {
                Err(broken("too many large files at the same time"))
            }
            Entry::Vacant(entry) => {
                state.keep(bytes_of(file))?;
                let take_promise = |local: &RelativePath| self.take_promise(state, local);
                match LargeTarget::open(state, folders, file, take_promise) {
                    Ok(target) => Ok(Ok(Arc::clone(entry.insert(Arc::new(target))))),
                    Err(why) => {
                        state.budget().give_back(bytes_of(file));
                        Ok(Err(why))
                    }
                }
            }
        }
    }

    /// Drops all further parts of a file. Returns false if they are dropped already.
    /// Fails if the copy has no memory to remember that.
    pub(super) fn abandon(&self, state: &DestinationState, id: u64) -> Result<bool, CopyError> {
        self.remove(state, id);
        let mut files = lock(&self.files);
        if files.abandoned.contains(&id) {
            return Ok(false);
        }
        state.keep(SET_ENTRY_BYTES)?;
        Ok(files.abandoned.insert(id))
    }

    /// Forgets a file that is complete.
    pub(super) fn remove(&self, state: &DestinationState, id: u64) {
        if let Some(target) = lock(&self.files).open.remove(&id) {
            state.budget().give_back(bytes_of(&target.file));
        }
    }

    /// Forgets every file. Those that are not complete stay under their temporary names, if they are large enough.
    pub(super) fn clear(&self) -> Vec<Arc<LargeTarget>> {
        let mut files = lock(&self.files);
        files.open.drain().map(|(_, target)| target).collect()
    }

    /// Remembers what the source was told of a file. Returns false if too much is remembered: then the file is sent
    /// whole.
    pub(super) fn promise(
        &self,
        state: &DestinationState,
        local: &RelativePath,
        promise: PartPromise,
    ) -> bool {
        let mut promises = lock(&self.promises);
        let bytes = bytes_of_promise(local, &promise);
        let has_room = promises.len() < MAX_PROMISES && state.budget().take_spare(bytes);
        if has_room {
            if let Some(replaced) = promises.insert(local.clone(), promise) {
                let bytes = bytes_of_promise(local, &replaced);
                state.budget().give_back(bytes);
            }
        }
        has_room
    }

    /// Returns what the source was told of a file, once.
    fn take_promise(&self, state: &DestinationState, local: &RelativePath) -> Option<PartPromise> {
        let promise = lock(&self.promises).remove(local)?;
        let bytes = bytes_of_promise(local, &promise);
        state.budget().give_back(bytes);
        Some(promise)
    }
}

/// Returns the bytes that the announcement of a file takes.
fn bytes_of(file: &LargeFile) -> usize {
    let attributes = file.metadata.attributes.iter();
    let attributes: usize = attributes
        .map(|(name, value)| name.len() + value.len() + PATH_ENTRY_BYTES)
        .sum();
    file.path.as_bytes().len() + attributes + size_of::<LargeFile>() + PATH_ENTRY_BYTES
}

fn bytes_of_promise(local: &RelativePath, promise: &PartPromise) -> usize {
    let ranges = promise.ranges.ranges.capacity() * size_of::<ByteRange>();
    local.as_bytes().len() + ranges + size_of::<PartPromise>() + PATH_ENTRY_BYTES
}

/// The bytes of contents that are written between two records of a map. A process that is killed loses so much for each
/// lane, and a record is one system call.
const MAPPED_BYTES: u64 = 8 << 20;

impl LaneWriter {
    /// Keeps the announcement of a file until its first part.
    pub(crate) fn announce(&mut self, mut file: LargeFile) -> Result<(), CopyError> {
        self.adopt(&mut file.metadata);
        if self.announced.len() >= MAX_OPEN {
            let (large, budget) = (&self.shared.large, self.shared.state.budget());
            self.announced.retain(|&id, file| {
                let is_open = matches!(large.find(id), FoundFile::Open(_));
                if !is_open {
                    budget.give_back(bytes_of(file));
                }
                is_open
            });
        }
        if self.announced.len() >= MAX_OPEN {
            return Err(broken("too many large files at the same time"));
        }
        self.shared.state.keep(bytes_of(&file))?;
        if let Some(replaced) = self.announced.insert(file.id, file) {
            self.shared.state.budget().give_back(bytes_of(&replaced));
        }
        Ok(())
    }

    /// Forgets the announcement of a file.
    fn forget(&mut self, id: u64) {
        if let Some(file) = self.announced.remove(&id) {
            self.shared.state.budget().give_back(bytes_of(&file));
        }
    }

    /// Returns the file with a number; none if it could not be written.
    fn large_target(&mut self, id: u64) -> Result<Option<Arc<LargeTarget>>, CopyError> {
        match self.shared.large.find(id) {
            FoundFile::Open(target) => return Ok(Some(target)),
            FoundFile::Abandoned => return Ok(None),
            FoundFile::Unknown => {}
        }
        let Some(file) = self.announced.get(&id) else {
            return Err(broken("a part of a file that was not announced"));
        };
        let wire = file.path.clone();
        let local = self.local_path(&wire);
        if !self.shared.may_write(&local) {
            self.drop_large(id, wire, PartUse::None)?;
            return Ok(None);
        }
        match self.shared.open_large(file)? {
            Ok(target) if self.shared.may_write_in(&local) => return Ok(Some(target)),
            Ok(_) => {
                self.drop_large(id, wire, PartUse::Continuable)?;
            }
            Err(why) => self.fail_large(id, wire, why, PartUse::None)?,
        }
        Ok(None)
    }

    /// Writes the contents that follow as a part of a file.
    pub(crate) async fn write_part(&mut self, id: u64, offset: u64) -> Result<(), CopyError> {
        let length = self.reader.contents_left() as u64;
        let Some(end) = offset.checked_add(length) else {
            return Err(broken("a part behind the end of every file"));
        };
        let Some(target) = self.large_target(id)? else {
            return Ok(());
        };
        if end > target.file.size {
            return Err(broken("a part behind the end of its file"));
        }
        self.shared.state.set_current(|| target.file.path.clone());
        let mut at = offset;
        while at < end {
            let piece = self.reader.piece().await?;
            let count = piece.len();
            if let Err(why) = target.write_at(&self.shared.state, piece, at).await {
                return self.fail_large(id, target.file.path.clone(), why, PartUse::Continuable);
            }
            self.reader.consume(count);
            at += count as u64;
        }
        add(&self.shared.state.counts.bytes, length);
        self.note_written(&target, ByteRange { start: offset, end });
        if target.add_written(length) {
            self.commit(&target).await?;
        }
        Ok(())
    }

    /// Writes a hole as zeros, if the file needs them.
    pub(crate) async fn write_hole(
        &mut self,
        id: u64,
        start: u64,
        end: u64,
    ) -> Result<(), CopyError> {
        let Some(target) = self.large_target(id)? else {
            return Ok(());
        };
        if start > end || end > target.file.size {
            return Err(broken("a hole behind the end of its file"));
        }
        if let Err(why) = target.write_hole(start, end).await {
            return self.fail_large(id, target.file.path.clone(), why, PartUse::Continuable);
        }
        Ok(())
    }

    /// Notes how many bytes all parts of a file have.
    pub(crate) async fn end_large(&mut self, id: u64, bytes: u64) -> Result<(), CopyError> {
        let target = self.large_target(id)?;
        self.forget(id);
        match target {
            Some(target) if target.expect(bytes) => self.commit(&target).await,
            _ => Ok(()),
        }
    }

    /// Drops a file that the source could not read, and has reported.
    pub(crate) fn drop_broken(&mut self, id: u64, part: PartUse) -> Result<(), CopyError> {
        let target = self.large_target(id)?;
        self.forget(id);
        let Some(target) = target else {
            return Ok(());
        };
        self.drop_large(id, target.file.path.clone(), part)?;
        // The source has named the failure: here only what is under the final name is.
        if let Some(left) = target.left(PartUse::None) {
            let why = format!("was not copied to its end{left}");
            self.shared.state.fail(&target.local, why);
        }
        Ok(())
    }

    async fn commit(&mut self, target: &Arc<LargeTarget>) -> Result<(), CopyError> {
        let is_own = |(last, _): &mut (_, _)| Arc::ptr_eq(last, target);
        self.unmapped.take_if(is_own);
        let result = target.commit(&self.shared.state).await;
        if let Err(why) = result {
            let wire = target.file.path.clone();
            return self.fail_large(target.file.id, wire, why, PartUse::None);
        }
        self.forget(target.file.id);
        self.shared.large.remove(&self.shared.state, target.file.id);
        Ok(())
    }

    /// Reports that a file could not be written, and drops its parts from now on.
    /// Fails if the work has ended early: the file then stays for a later run, and is no failure of its own.
    fn fail_large(
        &mut self,
        id: u64,
        wire: RelativePath,
        why: String,
        part: PartUse,
    ) -> Result<(), CopyError> {
        if self.shared.state.halt.is_cancelled() {
            return Err(CopyError::Cancelled);
        }
        let local = self.local_path(&wire);
        let found = self.shared.large.find(id);
        if self.drop_large(id, wire, part)? {
            let left = match found {
                FoundFile::Open(target) => target.left(part),
                FoundFile::Abandoned | FoundFile::Unknown => None,
            };
            let why = why + &left.unwrap_or_default();
            self.shared.state.fail(&local, why);
        }
        Ok(())
    }

    /// Drops the parts of a file from now on. Returns false if they are dropped already.
    fn drop_large(
        &mut self,
        id: u64,
        wire: RelativePath,
        part: PartUse,
    ) -> Result<bool, CopyError> {
        let found = self.shared.large.find(id);
        if !self.shared.large.abandon(&self.shared.state, id)? {
            return Ok(false);
        }
        self.map_written();
        if let FoundFile::Open(target) = found {
            target.give_up(part);
        }
        self.keep_unwritten(wire);
        Ok(true)
    }

    /// Returns the local path of a file; its own path if it has no place.
    fn local_path(&self, wire: &RelativePath) -> RelativePath {
        let entry = self.shared.state.placement.entry(wire);
        entry.map_or_else(|_| wire.clone(), |(folder, name)| folder.join(&name))
    }

    /// Keeps a range for the map, and joins it with the last one.
    fn note_written(&mut self, target: &Arc<LargeTarget>, range: ByteRange) {
        match &mut self.unmapped {
            Some((last, known)) if Arc::ptr_eq(last, target) && known.end == range.start => {
                known.end = range.end;
            }
            _ => {
                self.map_written();
                self.unmapped = Some((Arc::clone(target), range));
            }
        }
        let is_long = |(_, range): &(_, ByteRange)| range.end - range.start >= MAPPED_BYTES;
        if self.unmapped.as_ref().is_some_and(is_long) {
            self.map_written();
        }
    }

    /// Writes the range that was kept to the map of its file.
    pub(crate) fn map_written(&mut self) {
        if let Some((target, range)) = self.unmapped.take() {
            target.map_range(range);
        }
    }
}
