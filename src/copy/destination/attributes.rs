//! Gives entries their metadata: owner, extended attributes, mode and times.

pub(super) mod entry_handle;
mod extended;

use std::os::fd::BorrowedFd;

use rustix::{
    fs::{Gid, Mode, Stat, fgetxattr_query},
    process::{getegid, geteuid, getgroups},
};

use self::{
    entry_handle::EntryHandle,
    extended::{remove_other_attributes, set_attributes},
};
use super::fault_text::errno_text;
use crate::{
    copy::metadata::{Metadata, Timestamp},
    fd::umask,
};

/// The bits of a mode that are not permissions: set-user-ID, set-group-ID, sticky.
const SPECIAL_BITS: u32 = 0o7000;

/// The set-user-ID bit.
const SET_USER: u32 = 0o4000;

/// The set-group-ID bit.
const SET_GROUP: u32 = 0o2000;

/// The bits of a mode that chmod(2) sets.
const MODE_BITS: u32 = 0o7777;

/// The mode of a new entry whose mode, owner or attributes are set after its contents.
pub(super) const PRIVATE_MODE: u32 = 0o600;

/// Gives entries their metadata, as the options and the rights of this process allow.
#[derive(Debug)]
pub(super) struct MetadataKeeper {
    archive: bool,
    /// True if a server writes for its clients, who have not its rights.
    is_served: bool,
    umask: u32,
    uid: u32,
    groups: Vec<u32>,
}

/// The owner that new entries of a folder get from the system, and what else the folder gives them.
#[derive(Debug, Clone, Copy)]
pub(super) struct FreshEntry {
    uid: u32,
    gid: u32,
    /// True if the folder has a default ACL, which new entries inherit.
    has_acl: bool,
}

/// What must be done to a new entry after its contents are written.
#[derive(Debug, Default)]
pub(super) struct MetadataPlan {
    /// The mode to create the entry with.
    pub(super) create_mode: u32,
    /// The mode to set afterwards, if the entry does not have it from its creation.
    mode: Option<u32>,
    owner: (Option<u32>, Option<u32>),
    times: Option<(Timestamp, Timestamp)>,
    /// True if attributes that the source's entry has not are removed.
    is_exact: bool,
}

impl FreshEntry {
    /// Returns what `stat` tells of an entry that was just created in a folder.
    pub(super) fn of(stat: &Stat, has_acl: bool) -> Self {
        Self {
            uid: stat.st_uid,
            gid: stat.st_gid,
            has_acl,
        }
    }
}

impl MetadataPlan {
    /// Sets mode and owner after the creation, because the entry was created with [`PRIVATE_MODE`].
    pub(super) fn after_private_creation(mut self) -> Self {
        self.mode.get_or_insert(self.create_mode);
        self
    }
}

impl MetadataKeeper {
    /// Returns what the rights of this process allow. For the clients of a server (`is_served`), nothing is kept that
    /// lends the rights of a user or of the system: set-user-ID and set-group-ID bits, devices, and the attributes that
    /// only root can set.
    pub(super) fn of_process(archive: bool, is_served: bool) -> Self {
        let groups = getgroups().unwrap_or_default().into_iter();
        let groups = groups.chain([getegid()]).map(Gid::as_raw).collect();
        Self {
            archive,
            is_served,
            umask: umask().as_raw_mode(),
            uid: geteuid().as_raw(),
            groups,
        }
    }

    /// Returns true if all metadata are kept.
    pub(super) fn keeps_all(&self) -> bool {
        self.archive
    }

    /// Returns true if a server writes for its clients.
    pub(super) fn is_served(&self) -> bool {
        self.is_served
    }

    /// Returns true if device nodes are made.
    pub(super) fn makes_devices(&self) -> bool {
        !self.is_served
    }

    /// Returns true if this process may do everything.
    pub(super) fn is_root(&self) -> bool {
        self.uid == 0
    }

    /// Returns true if the folder gives an ACL to its new entries, and that must be undone.
    pub(super) fn has_default_acl(&self, folder: BorrowedFd<'_>) -> bool {
        self.archive && fgetxattr_query(folder, "system.posix_acl_default").is_ok()
    }

    /// Returns the plan for a new entry that needs nothing but its mode: all metadata of the source are dropped, and no
    /// file is replaced.
    pub(super) fn plain(metadata: &Metadata) -> MetadataPlan {
        MetadataPlan {
            create_mode: metadata.mode & 0o777,
            ..MetadataPlan::default()
        }
    }

