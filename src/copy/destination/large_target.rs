//! A file that arrives in parts.

use std::{
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::Mutex,
};

use rustix::{
    fs::{AtFlags, Mode, OFlags, Stat, fstat, fstatvfs, ftruncate, openat, statat, unlinkat},
    io::{Errno, pwrite, retry_on_intr},
};

use super::{
    attributes::{EntryHandle, FreshEntry, ReplacedFile},
    entry::{digest_of, rename_or_match, replaced_file},
    folders::{FolderTable, OpenFolder},
    in_place::{
        PlacingFault, SpecialTarget, copy_into_place, create_in_place, is_append_only,
        left_in_place, mode_in_place, open_existing, plan_in_place,
    },
    part_file::{
        MIN_KEPT_BYTES, MapSubject, MapWriter, PartPromise, SourceVersion, clear_around,
        find_promise, has_name, open_map, open_part, read_range,
    },
    placement::{EntryNaming, PlaceFault},
    state::{DestinationState, add, errno_text, lock},
};
use crate::{
    copy::{
        metadata::content_size,
        order::FileDigest,
        path::{EntryName, RelativePath},
        question::ByteRange,
        record::LargeFile,
        temporary_names::{PartNames, PartOwner},
    },
    fd::{close, sync},
};

/// The most bytes of a file: offsets of the system are signed.
const MAX_FILE_BYTES: u64 = u64::MAX >> 1;

/// A file that arrives in parts.
#[derive(Debug)]
pub(super) struct LargeTarget {
    /// The announcement.
    pub(super) file: LargeFile,
    /// The path at the destination.
    pub(super) local: RelativePath,
    name: EntryName,
    naming: EntryNaming,
    names: PartNames,
    owner: PartOwner,
    folder: OpenFolder,
    contents: LargeContents,
    replaced: Option<ReplacedFile>,
    map: Mutex<Option<MapWriter>>,
    progress: Mutex<PartProgress>,
}

/// What a file that is not complete is good for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PartUse {
    /// A later run can continue it.
    Continuable,
    /// Nothing: the source's file is another one now, or the file cannot get its name.
    None,
}

/// Where the contents of a file are written.
#[derive(Debug)]
enum LargeContents {
    /// In the temporary file, which gets the name of the file at the end.
    Beside(OwnedFd),
    /// In the file that has the name.
    InPlace(OwnedFd),
    /// In a device or a FIFO.
    Special(SpecialTarget),
}

