//! Jobs for the lanes: a folder with some of its entries.

use std::{
    ffi::CStr,
    os::fd::OwnedFd,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use rustix::fs::{FileType, Stat};
use tokio::sync::OwnedSemaphorePermit;

use crate::copy::{
    extended_attributes::Attribute,
    metadata::Metadata,
    path::{EntryName, RelativePath},
    question::AnswerKind,
};

/// The most entries of a job: enough that a job costs little for each entry, few enough that a queue of jobs is small.
pub(crate) const JOB_ENTRIES: usize = 128;

/// The directory that was opened for an operand. Its path and its identity are kept, not its descriptor.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct SourceRoot {
    /// The path that opens the directory.
    pub(crate) open_path: Vec<u8>,
    /// The device and the inode of the directory.
    pub(crate) identity: (u64, u64),
}

/// A directory whose entries are sent.
pub(crate) struct SourceFolder {
    /// The open directory.
    pub(crate) fd: OwnedFd,
    /// The directory that the path `below` starts at.
    pub(crate) root: Arc<SourceRoot>,
    /// The path from the root.
    pub(crate) below: RelativePath,
    /// The path at the destination.
    pub(crate) path: RelativePath,
    /// The path as the user would type it; empty for the working directory.
    pub(crate) shown: Vec<u8>,
    /// The metadata; none if only entries of the folder were named.
    pub(crate) metadata: Option<Metadata>,
    /// The modes of the folder and of the directories above it up to the operand, the nearest first. Empty if only
    /// entries of the folder were named.
    pub(crate) modes: Arc<[u32]>,
    /// True if links among the entries are followed: the user named them, without asking for links.
    pub(crate) follow: bool,
    /// The lane that sends the entries, or [`NO_LANE`].
    lane: AtomicUsize,
    is_counted: AtomicBool,
}

const NO_LANE: usize = usize::MAX;

impl SourceFolder {
    /// Returns the folder that `fd` is open for, at the top of `root`.
    pub(crate) fn top(fd: OwnedFd, root: Arc<SourceRoot>, shown: Vec<u8>) -> Self {
        Self {
            fd,
            root,
            below: RelativePath::default(),
            path: RelativePath::default(),
            shown,
            metadata: None,
            modes: Arc::default(),
            follow: false,
            lane: AtomicUsize::new(NO_LANE),
            is_counted: AtomicBool::new(false),
        }
    }

    /// Returns true at the first call.
    pub(crate) fn claim_count(&self) -> bool {
        !self.is_counted.swap(true, Ordering::Relaxed)
    }

    /// Returns the path of an entry as the user would type it.
    pub(crate) fn shown(&self, name: &[u8]) -> Vec<u8> {
        join_shown(&self.shown, name)
    }

    /// Gives the folder to a lane, unless another one has it. Returns true if `lane` has it now.
    pub(crate) fn claim(&self, lane: usize) -> bool {
        let claimed =
            self.lane
                .compare_exchange(NO_LANE, lane, Ordering::Relaxed, Ordering::Relaxed);
        claimed.is_ok() || claimed == Err(lane)
    }
}

/// Returns the path of `name` in a folder that the user would type as `folder`.
pub(crate) fn join_shown(folder: &[u8], name: &[u8]) -> Vec<u8> {
    let mut path = Vec::with_capacity(folder.len() + 1 + name.len());
    path.extend_from_slice(folder);
    if !folder.is_empty() && !folder.ends_with(b"/") && !name.is_empty() {
        path.push(b'/');
    }
    path.extend_from_slice(name);
    path
}

/// Names of entries, back to back in one allocation.
#[derive(Default)]
pub(crate) struct EntryList {
    /// The names, each with a NUL behind it.
    names: Vec<u8>,
    /// For each entry, the end of its name and its type.
    heads: Vec<(usize, FileType)>,
}

impl EntryList {
    /// Appends an entry.
    pub(crate) fn push(&mut self, name: &CStr, kind: FileType) {
        self.names.extend_from_slice(name.to_bytes_with_nul());
        self.heads.push((self.names.len(), kind));
    }

    /// Returns the number of entries.
    pub(crate) fn len(&self) -> usize {
        self.heads.len()
    }

    /// Returns true if there is no entry.
    pub(crate) fn is_empty(&self) -> bool {
        self.heads.is_empty()
    }

    /// Returns the name and the type of an entry.
    ///
    /// # Panics
    ///
    /// Panics if there is no such entry.
    pub(crate) fn entry(&self, index: usize) -> (&CStr, FileType) {
        let start = index.checked_sub(1).map_or(0, |last| self.heads[last].0);
        let (end, kind) = self.heads[index];
        let name = CStr::from_bytes_with_nul(&self.names[start..end]);
        (name.unwrap_or_default(), kind)
    }

    /// Returns all entries in their order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&CStr, FileType)> {
        (0..self.len()).map(|index| self.entry(index))
    }
}

/// Entries of a folder for a lane.
pub(crate) struct FolderJob {
    /// The folder.
    pub(crate) folder: Arc<SourceFolder>,
    /// The entries. None, if the folder has nothing but directories.
    pub(crate) entries: EntryList,
    /// What stat(2) said of each entry, if the destination is asked for them.
    pub(crate) stats: Vec<Stat>,
    /// The extended attributes of each entry, if the destination is asked with them; none for an entry whose attributes
    /// cannot be read.
    pub(crate) attributes: Vec<Option<Vec<Attribute>>>,
    /// The digest of the target of each symbolic link, if the destination is asked for the entries; none for others.
    pub(crate) targets: Vec<Option<u64>>,
    /// What the destination wants of each entry. Empty if it wants all.
    pub(crate) answers: Vec<AnswerKind>,
    /// Entries that the destination keeps and that are further names of a file: the number of each, and the first name.
    pub(crate) kept_links: Vec<(usize, RelativePath)>,
    /// The permit to ask for the entries. It is dropped when a lane takes the job.
    pub(crate) turn: Option<OwnedSemaphorePermit>,
    /// True if the sizes of the entries were added to what the walk has found.
    pub(crate) is_counted: bool,
}

impl FolderJob {
    /// Returns a job for entries that the destination is not asked for.
    pub(crate) fn new(folder: Arc<SourceFolder>, entries: EntryList) -> Self {
        Self {
            folder,
            entries,
            stats: Vec::new(),
            attributes: Vec::new(),
            targets: Vec::new(),
            answers: Vec::new(),
            kept_links: Vec::new(),
            turn: None,
            is_counted: false,
        }
    }
}

/// Returns a name that a directory has listed as the name of an entry.
pub(crate) fn entry_name(name: &CStr) -> Option<EntryName> {
    EntryName::try_from(name.to_bytes().to_vec()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_come_back_in_their_order() {
        let mut list = EntryList::default();
        list.push(c"first", FileType::RegularFile);
        list.push(c"\xff\n", FileType::Symlink);
        assert_eq!(list.len(), 2);
        assert_eq!(list.entry(1), (c"\xff\n", FileType::Symlink));
        let names: Vec<&CStr> = list.iter().map(|(name, _)| name).collect();
        assert_eq!(names, [c"first", c"\xff\n"]);
    }

    #[test]
    fn shown_paths_are_what_a_user_types() {
        assert_eq!(join_shown(b"", b"a"), b"a");
        assert_eq!(join_shown(b"/", b"a"), b"/a");
        assert_eq!(join_shown(b"dir/", b"a"), b"dir/a");
        assert_eq!(join_shown(b"dir", b"a"), b"dir/a");
        assert_eq!(join_shown(b"dir", b""), b"dir");
    }
}
