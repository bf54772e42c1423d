//! Writes the small entries of a folder: whole files and what is not a file, first under temporary names.

use std::{
    ffi::CString,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use rustix::{
    fs::{
        AtFlags, FileType, Mode, OFlags, Stat, fstat, mknodat, openat, readlinkat, statat,
        symlinkat, unlinkat,
    },
    io::{Errno, pread, retry_on_intr, write},
};

use super::{
    attributes::{
        EntryHandle, FreshEntry, InheritedAcl, MetadataKeeper, MetadataPlan, PRIVATE_MODE,
        ReplacedFile,
    },
    in_place::{
        PlacingFault, copy_into_place, create_in_place, left_in_place, open_existing, plan_in_place,
    },
    mirror::Deletion,
    placement::{EntryNames, EntryNaming},
    state::{DestinationState, errno_text},
    written::{RenameFault, TargetFolder},
};
use crate::{
    copy::{
        metadata::{EntryKind, Metadata, attributes_at},
        order::FileDigest,
        path::{EntryName, RelativePath},
        temporary_names::random_name,
        written::EntryId,
    },
    fd::{close, sync},
};

/// The folder that a lane writes in.
#[derive(Debug)]
#[allow(
    clippy::struct_excessive_bools,
    reason = "each is a fact about the folder, independent of the others"
)]
pub(super) struct CurrentFolder {
    /// The path at the source.
    pub(super) wire: RelativePath,
    /// The path at the destination.
    pub(super) local: RelativePath,
    /// The names of the entries at the destination.
    pub(super) entries: EntryNames,
    /// The folder.
    pub(super) fd: OwnedFd,
    /// The device and the inode of the folder.
    pub(super) id: EntryId,
    /// True if this copy or an earlier one of the run has made the folder.
    pub(super) is_of_run: bool,
    /// True if each entry is claimed on its own, because the folder is not the copy's.
    pub(super) has_targets: bool,
    pub(super) acl: Option<InheritedAcl>,
    /// What the system gives to new entries, once an entry was made.
    pub(super) fresh: Option<FreshEntry>,
    pub(super) naming: EntryNaming,
    /// True if entries can be made but neither renamed nor removed, so that they get their names at once.
    pub(super) is_append_only: bool,
}

/// A file that a lane writes.
#[derive(Debug)]
pub(super) struct NewFile {
    fd: OwnedFd,
    plan: MetadataPlan,
    /// True if the file has its final name already.
    is_in_place: bool,
}

impl NewFile {
    /// Writes `bytes` at the end.
    pub(super) fn write(&self, bytes: &[u8]) -> Result<(), String> {
        write_all(&self.fd, bytes)
    }

    /// Returns what a failure leaves of the file under its final name, in words that follow the reason; none if that
    /// has not changed.
    pub(super) fn left(&self, size: u64) -> Option<String> {
        let written = || fstat(&self.fd).map_or(0, |stat| u64::try_from(stat.st_size).unwrap_or(0));
        self.is_in_place.then(|| left_in_place(written(), size))
    }
}

/// Writes all `bytes` at the position of a file.
pub(super) fn write_all(fd: &OwnedFd, mut bytes: &[u8]) -> Result<(), String> {
    while !bytes.is_empty() {
        match retry_on_intr(|| write(fd, bytes)) {
            Ok(0) => return Err("cannot write: the system takes no more bytes".to_owned()),
            Ok(count) => bytes = &bytes[count..],
            Err(errno) => return Err(format!("cannot write: {}", errno_text(errno))),
        }
    }
    Ok(())
}

impl CurrentFolder {
    /// Creates a file under a temporary name. Where that is not possible, opens the file that has the name, to write it
    /// in place.
    pub(super) fn begin_file(
        &mut self,
        state: &DestinationState,
        temporary: &mut TemporaryName,
        name: &EntryName,
        metadata: &Metadata,
    ) -> Result<NewFile, String> {
        let errno = match self.create(state, temporary, name, metadata) {
            Ok(file) => return Ok(file),
            Err(errno) => errno,
        };
        let fault = match PlacingFault::new("cannot create", errno) {
            PlacingFault::Other(why) if !self.is_append_only => return Err(why),
            fault => fault.into_text(),
        };
        let existing = open_existing(state, self.fd.as_fd(), name, self.naming);
        let fd = existing.map_err(|_| fault)?;
        let stat = fstat(&fd).map_err(errno_text)?;
        let plan = plan_in_place(state, &stat, metadata);
        Ok(NewFile {
            fd,
            plan,
            is_in_place: true,
        })
    }

