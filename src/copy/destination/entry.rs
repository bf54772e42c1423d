//! Writes the small entries of a folder: whole files and what is not a file.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::{
    fs::{
        AtFlags, FileType, Mode, OFlags, Stat, fstat, mknodat, openat, renameat, statat, symlinkat,
    },
    io::{Errno, retry_on_intr, write},
};

use super::{
    attributes::{
        FreshEntry, MetadataKeeper, MetadataPlan, PRIVATE_MODE, entry_handle::EntryHandle,
    },
    fault_text::errno_text,
    placement::EntryNames,
    state::DestinationState,
    temporary_name::TemporaryName,
    tree::deletion::Deletion,
};
use crate::{
    copy::{
        digest::FileDigest,
        metadata::{EntryKind, Metadata},
        path::{EntryName, RelativePath},
    },
    fd::{close, sync},
};

/// The folder that a lane writes in.
#[derive(Debug)]
pub(super) struct CurrentFolder {
    /// The path at the source.
    pub(super) wire: RelativePath,
    /// The path at the destination.
    pub(super) local: RelativePath,
    /// The names of the entries at the destination.
    pub(super) entries: EntryNames,
    /// The folder.
    pub(super) fd: OwnedFd,
    /// True if this run has made the folder.
    pub(super) is_made: bool,
    /// True if each entry is claimed on its own, because the folder is not the copy's.
    pub(super) has_targets: bool,
    /// True if entries inherit an ACL.
    pub(super) has_acl: bool,
    /// What the system gives to new entries, once an entry was made.
    pub(super) fresh: Option<FreshEntry>,
}

/// A file that a lane writes.
#[derive(Debug)]
pub(super) struct NewFile {
    fd: OwnedFd,
    plan: MetadataPlan,
}

impl NewFile {
    /// Writes `bytes` at the end.
    pub(super) fn write(&self, mut bytes: &[u8]) -> Result<(), String> {
        while !bytes.is_empty() {
            match retry_on_intr(|| write(&self.fd, bytes)) {
                Ok(0) => return Err("cannot write: the system takes no more bytes".to_owned()),
                Ok(count) => bytes = &bytes[count..],
                Err(errno) => return Err(format!("cannot write: {}", errno_text(errno))),
            }
        }
        Ok(())
    }
}

impl CurrentFolder {
    /// Creates a file under a temporary name.
    ///
    /// # Errors
    ///
    /// Fails with the reason for the user.
    pub(super) fn begin_file(
        &mut self,
        state: &DestinationState,
        temporary: &mut TemporaryName,
        name: &EntryName,
        metadata: &Metadata,
    ) -> Result<NewFile, String> {
        let replaced = replaced_file(state, self.fd.as_fd(), name, self.is_made);
        let note = |text| state.note(text);
        let fd = self.fd.as_fd();
        let mut create = |mode| {
            let made = temporary.make(|name| create_file(fd, name, mode));
            made.map_err(|errno| format!("cannot create: {}", errno_text(errno)))
        };
        if !state.keeper.keeps_all() && replaced.is_none() {
            let plan = MetadataKeeper::plain(metadata);
            let fd = create(plan.create_mode)?;
            return Ok(NewFile { fd, plan });
        }
        let plan = |fresh: FreshEntry| {
            let replaced = replaced.as_ref();
            state.keeper.plan(metadata, &fresh, replaced, &note)
        };
        if let Some(fresh) = self.fresh {
            let plan = plan(fresh);
            let fd = create(plan.create_mode)?;
            return Ok(NewFile { fd, plan });
        }
        let fd = create(PRIVATE_MODE)?;
        let stat = fstat(&fd).map_err(errno_text)?;
        let fresh = *self.fresh.insert(FreshEntry::of(&stat, self.has_acl));
        let plan = plan(fresh).after_private_creation();
        Ok(NewFile { fd, plan })
    }

    /// Gives a file that is written its metadata and its name.
    ///
    /// # Errors
    ///
    /// Fails with the reason for the user.
    pub(super) fn finish_file(
        &self,
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
        self.rename(state, temporary, name)
    }

    /// Makes an entry that has no contents.
    ///
    /// # Errors
    ///
    /// Fails with the reason for the user.
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
        let result = temporary.make(|name| special.make(fd, name, mode));
        result.map_err(|errno| format!("cannot make: {}", errno_text(errno)))?;
        if keeps_all {
            let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let entry =
                openat(fd, temporary.as_bytes(), flags, Mode::empty()).map_err(errno_text)?;
            special.finish(state, &entry, self.has_acl)?;
        }
        self.rename(state, temporary, name)
    }

    /// Gives the entry that has the temporary name its own name.
    fn rename(
        &self,
        state: &DestinationState,
        temporary: &mut TemporaryName,
        name: &EntryName,
    ) -> Result<(), String> {
        let local = self.local.join(name);
        rename_over(state, self.fd.as_fd(), temporary.as_bytes(), name, &local)?;
        temporary.note_renamed();
        Ok(())
    }
}

/// An entry that is not a file or a directory.
#[derive(Debug)]
pub(super) struct SpecialEntry {
    /// What the entry is.
    pub(super) kind: EntryKind,
    /// The target of a symbolic link.
    pub(super) target: Vec<u8>,
    /// The metadata.
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
        has_acl: bool,
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
        let fresh = FreshEntry::of(&stat, has_acl);
        let plan = state.keeper.plan(&self.metadata, &fresh, None, &note);
        let plan = plan.after_private_creation();
        state.keeper.apply(handle, plan, &self.metadata, &note);
        Ok(())
    }
}

/// Returns the file that a new one replaces, if the new one takes its mode and owner.
pub(super) fn replaced_file(
    state: &DestinationState,
    folder: BorrowedFd<'_>,
    name: &EntryName,
    is_made: bool,
) -> Option<Stat> {
    if state.keeper.keeps_all() || is_made {
        return None;
    }
    let stat = statat(folder, name.as_bytes(), AtFlags::SYMLINK_NOFOLLOW).ok()?;
    let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
    is_file.then_some(stat)
}

/// Gives the entry `from` the name `name` in its folder. A directory of that name is removed, if the user has asked to
/// mirror.
///
/// # Errors
///
/// Fails with the reason for the user.
pub(super) fn rename_over(
    state: &DestinationState,
    folder: BorrowedFd<'_>,
    from: &[u8],
    name: &EntryName,
    local: &RelativePath,
) -> Result<(), String> {
    let rename = || renameat(folder, from, folder, name.as_bytes());
    match rename() {
        Ok(()) => Ok(()),
        Err(Errno::ISDIR) => {
            make_room(state, folder, name, local)?;
            rename().map_err(|errno| format!("cannot rename: {}", errno_text(errno)))
        }
        Err(errno) => Err(format!("cannot rename: {}", errno_text(errno))),
    }
}

/// Removes the directory `name`, which is in the way of an entry, if the user has asked to mirror.
///
/// # Errors
///
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

fn create_file(folder: BorrowedFd<'_>, name: &[u8], mode: u32) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    retry_on_intr(|| openat(folder, name, flags, Mode::from_raw_mode(mode)))
}

/// Returns the digest to compute while a file is written.
pub(super) fn digest_of(state: &DestinationState) -> Option<FileDigest> {
    state.options.digest.map(FileDigest::new)
}