    /// Returns the plan for a new entry. `replaced` is the file whose name the entry takes. `note` receives what cannot
    /// be kept.
    pub(super) fn plan(
        &self,
        metadata: &Metadata,
        fresh: &FreshEntry,
        replaced: Option<&Stat>,
        note: &dyn Fn(String),
    ) -> MetadataPlan {
        let mut plan = if self.archive {
            let times = Some((metadata.accessed, metadata.modified));
            let mode = self.kept_mode(metadata.mode, note);
            let mut plan = self.with_owner(mode, (metadata.uid, metadata.gid), fresh, note);
            plan.times = times;
            plan
        } else if let Some(stat) = replaced {
            let mode = stat.st_mode & 0o777;
            if self.is_root() {
                self.with_owner(mode, (stat.st_uid, stat.st_gid), fresh, note)
            } else {
                self.with_owner(mode, (fresh.uid, fresh.gid), fresh, note)
            }
        } else {
            let mode = metadata.mode & 0o777 & !self.umask;
            self.with_owner(mode, (fresh.uid, fresh.gid), fresh, note)
        };
        plan.is_exact = self.archive && fresh.has_acl;
        let mode = plan.create_mode;
        let is_late = plan.owner != (None, None)
            || mode & (self.umask | SPECIAL_BITS) != 0
            || (self.archive && !metadata.attributes.is_empty())
            || fresh.has_acl;
        if is_late {
            plan.mode = Some(mode);
            plan.create_mode = PRIVATE_MODE;
        }
        plan
    }

    /// Returns a mode without the bits that are never kept.
    fn kept_mode(&self, mut mode: u32, note: &dyn Fn(String)) -> u32 {
        let lent = [(SET_USER, "set-user-ID"), (SET_GROUP, "set-group-ID")];
        for (bit, name) in lent {
            if self.is_served && mode & bit != 0 {
                mode &= !bit;
                note(format!("{name} bits were not kept: a server keeps none"));
            }
        }
        mode
    }

    /// Returns a plan for the mode and the owner, as far as this process may set them.
    fn with_owner(
        &self,
        mode: u32,
        owner: (u32, u32),
        fresh: &FreshEntry,
        note: &dyn Fn(String),
    ) -> MetadataPlan {
        let mut plan = MetadataPlan {
            create_mode: mode & MODE_BITS,
            ..MetadataPlan::default()
        };
        if owner.0 != fresh.uid {
            if self.is_root() {
                plan.owner.0 = Some(owner.0);
            } else {
                plan.create_mode &= !SET_USER;
                note("owners were not kept: the destination is not root".to_owned());
            }
        }
        if owner.1 != fresh.gid {
            if self.is_root() || self.groups.contains(&owner.1) {
                plan.owner.1 = Some(owner.1);
            } else {
                plan.create_mode &= !SET_GROUP;
                note("groups were not kept: the destination is not root".to_owned());
            }
        }
        plan
    }

    /// Does what `plan` says to a new entry whose contents are written.
    pub(super) fn apply(
        &self,
        entry: EntryHandle<'_>,
        mut plan: MetadataPlan,
        metadata: &Metadata,
        note: &dyn Fn(String),
    ) {
        if plan.owner != (None, None) {
            if let Err(errno) = entry.change_owner(plan.owner) {
                plan.mode = plan.mode.map(|mode| mode & !(SET_USER | SET_GROUP));
                note(format!("some owners were not kept: {}", errno_text(errno)));
            }
        }
        if self.archive {
            set_attributes(entry, &metadata.attributes, !self.is_served, note);
        }
        if plan.is_exact {
            remove_other_attributes(entry, &metadata.attributes, !self.is_served);
        }
        if let Some(mode) = plan.mode {
            if let Err(errno) = entry.change_mode(mode) {
                note(format!("some modes were not kept: {}", errno_text(errno)));
            }
        }
        if let Some(times) = plan.times {
            if let Err(errno) = entry.change_times(times) {
                note(format!("some times were not kept: {}", errno_text(errno)));
            }
        }
    }

    /// Gives a folder its metadata, when everything in it is written. `stat` is what the folder has now.
    pub(super) fn apply_to_folder(
        &self,
        folder: BorrowedFd<'_>,
        stat: &Stat,
        metadata: &Metadata,
        note: &dyn Fn(String),
    ) {
        let fresh = FreshEntry::of(stat, self.archive);
        let mut plan = self.plan(metadata, &fresh, None, note);
        let mode = plan.mode.unwrap_or(plan.create_mode);
        let keeps_mode = stat.st_mode & MODE_BITS == mode
            && plan.owner == (None, None)
            && metadata.attributes.is_empty();
        plan.mode = (!keeps_mode).then_some(mode);
        self.apply(EntryHandle::Open(folder), plan, metadata, note);
    }

    /// Returns the mode of a folder that was made on the way to another, as mkdir(1) gives it.
    pub(super) fn mode_of_folder(&self) -> Mode {
        Mode::from_raw_mode(0o777 & !self.umask)
    }
}