    /// Creates a file under a temporary name, or under its own where it could not be renamed.
    fn create(
        &mut self,
        state: &DestinationState,
        temporary: &mut TemporaryName,
        name: &EntryName,
        metadata: &Metadata,
    ) -> rustix::io::Result<NewFile> {
        let replaced = replaced_file(state, self.fd.as_fd(), name, self.is_of_run);
        let note = |text| state.note(text);
        let fd = self.fd.as_fd();
        let is_in_place = self.is_append_only;
        let mut create = |mode| {
            if is_in_place {
                create_in_place(state, fd, name, mode)
            } else {
                temporary.make(|name| create_file(fd, name, mode))
            }
        };
        let new = |fd, plan| NewFile {
            fd,
            plan,
            is_in_place,
        };
        if !state.keeper.keeps_all() && replaced.is_none() {
            let plan = MetadataKeeper::plain(metadata);
            return Ok(new(create(plan.create_mode)?, plan));
        }
        let plan = |fresh: FreshEntry| {
            let replaced = replaced.as_ref();
            state.keeper.plan(metadata, &fresh, replaced, &note)
        };
        if let Some(fresh) = self.fresh {
            let plan = plan(fresh);
            return Ok(new(create(plan.create_mode)?, plan));
        }
        let fd = create(PRIVATE_MODE)?;
        let stat = fstat(&fd)?;
        let fresh = *self.fresh.insert(FreshEntry::of(&stat, self.acl));
        let plan = plan(fresh).after_private_creation();
        Ok(new(fd, plan))
    }

    /// Gives a file that is written its metadata and its name.
    pub(super) fn finish_file(
        &mut self,
        state: &DestinationState,
        temporary: &mut TemporaryName,
        file: NewFile,
        name: &EntryName,
        metadata: &Metadata,
    ) -> Result<(), String> {
        let note = |text| state.note(text);
        let handle = EntryHandle::Open(file.fd.as_fd());
        state.keeper.apply(handle, file.plan, metadata, &note);
        if state.options.fsync {
            sync(file.fd.as_fd())
                .map_err(|error| format!("cannot fsync: {}", errno_text(error)))?;
        }
        close(file.fd).map_err(|error| format!("cannot write: {}", errno_text(error)))?;
        if file.is_in_place {
            return Ok(());
        }
        let why = match self.rename(state, temporary, name) {
            Err(PlacingFault::Denied(why)) => why,
            result => return result.map_err(PlacingFault::into_text),
        };
        let target = (name, self.naming);
        let from = temporary.as_bytes();
        let copied = copy_into_place(state, self.fd.as_fd(), from, target, metadata);
        copied.map_err(|other| other.unwrap_or(why))?;
        if let Some(left) = self.remove_temporary(temporary) {
            state.fail(&self.local, left);
        }
        Ok(())
    }

    /// Removes the temporary file of a lane. If that is not possible, returns what to tell the user, and gives later
    /// entries their names at once.
    pub(super) fn remove_temporary(&mut self, temporary: &mut TemporaryName) -> Option<String> {
        if temporary.remove(self.fd.as_fd()) {
            return None;
        }
        self.is_append_only = true;
        let name = String::from_utf8_lossy(temporary.as_bytes());
        Some(format!(
            "has the temporary file {name} left, which cannot be removed"
        ))
    }

