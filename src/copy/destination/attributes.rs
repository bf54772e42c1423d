//! Gives entries their metadata: owner, extended attributes, mode and times.

use std::{ffi::CString, os::fd::BorrowedFd, sync::OnceLock};

use rustix::{
    fs::{
        AtFlags, CWD, FileType, Gid, Mode, Stat, Timestamps, Uid, XattrFlags, chmodat, chownat,
        fchmod, fchown, fremovexattr, fsetxattr, fstat, futimens, getxattr, removexattr, setxattr,
        utimensat,
    },
    io::Errno,
    process::{getegid, geteuid, getgroups},
};

use super::{
    extended_attributes::{
        ACCESS_ACL, AclRights, DEFAULT_ACL, have_differences, is_acl, is_of_replaced,
        remove_other_attributes, set_attributes,
    },
    folders::{OWNER_BITS, proc_path},
    state::errno_text,
    stored_times::{is_access_clamped, is_clamped, may_be_out_of_range, timespec},
};
use crate::{
    copy::{
        metadata::{
            Attribute, Metadata, Timestamp, accessed, attributes_of, attributes_of_place, modified,
        },
        order::KeptRights,
    },
    fd::umask,
};

/// The bits of a mode that are not permissions: set-user-ID, set-group-ID, sticky.
const SPECIAL_BITS: u32 = 0o7000;

/// The set-user-ID bit.
const SET_USER: u32 = 0o4000;

/// The set-group-ID bit.
const SET_GROUP: u32 = 0o2000;

const STICKY: u32 = 0o1000;

/// The bits of a mode that chmod(2) sets.
const MODE_BITS: u32 = 0o7777;

/// The bytes that suffice for most ACLs: 31 entries.
const USUAL_ACL_BYTES: usize = 256;

/// The most bytes of an ACL, as of any attribute of Linux.
const MAX_ACL_BYTES: usize = 64 << 10;

/// The mode of a new entry whose mode, owner or attributes are set after its contents.
pub(super) const PRIVATE_MODE: u32 = 0o600;

/// Gives entries their metadata, as the options and the rights of this process allow.
#[derive(Debug)]
pub(super) struct MetadataKeeper {
    archive: bool,
    /// True if a server writes for its clients, who have not its rights.
    is_served: bool,
    rights: KeptRights,
    umask: u32,
    uid: u32,
    groups: Vec<u32>,
    /// The first time that the file system has replaced by another year's, in words for the user.
    clamped: OnceLock<String>,
}

/// The owner that new entries of a folder get from the system, and what else the folder gives them.
#[derive(Debug, Clone, Copy)]
pub(super) struct FreshEntry {
    uid: u32,
    gid: u32,
    is_directory: bool,
    /// The default ACL of the folder, which new entries inherit.
    acl: Option<InheritedAcl>,
}

/// What the default ACL of a folder gives to new entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct InheritedAcl {
    mode_bits: u32,
}

/// A file whose name a new one takes, and which gives its mode, owner and attributes to the new one.
#[derive(Debug)]
pub(super) struct ReplacedFile {
    stat: Stat,
    attributes: Vec<Attribute>,
}

/// What must be done to a new entry after its contents are written.
#[derive(Debug, Default)]
pub(super) struct MetadataPlan {
    pub(super) create_mode: u32,
    /// The mode to set afterwards, if the entry does not have it from its creation.
    mode: Option<u32>,
    owner: (Option<u32>, Option<u32>),
    times: Option<(Timestamp, Timestamp)>,
    /// The attributes of the file that the entry replaces, in place of those of the source.
    replaced: Option<Vec<Attribute>>,
    /// True if attributes that are not wanted are removed.
    is_exact: bool,
    /// A mode with which the owner may set attributes, if the entry may have another one.
    unlocked_mode: Option<u32>,
}

impl FreshEntry {
    /// Returns what `stat` tells of an entry that was just created in a folder.
    pub(super) fn of(stat: &Stat, acl: Option<InheritedAcl>) -> Self {
        Self {
            uid: stat.st_uid,
            gid: stat.st_gid,
            is_directory: FileType::from_raw_mode(stat.st_mode) == FileType::Directory,
            acl,
        }
    }
}

