//! What is done to the folders of a copy at its end, the deepest first: their metadata, their modes, fsync.
//!
//! The list is in a file without a name, so its length is not bounded, and memory is not used. Each record leads to the
//! one before it of the same depth, so the list is read by depth without an index. A folder may have several records:
//! what they say is the same.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    fs::File,
    io::{self, BufWriter, Write},
    os::unix::fs::FileExt,
};

use rustix::fs::Mode;
use serde::{Deserialize, Serialize};

use super::state::DestinationState;
use crate::copy::{
    budget::PATH_ENTRY_BYTES, job::CopyError, metadata::Metadata, nameless::NamelessFile,
    path::RelativePath,
};

/// The bytes before a record: the position of the record before it of the same depth, and the length.
const HEAD_BYTES: usize = 12;

/// Stands for the position of no record.
const NO_RECORD: u64 = u64::MAX;

/// The folders of a copy that something is done to at its end.
#[derive(Debug, Default)]
pub(super) struct FolderEnds {
    file: Option<BufWriter<File>>,
    is_in_memory: bool,
    bytes: u64,
    /// The position of the last record of each depth.
    last: Vec<u64>,
    /// By depth and path: the modes that folders had before this run gave the owner the right to write in them.
    locked: BTreeMap<(usize, RelativePath), Mode>,
}

/// A folder that something is done to.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct FolderEnd {
    pub(super) local: RelativePath,
    /// With `-a`: the metadata.
    pub(super) metadata: Option<Metadata>,
    /// Without `-a`: the bits of the owner, if the folder may have others until then.
    pub(super) owner_bits: Option<u32>,
}

impl FolderEnds {
    /// Adds a folder.
    /// Fails if the file system has no room for the list.
    pub(super) fn push(&mut self, state: &DestinationState, end: &FolderEnd) -> io::Result<()> {
        let file = match &mut self.file {
            Some(file) => file,
            empty => {
                let made = NamelessFile::make(Some(state.placement.root()))?;
                self.is_in_memory = made.is_in_memory;
                empty.insert(BufWriter::new(made.file))
            }
        };
        let depth = depth(&end.local);
        if self.last.len() <= depth {
            self.last.resize(depth + 1, NO_RECORD);
        }
        let record = postcard::to_stdvec(end).map_err(io::Error::other)?;
        let length = u32::try_from(record.len()).map_err(io::Error::other)?;
        if self.is_in_memory && state.keep(HEAD_BYTES + record.len()).is_err() {
            // The copy has ended with its own reason.
            return Ok(());
        }
        file.write_all(&self.last[depth].to_le_bytes())?;
        file.write_all(&length.to_le_bytes())?;
        file.write_all(&record)?;
        self.last[depth] = self.bytes;
        self.bytes += (HEAD_BYTES + record.len()) as u64;
        Ok(())
    }

    /// Keeps the first mode of a folder for its end.
    /// Fails if the copy has no memory left for it.
    pub(super) fn lock(
        &mut self,
        state: &DestinationState,
        local: &RelativePath,
        mode: Mode,
    ) -> Result<(), CopyError> {
        let key = (depth(local), local.clone());
        if let Entry::Vacant(place) = self.locked.entry(key) {
            state.keep(local.as_bytes().len() + PATH_ENTRY_BYTES)?;
            place.insert(mode);
        }
        Ok(())
    }

    /// Returns the next folder, and forgets it: the deepest first, and of one depth those with a mode alone last.
    pub(super) fn pop(&mut self) -> io::Result<Option<(FolderEnd, Option<Mode>)>> {
        while self.last.last() == Some(&NO_RECORD) {
            self.last.pop();
        }
        let locked = self.locked.last_key_value().map(|((depth, _), _)| *depth);
        match self.last.len().checked_sub(1) {
            Some(depth) if locked.is_none_or(|locked| locked <= depth) => {
                let end = self.read(depth)?;
                let mode = self.locked.remove(&(depth, end.local.clone()));
                Ok(Some((end, mode)))
            }
            _ => Ok(self
                .pop_locked()
                .map(|(local, mode)| (FolderEnd::bare(local), Some(mode)))),
        }
    }

    /// Returns the next folder that has a mode to get back, and forgets it: the deepest first.
    pub(super) fn pop_locked(&mut self) -> Option<(RelativePath, Mode)> {
        let ((_, local), mode) = self.locked.pop_last()?;
        Some((local, mode))
    }

    fn read(&mut self, depth: usize) -> io::Result<FolderEnd> {
        let file = self.file.as_mut().ok_or(io::ErrorKind::NotFound)?;
        file.flush()?;
        let (file, position) = (file.get_ref(), self.last[depth]);
        let mut head = [0; HEAD_BYTES];
        file.read_exact_at(&mut head, position)?;
        let (before, length) = head.split_at(8);
        let length = u32::from_le_bytes(length.try_into().unwrap_or_default());
        let mut record = vec![0; usize::try_from(length).map_err(io::Error::other)?];
        file.read_exact_at(&mut record, position + HEAD_BYTES as u64)?;
        self.last[depth] = u64::from_le_bytes(before.try_into().unwrap_or_default());
        postcard::from_bytes(&record).map_err(io::Error::other)
    }
}

impl FolderEnd {
    /// Returns a folder that nothing is known of but its path.
    pub(super) fn bare(local: RelativePath) -> Self {
        Self {
            local,
            metadata: None,
            owner_bits: None,
        }
    }
}

fn depth(path: &RelativePath) -> usize {
    path.names().count()
}