    /// Makes an entry that has no contents.
    pub(super) fn make_special(
        &self,
        state: &DestinationState,
        temporary: &mut TemporaryName,
        name: &EntryName,
        special: &SpecialEntry,
    ) -> Result<(), String> {
        let keeps_all = state.keeper.keeps_all();
        let mode = if keeps_all {
            PRIVATE_MODE
        } else {
            special.metadata.mode & 0o777
        };
        let fd = self.fd.as_fd();
        let result = if self.is_append_only {
            special.make(fd, name.as_bytes(), mode)
        } else {
            temporary.make(|name| special.make(fd, name, mode))
        };
        result.map_err(|errno| format!("cannot make: {}", errno_text(errno)))?;
        if keeps_all {
            let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let entry_name = if self.is_append_only {
                name.as_bytes()
            } else {
                temporary.as_bytes()
            };
            let entry = openat(fd, entry_name, flags, Mode::empty()).map_err(errno_text)?;
            special.finish(state, &entry, self.acl)?;
        }
        if self.is_append_only {
            return Ok(());
        }
        let renamed = self.rename(state, temporary, name);
        renamed.map_err(PlacingFault::into_text)
    }

    /// Returns the folder as the place of entries.
    pub(super) fn target(&self) -> TargetFolder<'_> {
        TargetFolder {
            fd: self.fd.as_fd(),
            id: self.id,
            is_of_run: self.is_of_run,
        }
    }

    /// Gives the entry that has the temporary name its own name.
    fn rename(
        &self,
        state: &DestinationState,
        temporary: &mut TemporaryName,
        name: &EntryName,
    ) -> Result<(), PlacingFault> {
        let local = self.local.join(name);
        rename_or_match(state, self.target(), temporary.as_bytes(), name, &local)?;
        temporary.note_renamed();
        Ok(())
    }
}

/// An entry that is not a file or a directory.
#[derive(Debug)]
pub(super) struct SpecialEntry {
    pub(super) kind: EntryKind,
    /// The target of a symbolic link.
    pub(super) target: Vec<u8>,
    pub(super) metadata: Metadata,
}

impl SpecialEntry {
    fn make(&self, folder: BorrowedFd<'_>, name: &[u8], mode: u32) -> rustix::io::Result<()> {
        let (kind, device) = match self.kind {
            EntryKind::Symlink => return symlinkat(&self.target[..], folder, name),
            EntryKind::Fifo => (FileType::Fifo, 0),
            EntryKind::Socket => (FileType::Socket, 0),
            EntryKind::CharacterDevice { device } => (FileType::CharacterDevice, device),
            EntryKind::BlockDevice { device } => (FileType::BlockDevice, device),
            EntryKind::File | EntryKind::Directory => return Err(Errno::INVAL),
        };
        mknodat(folder, name, kind, Mode::from_raw_mode(mode), device)
    }

    /// Gives the new entry its metadata. Another process may have replaced it meanwhile, so its type is checked.
    fn finish(
        &self,
        state: &DestinationState,
        entry: &OwnedFd,
        acl: Option<InheritedAcl>,
    ) -> Result<(), String> {
        let stat = fstat(entry).map_err(errno_text)?;
        if EntryKind::of(&stat) != Some(self.kind) {
            return Err("another process has replaced it".to_owned());
        }
        let handle = match self.kind {
            EntryKind::Symlink => EntryHandle::Link(entry.as_fd()),
            _ => EntryHandle::Place(entry.as_fd()),
        };
        let note = |text| state.note(text);
        let fresh = FreshEntry::of(&stat, acl);
        let plan = state.keeper.plan(&self.metadata, &fresh, None, &note);
        let plan = plan.after_private_creation();
        state.keeper.apply(handle, plan, &self.metadata, &note);
        Ok(())
    }
}

/// Returns the file that a new one replaces, if the new one takes its mode, owner and attributes.
pub(super) fn replaced_file(
    state: &DestinationState,
    folder: BorrowedFd<'_>,
    name: &EntryName,
    is_of_run: bool,
) -> Option<ReplacedFile> {
    if state.keeper.keeps_all() || is_of_run {
        return None;
    }
    let stat = statat(folder, name.as_bytes(), AtFlags::SYMLINK_NOFOLLOW).ok()?;
    let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
    if !is_file {
        return None;
    }
    let mut attributes = CString::new(name.as_bytes())
        .ok()
        .and_then(|name| attributes_at(folder, &name).ok())
        .unwrap_or_default();
    attributes.retain(|(name, _)| state.keeper.keeps_of_replaced(name));
    Some(ReplacedFile::new(stat, attributes))
}