impl ReplacedFile {
    pub(super) fn new(stat: Stat, attributes: Vec<Attribute>) -> Self {
        Self { stat, attributes }
    }
}

impl MetadataPlan {
    /// Returns the attributes that the entry gets; none if it keeps those that it has from its creation.
    fn attributes<'a>(&'a self, archive: bool, metadata: &'a Metadata) -> Option<&'a [Attribute]> {
        let replaced = self.replaced.as_deref();
        replaced.or(archive.then_some(&metadata.attributes[..]))
    }

    /// Sets mode and owner after the creation, because the entry was created with [`PRIVATE_MODE`].
    pub(super) fn after_private_creation(mut self) -> Self {
        self.mode.get_or_insert(self.create_mode);
        self
    }
}

impl MetadataKeeper {
    /// Returns what `rights` and the rights of this process allow. `is_served` says that a server writes for its clients.
    pub(super) fn of_process(archive: bool, is_served: bool, rights: KeptRights) -> Self {
        let groups = getgroups().unwrap_or_default().into_iter();
        let groups = groups.chain([getegid()]).map(Gid::as_raw).collect();
        Self {
            archive,
            is_served,
            rights,
            umask: umask().as_raw_mode(),
            uid: geteuid().as_raw(),
            groups,
            clamped: OnceLock::new(),
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
        self.rights == KeptRights::All
    }

    /// Returns true for an extended attribute that is kept.
    pub(super) fn keeps(&self, attribute: &[u8]) -> bool {
        self.rights.keep_attribute(attribute)
    }

    /// Returns the note for the user that something of this kind was not kept.
    pub(super) fn not_kept(&self, kind: &str) -> String {
        format!("{kind} were not kept: {}", self.rights.reason())
    }

    /// Returns true if the owner keeps all rights on directories: a server must be able to use them for every client.
    pub(super) fn keeps_directories_usable(&self) -> bool {
        self.rights == KeptRights::Permissions
    }

    /// Returns true if this process may do everything.
    pub(super) fn is_root(&self) -> bool {
        self.uid == 0
    }

    pub(super) fn inherited_acl(&self, folder: BorrowedFd<'_>) -> Option<InheritedAcl> {
        let mut value = [0; USUAL_ACL_BYTES];
        // The folder may be open as a place only.
        let mode_bits = match getxattr(proc_path(folder), DEFAULT_ACL, &mut value) {
            Ok(count) => AclRights::parse(&value[..count]).map(AclRights::inherited_bits),
            Err(Errno::RANGE) => {
                let mut value = vec![0; MAX_ACL_BYTES];
                let count = getxattr(proc_path(folder), DEFAULT_ACL, &mut value).ok()?;
                AclRights::parse(&value[..count]).map(AclRights::inherited_bits)
            }
            Err(_) => return None,
        };
        let mode_bits = mode_bits.unwrap_or(0o777 & !self.umask);
        Some(InheritedAcl { mode_bits })
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
        replaced: Option<&ReplacedFile>,
        note: &dyn Fn(String),
    ) -> MetadataPlan {
        let mut plan = if self.archive {
            let mode = self.kept_mode(metadata, fresh.is_directory, note);
            let owner = self.kept_owner(metadata, fresh, note);
            let mut plan = self.with_owner(mode, owner, fresh, note);
            plan.times = Some((metadata.accessed, metadata.modified));
            plan
        } else if let Some(replaced) = replaced {
            self.as_replaced(replaced, fresh, note)
        } else {
            let own_bits = 0o777 & !self.umask;
            let bits = fresh.acl.map_or(own_bits, |acl| acl.mode_bits);
            self.with_owner(metadata.mode & bits, (fresh.uid, fresh.gid), fresh, note)
        };
        let attributes = plan.attributes(self.archive, metadata);
        let has_attributes = attributes.is_some_and(|attributes| !attributes.is_empty());
        plan.is_exact = fresh.acl.is_some() && attributes.is_some();
        plan.unlocked_mode = plan.is_exact.then_some(PRIVATE_MODE);
        let mode = plan.create_mode;
        let is_late = plan.owner != (None, None)
            || mode & (self.umask | SPECIAL_BITS) != 0
            || has_attributes
            || fresh.acl.is_some();
        if is_late {
            plan.mode = Some(mode);
            plan.create_mode = PRIVATE_MODE;
        }
        plan
    }

    /// Returns the plan for a new file that gets what the file has that it replaces, as far as this process may set it.
    fn as_replaced(
        &self,
        replaced: &ReplacedFile,
        fresh: &FreshEntry,
        note: &dyn Fn(String),
    ) -> MetadataPlan {
        let ReplacedFile { stat, attributes } = replaced;
        let uid = if self.is_root() {
            stat.st_uid
        } else {
            fresh.uid
        };
        let mode = stat.st_mode & 0o777;
        let mut plan = self.with_owner(mode, (uid, stat.st_gid), fresh, note);
        if stat.st_gid != fresh.gid && plan.owner.1.is_none() {
            // Another group has no more rights than all others.
            plan.create_mode &= !0o070 | mode << 3;
        }
        plan.replaced = Some(attributes.clone());
        plan
    }

    /// Returns the plan for an entry that exists, and gets all metadata of the source's and no other attributes.
    /// `found` is what the entry has.
    pub(super) fn plan_for_existing(
        &self,
        metadata: &Metadata,
        found: &Stat,
        note: &dyn Fn(String),
    ) -> MetadataPlan {
        let plan = self.plan(metadata, &FreshEntry::of(found, None), None, note);
        MetadataPlan {
            is_exact: true,
            ..plan.after_private_creation()
        }
    }

    /// Returns the plan for an entry that the destination has already with the contents of the source's. `found` and
    /// `own` are what the entry has. None if nothing is to be changed.
    pub(super) fn plan_for_kept(
        &self,
        metadata: &Metadata,
        found: &Stat,
        own: &[Attribute],
        note: &dyn Fn(String),
    ) -> Option<MetadataPlan> {
        let mut plan = self.plan_for_existing(metadata, found, note);
        let old_mode = found.st_mode & MODE_BITS;
        let has_differences = have_differences(own, &metadata.attributes, self.rights);
        if plan.owner == (None, None) && plan.mode == Some(old_mode) && !has_differences {
            return None;
        }
        plan.times = None;
        plan.unlocked_mode = (has_differences && old_mode & PRIVATE_MODE != PRIVATE_MODE)
            .then_some(old_mode | PRIVATE_MODE);
        Some(plan)
    }

    /// Returns true for an attribute of a file that the file which replaces it gets.
    pub(super) fn keeps_of_replaced(&self, name: &[u8]) -> bool {
        is_of_replaced(name, self.rights_of_replaced())
    }

    /// Returns what is kept of a file that is replaced: this host has given it its ACL.
    fn rights_of_replaced(&self) -> KeptRights {
        match self.rights {
            KeptRights::All => KeptRights::All,
            KeptRights::Owners | KeptRights::Permissions => KeptRights::Owners,
        }
    }

    /// Returns the mode of an entry of the source without the bits that are not kept. The set-group-ID bit of a
    /// directory lends no rights: it decides on the group of new entries, as the side does that decides on owners.
    fn kept_mode(&self, metadata: &Metadata, is_directory: bool, note: &dyn Fn(String)) -> u32 {
        let mut mode = metadata.mode;
        let lent = match self.rights {
            KeptRights::All => return mode,
            KeptRights::Owners if is_directory => SET_USER,
            KeptRights::Owners | KeptRights::Permissions => SET_USER | SET_GROUP,
        };
        for (bit, name) in [
            (SET_USER, "set-user-ID bits"),
            (SET_GROUP, "set-group-ID bits"),
        ] {
            if mode & lent & bit != 0 {
                mode &= !bit;
                note(self.not_kept(name));
            }
        }
        let attributes = &mut metadata.attributes.iter();
        let acl = attributes.find(|(name, _)| name == ACCESS_ACL && !self.keeps(name));
        match acl.and_then(|(_, value)| AclRights::parse(value)) {
            Some(rights) => mode & (!0o070 | rights.group_bits()),
            None => mode,
        }
    }

    /// Returns the owner and the group that an entry of the source gets: what is not kept is as the system gives it.
    fn kept_owner(
        &self,
        metadata: &Metadata,
        fresh: &FreshEntry,
        note: &dyn Fn(String),
    ) -> (u32, u32) {
        if self.rights != KeptRights::Permissions {
            return (metadata.uid, metadata.gid);
        }
        if metadata.uid != fresh.uid {
            note(self.not_kept("owners"));
        }
        if metadata.gid != fresh.gid {
            note(self.not_kept("groups"));
        }
        (fresh.uid, fresh.gid)
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
        if let Some(attributes) = plan.attributes(self.archive, metadata) {
            if !self.apply_attributes(entry, &plan, attributes, note) {
                // The bits of the group are those of the mask of an ACL that the entry has not.
                let acl = attributes.iter().find(|(name, _)| name == ACCESS_ACL);
                let rights = acl.and_then(|(_, value)| AclRights::parse(value));
                let bits = rights.map_or(0, AclRights::group_bits);
                plan.mode = plan.mode.map(|mode| mode & (!0o070 | bits));
            }
        }
        if let Some(mode) = plan.mode {
            if let Err(errno) = entry.change_mode(mode) {
                note(format!("some modes were not kept: {}", errno_text(errno)));
            }
        }
        if let Some(times) = plan.times {
            match entry.change_times(times) {
                Ok(()) => self.note_clamped(entry, times, note),
                Err(errno) => note(format!("some times were not kept: {}", errno_text(errno))),
            }
        }
    }

    /// Reports a time that the file system has replaced by another year's, once for all entries.
    fn note_clamped(
        &self,
        entry: EntryHandle<'_>,
        (atime, mtime): (Timestamp, Timestamp),
        note: &dyn Fn(String),
    ) {
        if !may_be_out_of_range(atime) && !may_be_out_of_range(mtime) {
            return;
        }
        let Ok(stat) = entry.stat() else { return };
        let (modified, accessed) = (modified(&stat), accessed(&stat));
        let clamped = if is_clamped(mtime, modified) {
            Some((mtime, modified))
        } else {
            is_access_clamped(atime, accessed).then_some((atime, accessed))
        };
        if let Some((set, stored)) = clamped {
            let text = self.clamped.get_or_init(|| {
                format!(
                    "some times were not kept: the file system has no such years, {} became {}",
                    set.utc_text(),
                    stored.utc_text()
                )
            });
            note(text.clone());
        }
    }

    /// Gives an entry its attributes. Returns false if its ACL is not kept.
    fn apply_attributes(
        &self,
        entry: EntryHandle<'_>,
        plan: &MetadataPlan,
        attributes: &[Attribute],
        note: &dyn Fn(String),
    ) -> bool {
        let rights = if plan.replaced.is_some() {
            self.rights_of_replaced()
        } else {
            self.rights
        };
        if plan.is_exact {
            remove_other_attributes(entry, attributes, rights, note);
        }
        let has_others = attributes.iter().any(|(name, _)| !is_acl(name));
        if let Some(mode) = plan.unlocked_mode.filter(|_| has_others && !self.is_root()) {
            // The mode is set last. A failure shows when the attributes are set.
            let _ = entry.change_mode(mode);
        }
        set_attributes(entry, attributes, rights, note)
    }

    /// Reports that the directory which a server serves keeps its own metadata, if the source's has others.
    pub(super) fn note_served(stat: &Stat, metadata: &Metadata, note: &dyn Fn(String)) {
        let has_mode = metadata.mode & MODE_BITS == stat.st_mode & MODE_BITS;
        if !has_mode || !metadata.attributes.is_empty() {
            note("the directory that the server serves has kept its own metadata".to_owned());
        }
    }

    /// Gives a folder all its metadata, when everything in it is written. `stat` is what the folder has now.
    pub(super) fn apply_to_folder(
        &self,
        folder: BorrowedFd<'_>,
        stat: &Stat,
        metadata: &Metadata,
        note: &dyn Fn(String),
    ) {
        let mut plan = self.plan_for_existing(metadata, stat, note);
        if self.keeps_directories_usable() {
            let mode = plan.mode.unwrap_or_default();
            if mode & OWNER_BITS != OWNER_BITS {
                note(self.not_kept("modes of directories that their owner cannot use"));
            }
            // With the groups, the server decides on the bit that passes them on.
            plan.mode = Some(mode | OWNER_BITS | stat.st_mode & SET_GROUP);
        }
        let keeps_mode = plan.mode == Some(stat.st_mode & MODE_BITS)
            && plan.owner == (None, None)
            && metadata.attributes.is_empty();
        if keeps_mode {
            plan.mode = None;
        }
        self.apply(EntryHandle::Open(folder), plan, metadata, note);
    }

    /// Returns the bits that a new folder of the copy is made with, if the source's has this mode. The system takes the
    /// bits of the umask or of a default ACL. If all metadata are kept, there are no bits: until the folder has its
    /// owner and its ACL, they could be those of other users.
    pub(super) fn bits_of_new_folder(&self, mode: u32) -> u32 {
        if self.archive {
            return 0;
        }
        // Under a default ACL, cp too takes the bits of the umask from those that let others write.
        mode & (0o777 | STICKY) & !(self.umask & 0o022)
    }

    /// Returns true if the system gives these bits to new folders of a folder.
    pub(super) fn gives_new_folders(&self, folder: BorrowedFd<'_>, bits: u32) -> bool {
        let given = match self.inherited_acl(folder) {
            Some(acl) => acl.mode_bits,
            None => !self.umask,
        };
        given & bits == bits
    }
}

#[derive(Debug, Clone, Copy)]
pub(super) enum EntryHandle<'a> {
    /// A file or directory that is open.
    Open(BorrowedFd<'a>),
    /// An entry that is open as a place only (`O_PATH`), and is not a symbolic link.
    Place(BorrowedFd<'a>),
    /// A symbolic link that is open as a place only. A link has no mode.
    Link(BorrowedFd<'a>),
}

impl EntryHandle<'_> {
    fn change_owner(self, (uid, gid): (Option<u32>, Option<u32>)) -> rustix::io::Result<()> {
        let (uid, gid) = (uid.map(Uid::from_raw), gid.map(Gid::from_raw));
        match self {
            Self::Open(fd) => fchown(fd, uid, gid),
            Self::Place(fd) | Self::Link(fd) => chownat(fd, "", uid, gid, AtFlags::EMPTY_PATH),
        }
    }

    fn change_mode(self, mode: u32) -> rustix::io::Result<()> {
        let mode = Mode::from_raw_mode(mode);
        match self {
            Self::Open(fd) => fchmod(fd, mode),
            Self::Place(fd) => chmodat(CWD, proc_path(fd), mode, AtFlags::empty()),
            Self::Link(_) => Ok(()),
        }
    }

    fn change_times(self, (accessed, modified): (Timestamp, Timestamp)) -> rustix::io::Result<()> {
        let times = Timestamps {
            last_access: timespec(accessed),
            last_modification: timespec(modified),
        };
        match self {
            Self::Open(fd) => futimens(fd, &times),
            Self::Place(fd) | Self::Link(fd) => {
                utimensat(CWD, proc_path(fd), &times, AtFlags::empty())
            }
        }
    }

    fn stat(self) -> rustix::io::Result<Stat> {
        match self {
            Self::Open(fd) | Self::Place(fd) | Self::Link(fd) => fstat(fd),
        }
    }

    pub(super) fn attributes(self) -> rustix::io::Result<Vec<Attribute>> {
        match self {
            Self::Open(fd) => attributes_of(fd),
            Self::Place(fd) | Self::Link(fd) => attributes_of_place(fd),
        }
    }

    pub(super) fn remove_attribute(self, name: &CString) -> rustix::io::Result<()> {
        match self {
            Self::Open(fd) => fremovexattr(fd, name),
            Self::Place(fd) | Self::Link(fd) => removexattr(proc_path(fd), name),
        }
    }

    pub(super) fn set_attribute(self, name: &CString, value: &[u8]) -> rustix::io::Result<()> {
        match self {
            Self::Open(fd) => fsetxattr(fd, name, value, XattrFlags::empty()),
            Self::Place(fd) | Self::Link(fd) => {
                setxattr(proc_path(fd), name, value, XattrFlags::empty())
            }
        }
    }
}
