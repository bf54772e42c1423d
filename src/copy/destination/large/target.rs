//! A file that arrives in parts.

use std::{
    os::fd::{AsFd, OwnedFd},
    sync::Mutex,
};

use rustix::{
    fs::{AtFlags, Stat, fstat, ftruncate, statat, unlinkat},
    io::{pwrite, retry_on_intr},
};

use super::{
    contents::read_range,
    map::{MapWriter, SourceVersion},
    part::{MIN_KEPT_BYTES, PartNames, PartPromise, find_promise, open_map, open_part},
};
use crate::{
    copy::{
        destination::{
            attributes::{FreshEntry, entry_handle::EntryHandle},
            entry::{digest_of, rename_over, replaced_file},
            fault_text::errno_text,
            mutex::lock,
            state::{DestinationState, add},
            tree::folders::FolderTable,
        },
        digest::FileDigest,
        path::{EntryName, RelativePath},
        question::ByteRange,
        record::LargeFile,
    },
    fd::{close, sync},
};

/// A file that arrives in parts.
#[derive(Debug)]
pub(in crate::copy::destination) struct LargeTarget {
    /// The announcement.
    pub(in crate::copy::destination) file: LargeFile,
    /// The path at the destination.
    pub(in crate::copy::destination) local: RelativePath,
    name: EntryName,
    names: PartNames,
    folder: OwnedFd,
    fd: OwnedFd,
    replaced: Option<Stat>,
    map: Mutex<Option<MapWriter>>,
    progress: Mutex<PartProgress>,
}

/// How much of a file has arrived.
#[derive(Default)]
struct PartProgress {
    bytes: u64,
    expected: Option<u64>,
    is_complete: bool,
    digest: Option<FileDigest>,
    /// The offset of the next byte that the digest needs; none if the parts did not come in order.
    digested: Option<u64>,
}

impl std::fmt::Debug for PartProgress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PartProgress")
            .field("bytes", &self.bytes)
            .field("expected", &self.expected)
            .finish_non_exhaustive()
    }
}

impl LargeTarget {
    /// Opens or continues the temporary file. `promise` returns what the source was told of the file.
    ///
    /// # Errors
    ///
    /// Fails with the reason for the user.
    pub(super) fn open(
        state: &DestinationState,
        folders: &FolderTable,
        file: &LargeFile,
        promise: impl FnOnce(&RelativePath) -> Option<PartPromise>,
    ) -> Result<Self, String> {
        let (folder_path, name) = state.placement.entry(&file.path)?;
        let local = folder_path.join(&name);
        let folder = folders.open(state, &folder_path, None)?;
        let replaced = replaced_file(state, folder.fd.as_fd(), &name, folder.is_made);
        let names = PartNames::of(&name);
        let promise = promise(&local);
        let fd = open_part(folder.fd.as_fd(), &names.part)?;
        if file.resumed {
            let version = version_of(file);
            let found = find_promise(folder.fd.as_fd(), &names, version);
            if promise.is_none() || found.map(|(_, promise)| promise) != promise {
                return Err("what an earlier run had left of it has changed".to_owned());
            }
        } else {
            ftruncate(&fd, 0).map_err(errno_text)?;
            let _ = unlinkat(&folder.fd, &names.map[..], AtFlags::empty());
        }
        ftruncate(&fd, file.size)
            .map_err(|errno| format!("cannot make a file of this size: {}", errno_text(errno)))?;
        let digest = digest_of(state);
        let progress = PartProgress {
            digested: (!file.resumed).then_some(0),
            digest,
            ..PartProgress::default()
        };
        Ok(Self {
            file: file.clone(),
            local,
            name,
            names,
            folder: folder.fd,
            fd,
            replaced,
            map: Mutex::default(),
            progress: Mutex::new(progress),
        })
    }

    /// Writes a piece of a part.
    ///
    /// # Errors
    ///
    /// Fails with the reason for the user.
    pub(in crate::copy::destination) fn write_at(
        &self,
        mut bytes: &[u8],
        mut offset: u64,
    ) -> Result<(), String> {
        self.digest(bytes, offset);
        while !bytes.is_empty() {
            match retry_on_intr(|| pwrite(&self.fd, bytes, offset)) {
                Ok(0) => return Err("cannot write: the system takes no more bytes".to_owned()),
                Ok(count) => {
                    bytes = &bytes[count..];
                    offset += count as u64;
                }
                Err(errno) => return Err(format!("cannot write: {}", errno_text(errno))),
            }
        }
        Ok(())
    }