/// Gives the entry `from` the name `name` in its folder. What has the name is replaced, unless the run has written it.
/// A directory of that name is removed, if the user has asked to mirror.
///
/// No entry gets its name after the work has ended early: nothing that may block is between the look at that and
/// rename(2). If the work ends while the kernel renames, the two happen at the same time.
pub(super) fn rename_over(
    state: &DestinationState,
    folder: TargetFolder<'_>,
    from: &[u8],
    name: &EntryName,
    local: &RelativePath,
) -> Result<(), PlacingFault> {
    let rename = || state.written.rename(folder, from, name.as_bytes());
    let cannot = |fault| match fault {
        RenameFault::Taken(why) => PlacingFault::Other(why.to_owned()),
        RenameFault::Exists => PlacingFault::Exists,
        RenameFault::System(errno) => PlacingFault::new("cannot rename", errno),
    };
    state.check_running().map_err(PlacingFault::Other)?;
    match rename() {
        Ok(()) => Ok(()),
        Err(RenameFault::System(Errno::ISDIR)) => {
            make_room(state, folder.fd, name, local).map_err(PlacingFault::Other)?;
            state.check_running().map_err(PlacingFault::Other)?;
            rename().map_err(cannot)
        }
        Err(fault) => Err(cannot(fault)),
    }
}

/// Gives the entry `from` the name `name` in its folder, as [`rename_over`] does. If the source may replace nothing, and
/// what has the name is the same, removes `from` instead: a copy that was cut before the source learned that the entry
/// has its name sends it again.
pub(super) fn rename_or_match(
    state: &DestinationState,
    folder: TargetFolder<'_>,
    from: &[u8],
    name: &EntryName,
    local: &RelativePath,
) -> Result<(), PlacingFault> {
    let fault = match rename_over(state, folder, from, name, local) {
        Err(fault @ PlacingFault::Exists) => fault,
        result => return result,
    };
    let found = match same_entry(state, folder.fd, from, name.as_bytes()) {
        Ok(Some(found)) => found,
        Ok(None) => return Err(fault),
        Err(why) => return Err(PlacingFault::Other(why)),
    };
    unlinkat(folder.fd, from, AtFlags::empty()).map_err(|errno| {
        let why = errno_text(errno);
        PlacingFault::Other(format!(
            "exists already, but its temporary file cannot be removed: {why}"
        ))
    })?;
    state.written.note(&found);
    Ok(())
}

/// Compares the new entry `from` with the entry `name` of the folder. Returns the latter if both are files with the same
/// contents or symbolic links with the same target; with `-a`, they have the same mode and time of modification too.
/// Fails with the reason for the user if a file cannot be read, or the copy is ended.
fn same_entry(
    state: &DestinationState,
    folder: BorrowedFd<'_>,
    from: &[u8],
    name: &[u8],
) -> Result<Option<Stat>, String> {
    let stat = |name: &[u8]| statat(folder, name, AtFlags::SYMLINK_NOFOLLOW).map_err(errno_text);
    let (new, found) = (stat(from)?, stat(name)?);
    let kind = EntryKind::of(&found);
    let metadata = |stat: &Stat| (stat.st_mode, stat.st_mtime, stat.st_mtime_nsec);
    let is_like = EntryKind::of(&new) == kind
        && new.st_size == found.st_size
        && (!state.keeper.keeps_all() || metadata(&new) == metadata(&found));
    let is_same = is_like
        && match kind {
            Some(EntryKind::File) => same_contents(state, folder, from, name)?,
            Some(EntryKind::Symlink) => {
                let target = |name: &[u8]| readlinkat(folder, name, Vec::new());
                target(from).map_err(errno_text)? == target(name).map_err(errno_text)?
            }
            _ => false,
        };
    Ok(is_same.then_some(found))
}

