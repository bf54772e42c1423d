//! Entries that the destination keeps because it has their contents: with `-a`, they get the metadata that differ.

use std::{
    ffi::CString,
    os::fd::{AsFd, OwnedFd},
};

use rustix::{
    fs::{Mode, OFlags, Stat, fstat, openat},
    io::Errno,
};

use crate::copy::{
    destination::{
        attributes::entry_handle::EntryHandle, fault_text::errno_text, shared::DestinationShared,
    },
    extended_attributes::attributes_at,
    metadata::{EntryKind, Metadata},
    owners::LocalOwners,
    path::{EntryName, RelativePath},
    question::AskedMetadata,
};

/// An entry that the destination keeps.
pub(super) struct KeptEntry<'a> {
    /// The folder of the entry.
    pub(super) directory: &'a OwnedFd,
    /// The local path of the folder.
    pub(super) folder: &'a RelativePath,
    /// The local name.
    pub(super) name: &'a EntryName,
    /// What the entry has.
    pub(super) found: Stat,
}

impl KeptEntry<'_> {
    /// Gives the entry the mode, the owners and the attributes of the source's entry, as far as they differ. What cannot be
    /// kept is reported as for a new entry. Returns true if something was changed, or would be in a dry run.
    pub(super) fn take_over(
        &self,
        shared: &DestinationShared,
        asked: &AskedMetadata,
        owners: &LocalOwners,
    ) -> bool {
        let state = &shared.state;
        let note = |text| state.note(text);
        let own = CString::new(self.name.as_bytes()).map_err(|_| Errno::INVAL);
        let own = own.and_then(|name| attributes_at(self.directory, &name));
        let own = own.unwrap_or_default();
        let metadata = Metadata {
            mode: asked.mode,
            uid: owners.user(asked.uid),
            gid: owners.group(asked.gid),
            attributes: asked.attributes.clone().unwrap_or_else(|| own.clone()),
            ..Metadata::default()
        };
        let plan = state
            .keeper
            .plan_for_kept(&metadata, &self.found, &own, &note);
        let Some(plan) = plan else { return false };
        if state.options.dry_run {
            return true;
        }
        if !shared.may_write(&self.folder.join(self.name)) {
            return false;
        }
        match self.open() {
            Ok(place) => {
                let handle = match EntryKind::of(&self.found) {
                    Some(EntryKind::Symlink) => EntryHandle::Link(place.as_fd()),
                    _ => EntryHandle::Place(place.as_fd()),
                };
                state.keeper.apply(handle, plan, &metadata, &note);
                true
            }
            Err(errno) => {
                let why = errno_text(errno);
                note(format!("metadata of some entries were not kept: {why}"));
                false
            }
        }
    }

    /// Opens the entry as a place only.
    fn open(&self) -> Result<OwnedFd, Errno> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let place = openat(self.directory, self.name.as_bytes(), flags, Mode::empty())?;
        let stat = fstat(&place)?;
        // Another process may have replaced the entry.
        let is_same = (stat.st_dev, stat.st_ino) == (self.found.st_dev, self.found.st_ino);
        is_same.then_some(place).ok_or(Errno::STALE)
    }
}