    /// Notes in the map that a range is written. A map that cannot be written costs a later run some time only.
    pub(in crate::copy::destination) fn map_range(&self, range: ByteRange) {
        let is_complete = lock(&self.progress).is_complete;
        if is_complete || self.file.size < MIN_KEPT_BYTES {
            return;
        }
        let mut map = lock(&self.map);
        if map.is_none() {
            *map = open_map(self.folder.as_fd(), &self.names.map, version_of(&self.file)).ok();
        }
        if let Some(map) = &*map {
            let _ = map.append(range);
        }
    }

    /// Counts the bytes of a part that is written. Returns true if the file is complete with them.
    pub(in crate::copy::destination) fn add_written(&self, bytes: u64) -> bool {
        let mut progress = lock(&self.progress);
        progress.bytes = progress.bytes.saturating_add(bytes);
        progress.completes()
    }

    /// Notes how many bytes all parts have. Returns true if the file is complete.
    pub(in crate::copy::destination) fn expect(&self, bytes: u64) -> bool {
        let mut progress = lock(&self.progress);
        progress.expected = Some(bytes);
        progress.completes()
    }

    /// Gives a file that is complete its metadata and its name.
    ///
    /// # Errors
    ///
    /// Fails with the reason for the user.
    pub(in crate::copy::destination) fn commit(
        &self,
        state: &DestinationState,
    ) -> Result<(), String> {
        let digest = self.final_digest(state)?;
        let stat = fstat(&self.fd).map_err(errno_text)?;
        let fresh = FreshEntry::of(&stat, state.keeper.has_default_acl(self.folder.as_fd()));
        let note = |text| state.note(text);
        let metadata = &self.file.metadata;
        let plan = state
            .keeper
            .plan(metadata, &fresh, self.replaced.as_ref(), &note)
            .after_private_creation();
        state
            .keeper
            .apply(EntryHandle::Open(self.fd.as_fd()), plan, metadata, &note);
        if state.options.fsync {
            sync(self.fd.as_fd())
                .map_err(|error| format!("cannot fsync: {}", errno_text(error)))?;
        }
        // Each close(2) reports what NFS could not write. The file stays open in the lanes that have written it.
        let duplicate = self.fd.try_clone().map_err(errno_text)?;
        close(duplicate).map_err(|error| format!("cannot write: {}", errno_text(error)))?;
        let folder = self.folder.as_fd();
        let named = statat(folder, &self.names.part[..], AtFlags::SYMLINK_NOFOLLOW);
        let named = named.map_err(errno_text)?;
        if (named.st_dev, named.st_ino) != (stat.st_dev, stat.st_ino) {
            return Err("another process has replaced its temporary file".to_owned());
        }
        rename_over(state, folder, &self.names.part, &self.name, &self.local)?;
        if self.file.size >= MIN_KEPT_BYTES {
            let _ = unlinkat(folder, &self.names.map[..], AtFlags::empty());
        }
        add(&state.counts.files, 1);
        if let Some(digest) = digest {
            state.add_digest(digest, &self.file.path);
        }
        Ok(())
    }

    /// Removes a file that is not complete, unless a later run may continue it.
    pub(in crate::copy::destination) fn give_up(&self) {
        if self.file.size < MIN_KEPT_BYTES {
            let _ = unlinkat(&self.folder, &self.names.part[..], AtFlags::empty());
        }
    }

    fn digest(&self, bytes: &[u8], offset: u64) {
        let mut progress = lock(&self.progress);
        let PartProgress {
            digest: Some(digest),
            digested,
            ..
        } = &mut *progress
        else {
            return;
        };
        match *digested {
            Some(next) if next <= offset => {
                digest.update_zeros(offset - next);
                digest.update(bytes);
                *digested = Some(offset + bytes.len() as u64);
            }
            _ => *digested = None,
        }
    }

    /// Returns the digest of the file. If its parts did not come in order, or an earlier run has written some, the file is
    /// read again.
    fn final_digest(&self, state: &DestinationState) -> Result<Option<String>, String> {
        let mut progress = lock(&self.progress);
        let Some(mut digest) = progress.digest.take() else {
            return Ok(None);
        };
        if let Some(next) = progress.digested {
            digest.update_zeros(self.file.size.saturating_sub(next));
            return Ok(Some(digest.finish()));
        }
        let Some(mut digest) = digest_of(state) else {
            return Ok(None);
        };
        read_range(state, &self.fd, 0, self.file.size, |bytes| {
            digest.update(bytes);
        })?;
        Ok(Some(digest.finish()))
    }
}

impl PartProgress {
    fn completes(&mut self) -> bool {
        let completes = !self.is_complete && self.expected == Some(self.bytes);
        self.is_complete |= completes;
        completes
    }
}

/// Returns the version of the source's file.
pub(in crate::copy::destination) fn version_of(file: &LargeFile) -> SourceVersion {
    SourceVersion {
        size: file.size,
        modified: file.metadata.modified,
    }
}