/// Returns true if two files of one size in a folder have the same contents.
fn same_contents(
    state: &DestinationState,
    folder: BorrowedFd<'_>,
    one: &[u8],
    other: &[u8],
) -> Result<bool, String> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let open = |name: &[u8]| openat(folder, name, flags, Mode::empty()).map_err(errno_text);
    let (one, other) = (open(one)?, open(other)?);
    let mut buffers = [vec![0; COMPARED_BYTES], vec![0; COMPARED_BYTES]];
    let mut offset = 0;
    loop {
        state.check_running()?;
        let [own, there] = &mut buffers;
        let count = match retry_on_intr(|| pread(&one, &mut own[..], offset)) {
            Ok(0) => return Ok(true),
            Ok(count) => count,
            Err(errno) => {
                return Err(format!(
                    "cannot read it again: {}",
                    errno_text::<Errno>(errno)
                ));
            }
        };
        let there = &mut there[..count];
        if !read_at(&other, there, offset) || own[..count] != *there {
            return Ok(false);
        }
        offset += count as u64;
    }
}

/// The bytes of two files that are compared at a time.
const COMPARED_BYTES: usize = 256 << 10;

/// Fills a buffer from an offset of a file. Returns false if that is not possible.
fn read_at(fd: &OwnedFd, mut buffer: &mut [u8], mut offset: u64) -> bool {
    while !buffer.is_empty() {
        match retry_on_intr(|| pread(fd, &mut *buffer, offset)) {
            Ok(0) | Err(_) => return false,
            Ok(count) => {
                buffer = &mut buffer[count..];
                offset += count as u64;
            }
        }
    }
    true
}

/// Removes the directory `name`, which is in the way of an entry, if the user has asked to mirror.
/// Fails with the reason for the user if the directory stays.
pub(super) fn make_room(
    state: &DestinationState,
    folder: BorrowedFd<'_>,
    name: &EntryName,
    local: &RelativePath,
) -> Result<(), String> {
    if !state.may_replace(local) {
        return Err("cannot replace a directory".to_owned());
    }
    Deletion::new(state).make_room(folder, name.as_bytes(), local)
}

/// Creates a file that does not exist.
pub(super) fn create_file(
    folder: BorrowedFd<'_>,
    name: &[u8],
    mode: u32,
) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    retry_on_intr(|| openat(folder, name, flags, Mode::from_raw_mode(mode)))
}

/// Returns the digest to compute while a file is written.
pub(super) fn digest_of(state: &DestinationState) -> Option<FileDigest> {
    state.options.digest.map(FileDigest::new)
}

/// How often another random name is chosen, if one is taken.
const NAME_TRIES: usize = 8;

/// The name under which a lane writes an entry. The name is free again as soon as the entry has its own.
#[derive(Debug)]
pub(super) struct TemporaryName {
    name: Vec<u8>,
    is_used: bool,
}

impl TemporaryName {
    pub(super) fn random() -> Self {
        Self {
            name: random_name(),
            is_used: false,
        }
    }

    pub(super) fn as_bytes(&self) -> &[u8] {
        &self.name
    }

    /// Calls `make` with the name, and with other names while they are taken.
    pub(super) fn make<T>(
        &mut self,
        mut make: impl FnMut(&[u8]) -> rustix::io::Result<T>,
    ) -> rustix::io::Result<T> {
        for _ in 0..NAME_TRIES {
            match make(&self.name) {
                Err(Errno::EXIST) => *self = Self::random(),
                Err(errno) => return Err(errno),
                Ok(entry) => {
                    self.is_used = true;
                    return Ok(entry);
                }
            }
        }
        Err(Errno::EXIST)
    }

    /// Removes the entry that has the name, if there is one. Returns false if it cannot be removed.
    pub(super) fn remove(&mut self, folder: BorrowedFd<'_>) -> bool {
        let is_used = std::mem::take(&mut self.is_used);
        !is_used || unlinkat(folder, &self.name[..], AtFlags::empty()).is_ok()
    }

    /// Notes that the entry that had the name has its own.
    pub(super) fn note_renamed(&mut self) {
        self.is_used = false;
    }
}