impl LargeContents {
    /// Opens the temporary file. Where there can be none, opens the file that has the name.
    fn open(
        state: &DestinationState,
        file: &LargeFile,
        (folder, name, naming): (BorrowedFd<'_>, &EntryName, EntryNaming),
        subject: MapSubject<'_>,
        promise: Option<&PartPromise>,
    ) -> Result<Self, String> {
        let existing = || open_existing(state, folder, name, naming);
        let contents = if is_append_only(folder) && !file.resumed {
            try_size(folder, file.size)?;
            let mode = mode_in_place(state, &file.metadata);
            let created = match create_in_place(state, folder, name, mode) {
                Err(Errno::EXIST) => existing(),
                result => result,
            };
            Self::InPlace(created.map_err(|errno| format!("cannot create: {}", errno_text(errno)))?)
        } else {
            match open_part(folder, &subject.names.part) {
                Ok(fd) => Self::Beside(fd),
                Err(PlacingFault::Denied(why)) if !file.resumed => {
                    try_size(folder, file.size)?;
                    Self::InPlace(existing().map_err(|_| why)?)
                }
                Err(fault) => return Err(fault.into_text()),
            }
        };
        contents.size(state, file, folder, subject, promise)?;
        Ok(contents)
    }

    /// Gives the contents their size. A temporary file that is not continued becomes empty first.
    fn size(
        &self,
        state: &DestinationState,
        file: &LargeFile,
        folder: BorrowedFd<'_>,
        subject: MapSubject<'_>,
        promise: Option<&PartPromise>,
    ) -> Result<(), String> {
        let (Self::Beside(fd) | Self::InPlace(fd)) = self else {
            return Ok(());
        };
        if file.resumed {
            let found = find_promise(state, folder, subject).map(|(_, found)| found);
            let Some(promise) = promise.filter(|promise| found.as_ref() == Some(promise)) else {
                return Err("what an earlier run had left of it has changed".to_owned());
            };
            return clear_around(state, fd, &promise.ranges.ranges, file.size);
        }
        if matches!(self, Self::Beside(_)) {
            ftruncate(fd, 0).map_err(errno_text)?;
            let _ = unlinkat(folder, &subject.names.map[..], AtFlags::empty());
        }
        ftruncate(fd, file.size).map_err(|errno| {
            if matches!(self, Self::Beside(_)) {
                let _ = unlinkat(folder, &subject.names.part[..], AtFlags::empty());
            }
            cannot_size(errno)
        })
    }
}

/// Checks that the file system has files of a size, before a file that is written in place loses its contents. A file
/// system without nameless files shows it later.
fn try_size(folder: BorrowedFd<'_>, size: u64) -> Result<(), String> {
    let flags = OFlags::WRONLY | OFlags::TMPFILE | OFlags::CLOEXEC;
    match openat(folder, ".", flags, Mode::RUSR | Mode::WUSR) {
        Ok(nameless) => ftruncate(nameless, size).map_err(cannot_size),
        Err(_) => Ok(()),
    }
}

fn cannot_size(errno: Errno) -> String {
    format!("cannot make a file of this size: {}", errno_text(errno))
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
    pub(crate) fn open(
        state: &DestinationState,
        folders: &FolderTable,
        file: &LargeFile,
        promise: impl FnOnce(&RelativePath) -> Option<PartPromise>,
    ) -> Result<Self, String> {
        let Some((above, name)) = file.path.split_last() else {
            return Err("the place itself is a directory".to_owned());
        };
        let placed = state
            .placement
            .folder(&above)
            .map_err(PlaceFault::into_text)?;
        let name = state.placement.entry_name(&placed.entries, name)?;
        let naming = state.placement.naming(&placed);
        let local = placed.path.join(&name);
        let folder = folders.open(state, &placed.path, None, &[])?;
        if let Some(why) = state.written.refusal(folder.target(), name.as_bytes()) {
            return Err(why.to_owned());
        }
        let names = PartNames::of(&name, &state.owner);
        let subject = MapSubject {
            owner: &state.owner,
            names: &names,
            version: version_of(file),
        };
        let promise = promise(&local);
        let place = (folder.fd.as_fd(), &name, naming);
        let special = SpecialTarget::find(state, folder.target(), &name, naming)?;
        let contents = if let Some(special) = special {
            LargeContents::Special(special)
        } else {
            check_room(state, place.0, file, &names)?;
            LargeContents::open(state, file, place, subject, promise.as_ref())?
        };
        let progress = PartProgress {
            digested: (!file.resumed).then_some(0),
            digest: digest_of(state),
            ..PartProgress::default()
        };
        Ok(Self {
            file: file.clone(),
            replaced: replaced_file(state, place.0, &name, folder.is_of_run),
            local,
            name,
            naming,
            names,
            owner: state.owner.clone(),
            folder,
            contents,
            map: Mutex::default(),
            progress: Mutex::new(progress),
        })
    }

    /// Writes a piece of a part.
    /// Not cancel safe: some of the bytes may be written.
    pub(super) async fn write_at(
        &self,
        state: &DestinationState,
        mut bytes: &[u8],
        mut offset: u64,
    ) -> Result<(), String> {
        let fd = match &self.contents {
            LargeContents::Beside(fd) | LargeContents::InPlace(fd) => fd,
            LargeContents::Special(special) => {
                special.write(bytes, offset).await?;
                return self.digest(state, bytes, offset);
            }
        };
        self.digest(state, bytes, offset)?;
        while !bytes.is_empty() {
            match retry_on_intr(|| pwrite(fd, bytes, offset)) {
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

    /// Writes zeros for a hole, if the target is not a file.
    /// Not cancel safe: some of the zeros may be written.
    pub(super) async fn write_hole(&self, start: u64, end: u64) -> Result<(), String> {
        match &self.contents {
            LargeContents::Special(special) => special.write_hole(start, end).await,
            LargeContents::Beside(_) | LargeContents::InPlace(_) => Ok(()),
        }
    }

    /// Notes in the map that a range is written. A map that cannot be written costs a later run some time only.
    pub(super) fn map_range(&self, range: ByteRange) {
        let is_complete = lock(&self.progress).is_complete;
        let is_kept = self.is_beside() && self.file.size >= MIN_KEPT_BYTES;
        if is_complete || !is_kept {
            return;
        }
        let mut map = lock(&self.map);
        if map.is_none() {
            let subject = MapSubject {
                owner: &self.owner,
                names: &self.names,
                version: version_of(&self.file),
            };
            *map = open_map(self.folder.fd.as_fd(), subject).ok();
        }
        if let Some(map) = &*map {
            let _ = map.append(range);
        }
    }

    /// Counts the bytes of a part that is written. Returns true if the file is complete with them.
    pub(super) fn add_written(&self, bytes: u64) -> bool {
        let mut progress = lock(&self.progress);
        progress.bytes = progress.bytes.saturating_add(bytes);
        progress.completes()
    }

    /// Notes how many bytes all parts have. Returns true if the file is complete.
    pub(super) fn expect(&self, bytes: u64) -> bool {
        let mut progress = lock(&self.progress);
        progress.expected = Some(bytes);
        progress.completes()
    }

    /// Gives a file that is complete its metadata and its name.
    /// Not cancel safe: the file may have its name or not.
    pub(super) async fn commit(&self, state: &DestinationState) -> Result<(), String> {
        let digest = self.final_digest(state)?;
        match &self.contents {
            LargeContents::Special(special) => {
                special.finish(self.file.size, state.options.fsync).await?;
            }
            LargeContents::InPlace(fd) => {
                self.finish_contents(state, fd)?;
            }
            LargeContents::Beside(fd) => {
                let stat = self.finish_contents(state, fd)?;
                self.name(state, &stat)?;
            }
        }
        add(&state.counts.files, 1);
        if let Some(digest) = digest {
            state.add_digest(digest, &self.file.path);
        }
        Ok(())
    }

    /// Gives the contents their metadata, and closes them. Returns what they were before.
    fn finish_contents(&self, state: &DestinationState, fd: &OwnedFd) -> Result<Stat, String> {
        let stat = fstat(fd).map_err(errno_text)?;
        let note = |text| state.note(text);
        let metadata = &self.file.metadata;
        let plan = if self.is_beside() {
            let fresh = FreshEntry::of(&stat, state.keeper.inherited_acl(self.folder.fd.as_fd()));
            let replaced = self.replaced.as_ref();
            let plan = state.keeper.plan(metadata, &fresh, replaced, &note);
            plan.after_private_creation()
        } else {
            plan_in_place(state, &stat, metadata)
        };
        let handle = EntryHandle::Open(fd.as_fd());
        state.keeper.apply(handle, plan, metadata, &note);
        if state.options.fsync {
            sync(fd.as_fd()).map_err(|error| format!("cannot fsync: {}", errno_text(error)))?;
        }
        // Each close(2) reports what NFS could not write. The file stays open in the lanes that have written it.
        let duplicate = fd.try_clone().map_err(errno_text)?;
        close(duplicate).map_err(|error| format!("cannot write: {}", errno_text(error)))?;
        Ok(stat)
    }

    /// Gives the temporary file, which `stat` is of, the name of the file.
    fn name(&self, state: &DestinationState, stat: &Stat) -> Result<(), String> {
        let folder = self.folder.fd.as_fd();
        let named = statat(folder, &self.names.part[..], AtFlags::SYMLINK_NOFOLLOW);
        let named = named.map_err(errno_text)?;
        if (named.st_dev, named.st_ino) != (stat.st_dev, stat.st_ino) {
            return Err("another process has replaced its temporary file".to_owned());
        }
        let renamed = rename_or_match(
            state,
            self.folder.target(),
            &self.names.part,
            &self.name,
            &self.local,
        );
        match renamed {
            Ok(()) => {}
            Err(PlacingFault::Denied(why)) => {
                let (from, target) = (&self.names.part, (&self.name, self.naming));
                let copied = copy_into_place(state, folder, from, target, &self.file.metadata);
                copied.map_err(|other| other.unwrap_or(why))?;
                unlinkat(folder, &self.names.part[..], AtFlags::empty()).map_err(|errno| {
                    let why = errno_text(errno);
                    format!("was copied, but its temporary file cannot be removed: {why}")
                })?;
            }
            Err(fault) => return Err(fault.into_text()),
        }
        if self.file.size >= MIN_KEPT_BYTES {
            let _ = unlinkat(folder, &self.names.map[..], AtFlags::empty());
        }
        Ok(())
    }

    /// Closes a file that does not get its name. Its temporary file and the map stay only if a later run can continue
    /// them.
    pub(super) fn give_up(&self, part: PartUse) {
        let fd = match &self.contents {
            LargeContents::Special(special) => return special.give_up(),
            LargeContents::InPlace(_) => return,
            LargeContents::Beside(fd) => fd,
        };
        if part == PartUse::Continuable && self.has_map() {
            return;
        }
        let folder = self.folder.fd.as_fd();
        // Another process may have replaced it.
        if fstat(fd).is_ok_and(|stat| has_name(folder, &self.names.part, &stat)) {
            for name in [&self.names.part, &self.names.map] {
                let _ = unlinkat(folder, &name[..], AtFlags::empty());
            }
        }
    }

    fn has_map(&self) -> bool {
        self.file.resumed || lock(&self.map).is_some()
    }

    /// Returns what a failure leaves of the file, in words that follow the reason: what is under its final name now, or
    /// what a later run can continue. None if neither has changed.
    pub(super) fn left(&self, part: PartUse) -> Option<String> {
        match self.contents {
            LargeContents::InPlace(_) => {
                Some(left_in_place(lock(&self.progress).bytes, self.file.size))
            }
            LargeContents::Beside(_) if part == PartUse::Continuable && self.has_map() => {
                let name = String::from_utf8_lossy(&self.names.part);
                Some(format!(
                    "; what has arrived is kept in {name}, and --resume continues it"
                ))
            }
            _ => None,
        }
    }

    fn is_beside(&self) -> bool {
        matches!(self.contents, LargeContents::Beside(_))
    }

    /// Adds a piece to the digest, with the hole in front of it.
    fn digest(&self, state: &DestinationState, bytes: &[u8], offset: u64) -> Result<(), String> {
        let mut progress = lock(&self.progress);
        let PartProgress {
            digest: Some(digest),
            digested,
            ..
        } = &mut *progress
        else {
            return Ok(());
        };
        match *digested {
            Some(next) if next <= offset => {
                digest.update_zeros(offset - next, || state.check_running())?;
                digest.update(bytes);
                *digested = Some(offset + bytes.len() as u64);
            }
            _ => *digested = None,
        }
        Ok(())
    }

    /// Returns the digest of the file. If its parts did not come in order, or an earlier run has written some, the file
    /// is read again.
    fn final_digest(&self, state: &DestinationState) -> Result<Option<String>, String> {
        let mut progress = lock(&self.progress);
        let Some(mut digest) = progress.digest.take() else {
            return Ok(None);
        };
        if let Some(next) = progress.digested {
            let hole = self.file.size.saturating_sub(next);
            digest.update_zeros(hole, || state.check_running())?;
            return Ok(Some(digest.finish()));
        }
        let Some(mut digest) = digest_of(state) else {
            return Ok(None);
        };
        if let LargeContents::Beside(fd) = &self.contents {
            read_range(state, fd, 0, self.file.size, |bytes| {
                digest.update(bytes);
                Ok(())
            })?;
        } else {
            return Err("its parts did not come in their order".to_owned());
        }
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

/// Checks, for a server, that a file can have its size and that the file system has room for its contents: one client
/// must not take the room of the others for a file that fails in the end. Holes take no room, and what an earlier run
/// has left under the temporary name makes some. Makes nothing.
fn check_room(
    state: &DestinationState,
    folder: BorrowedFd<'_>,
    file: &LargeFile,
    names: &PartNames,
) -> Result<(), String> {
    if !state.keeper.is_served() {
        return Ok(());
    }
    if file.size > MAX_FILE_BYTES {
        return Err("is larger than any file can be".to_owned());
    }
    // A file system that does not tell is written to until it is full.
    let Ok(system) = fstatvfs(folder) else {
        return Ok(());
    };
    let free = system.f_bavail.saturating_mul(system.f_frsize);
    let left = statat(folder, &names.part[..], AtFlags::SYMLINK_NOFOLLOW);
    let left = left.map_or(0, |left| content_size(&left));
    // What an earlier run has left is removed, or written over as far as it differs from the source's.
    let room = free.saturating_add(left);
    if file.content_bytes > room {
        let needed = file.content_bytes;
        return Err(format!(
            "has {needed} bytes, and the file system has room for {room}"
        ));
    }
    Ok(())
}

pub(super) fn version_of(file: &LargeFile) -> SourceVersion {
    SourceVersion {
        size: file.size,
        modified: file.metadata.modified,
        changed: file.changed,
    }
}
