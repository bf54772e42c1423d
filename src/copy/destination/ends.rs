//! What is done at the end of a copy: hard links, when all files have their names, and then the folders, the deepest
//! first, with their metadata, their modes and fsync.
//!
//! The list of folders is in a file without a name, so its length is not bounded, and memory is not used. Each record
//! leads to the one before it of the same depth, so the list is read by depth without an index. A folder may have
//! several records: what they say is the same.

use std::{
    collections::{BTreeMap, HashSet, btree_map::Entry},
    fs::File,
    hash::{BuildHasher, RandomState},
    io::{self, BufReader, BufWriter, Read, Seek, Write},
    os::{
        fd::{AsFd, OwnedFd},
        unix::fs::FileExt,
    },
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
    },
};

use rustix::{
    fs::{AtFlags, Mode, Stat, fstat, linkat, statat},
    io::Errno,
};
use serde::{Deserialize, Serialize};

use super::{
    entry::{TemporaryName, rename_over},
    folders::{FolderTable, open_directory},
    in_place::{PlacingFault, is_append_only},
    state::{DestinationState, add, errno_text, lock},
    written::id_of,
};
use crate::copy::{
    budget::{PATH_ENTRY_BYTES, SET_ENTRY_BYTES},
    job::CopyError,
    metadata::Metadata,
    nameless::NamelessFile,
    path::{EntryName, RelativePath},
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

/// The hard links that are to be made, in a file without a name: their number is not bounded, the memory is.
#[derive(Debug, Default)]
pub(super) struct HardLinkSpool {
    file: Mutex<Option<BufWriter<File>>>,
    is_in_memory: AtomicBool,
    /// Entries that were not written, by the hashes of their paths: an older file may have the name.
    failed: Mutex<HashSet<u64>>,
    /// True if the copy had no memory to remember all of them.
    lacks_failed: AtomicBool,
    keys: RandomState,
}

/// A hard link that is to be made. Both paths are those of the source.
#[derive(Debug)]
pub(super) struct SpooledLink {
    /// The path that becomes a link.
    pub(super) path: RelativePath,
    /// The first name of the file.
    pub(super) target: RelativePath,
    /// True if the destination has the same file under `path` already, maybe as this link.
    pub(super) is_kept: bool,
}

impl HardLinkSpool {
    /// Keeps a link for the end.
    /// Fails if the file system has no room for the list.
    pub(super) fn push(&self, state: &DestinationState, link: &SpooledLink) -> io::Result<()> {
        let mut file = lock(&self.file);
        let file = match &mut *file {
            Some(file) => file,
            empty => {
                let made = NamelessFile::make(Some(state.placement.root()))?;
                self.is_in_memory
                    .store(made.is_in_memory, Ordering::Relaxed);
                empty.insert(BufWriter::new(made.file))
            }
        };
        let bytes = link.path.as_bytes().len() + link.target.as_bytes().len() + 9;
        if self.is_in_memory.load(Ordering::Relaxed) && state.keep(bytes).is_err() {
            // The copy has ended with its own reason.
            return Ok(());
        }
        file.write_all(&[u8::from(link.is_kept)])?;
        for path in [&link.path, &link.target] {
            let length = u32::try_from(path.as_bytes().len()).map_err(io::Error::other)?;
            file.write_all(&length.to_le_bytes())?;
            file.write_all(path.as_bytes())?;
        }
        Ok(())
    }

    /// Remembers that an entry was not written.
    pub(super) fn add_failed(&self, state: &DestinationState, path: &RelativePath) {
        if state.budget().take_spare(SET_ENTRY_BYTES) {
            lock(&self.failed).insert(self.keys.hash_one(path.as_bytes()));
        } else {
            self.lacks_failed.store(true, Ordering::Relaxed);
        }
    }

    /// Returns the links that were kept; none if there are no links.
    pub(super) fn reader(&self) -> io::Result<Option<LinkReader>> {
        let Some(writer) = lock(&self.file).take() else {
            return Ok(None);
        };
        let mut file = writer
            .into_inner()
            .map_err(io::IntoInnerError::into_error)?;
        file.rewind()?;
        Ok(Some(LinkReader(BufReader::new(file))))
    }

    /// Makes a link, under a temporary name first.
    pub(super) fn make(
        &self,
        state: &DestinationState,
        folders: &FolderTable,
        temporary: &mut TemporaryName,
        link: &SpooledLink,
    ) -> Result<(), String> {
        let SpooledLink {
            path,
            target,
            is_kept,
        } = link;
        let cannot = |errno| format!("cannot make the hard link: {}", errno_text::<Errno>(errno));
        if lock(&self.failed).contains(&self.keys.hash_one(target.as_bytes())) {
            return Err("cannot make the hard link: its file was not written".to_owned());
        }
        if self.lacks_failed.load(Ordering::Relaxed) {
            let why = "cannot make the hard link: so many files were not written that its file may be one of them";
            return Err(why.to_owned());
        }
        let (folder, name) = state.placement.entry(path)?;
        let local = folder.join(&name);
        let (target_folder, target_name) = state.placement.entry(target)?;
        let target_folder =
            open_directory(state.placement.root(), &target_folder).map_err(cannot)?;
        let folder = folders.open(state, &folder, None, &[])?;
        if !state.existing.replaces && !is_of_run(state, &target_folder, &target_name) {
            let why = "its file is not of this copy, and this client may change no other (append in the server's key file)";
            return Err(format!("cannot make the hard link: {why}"));
        }
        if *is_kept {
            let [found, first] = [
                (folder.fd.as_fd(), &name),
                (target_folder.as_fd(), &target_name),
            ]
            .map(|(folder, name)| statat(folder, name.as_bytes(), AtFlags::SYMLINK_NOFOLLOW));
            let (found, first) = (found.map_err(cannot)?, first.map_err(cannot)?);
            // Another source of the run may have replaced the first name since.
            let of_one_file = |stat: &Stat| (stat.st_size, stat.st_mtime, stat.st_mtime_nsec);
            if id_of(&found) == id_of(&first) || of_one_file(&found) != of_one_file(&first) {
                return Ok(());
            }
            // It was kept for this source, which replaces it now by the same.
            state.written.forget(&found);
        }
        let make = |name: &[u8]| {
            let (from, flags) = (target_name.as_bytes(), AtFlags::empty());
            linkat(&target_folder, from, &folder.fd, name, flags)
        };
        if is_append_only(folder.fd.as_fd()) {
            state.check_running()?;
            make(name.as_bytes()).map_err(cannot)?;
            add(&state.counts.files, 1);
            return Ok(());
        }
        temporary.make(make).map_err(cannot)?;
        let result = rename_over(state, folder.target(), temporary.as_bytes(), &name, &local);
        // If both names are of one file already, rename(2) does nothing, and the temporary name stays.
        temporary.remove(folder.fd.as_fd());
        if result.is_ok() {
            add(&state.counts.files, 1);
        }
        result.map_err(PlacingFault::into_text)
    }
}

/// Returns true if the run has written the entry `name` of a folder, or has made the folder.
fn is_of_run(state: &DestinationState, folder: &OwnedFd, name: &EntryName) -> bool {
    let is_written =
        |stat: rustix::io::Result<Stat>| stat.is_ok_and(|stat| state.written.contains(&stat));
    is_written(statat(folder, name.as_bytes(), AtFlags::SYMLINK_NOFOLLOW))
        || is_written(fstat(folder))
}

/// Reads the links that were kept.
#[derive(Debug)]
pub(super) struct LinkReader(BufReader<File>);

impl LinkReader {
    /// Returns the next link; none after the last one.
    pub(super) fn next(&mut self) -> io::Result<Option<SpooledLink>> {
        let mut is_kept = [0];
        match self.0.read_exact(&mut is_kept) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
            result => result?,
        }
        Ok(Some(SpooledLink {
            path: self.path()?,
            target: self.path()?,
            is_kept: is_kept != [0],
        }))
    }

    fn path(&mut self) -> io::Result<RelativePath> {
        let mut length = [0; 4];
        self.0.read_exact(&mut length)?;
        let length = usize::try_from(u32::from_le_bytes(length)).map_err(io::Error::other)?;
        let mut path = vec![0; length];
        self.0.read_exact(&mut path)?;
        path.try_into().map_err(io::Error::other)
    }
}
