//! Removes entries, with everything in them. Every removal is relative to an open directory and follows no link.
//!
//! A dry run takes the same way and makes the same decisions. It only leaves out the system calls that change
//! something.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::{
    fs::{AtFlags, Dir, FileType, statat, unlinkat},
    io::Errno,
};

use super::{
    beneath::{open_again, open_child},
    folders::{make_writable, set_mode},
};
use crate::copy::{
    destination::{
        fault_text::errno_text,
        state::{DestinationState, add},
    },
    path::{EntryName, RelativePath},
};

/// The deepest directory in a directory that is removed. Each level is an open descriptor.
pub(in crate::copy::destination) const MAX_DEPTH: usize = 256;

/// Removes entries, and reports what it removed when it is dropped.
pub(in crate::copy::destination) struct Deletion<'a> {
    state: &'a DestinationState,
    removed: Vec<Vec<u8>>,
}

/// The reason why an entry stays. If there are several, the last one of this list counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Stay {
    /// The filters leave it, or something in it, out of the copy.
    Protected,
    /// The run has written it, or something in it. The file system takes its name for another one's.
    Written,
    /// The run has removed as many entries as it may.
    Limit,
    /// It cannot be removed, which is reported.
    Failed,
    /// The copy was ended.
    Ended,
}

impl<'a> Deletion<'a> {
    /// Returns a deletion that has removed nothing.
    pub(in crate::copy::destination) fn new(state: &'a DestinationState) -> Self {
        Self {
            state,
            removed: Vec::new(),
        }
    }

    /// Removes the directory `name` of `directory` with everything in it, because another entry takes its place.
    /// `local` is the directory's path.
    ///
    /// # Errors
    ///
    /// Fails with the reason for the user if the directory stays. A part of what is in it may be removed then.
    pub(in crate::copy::destination) fn make_room(
        &mut self,
        directory: BorrowedFd<'_>,
        name: &[u8],
        local: &RelativePath,
    ) -> Result<(), String> {
        self.remove_to_depth(directory, name, local, MAX_DEPTH)
            .map_err(|stay| format!("cannot replace a directory: {}", self.why(stay)))
    }

    /// Removes the entry `name` of `directory`, which is not a directory, because a directory takes its place.
    ///
    /// # Errors
    ///
    /// Fails with the reason for the user if the entry stays.
    pub(super) fn make_room_for_directory(
        &mut self,
        directory: BorrowedFd<'_>,
        name: &[u8],
        local: &RelativePath,
    ) -> Result<(), String> {
        let cannot = |why: &str| format!("a directory cannot replace something else: {why}");
        if self.state.protects(local, false) {
            return Err(cannot(&self.why(Stay::Protected)));
        }
        match self.try_unlink(directory, name, local, AtFlags::empty()) {
            Ok(()) => Ok(()),
            Err(None) => Err(cannot(&self.why(Stay::Limit))),
            Err(Some(errno)) => Err(cannot(&errno_text(errno))),
        }
    }

    /// Removes an entry of the folder `parent`. A failure is reported.
    pub(super) fn remove_or_report(
        &mut self,
        directory: BorrowedFd<'_>,
        name: &[u8],
        parent: &RelativePath,
    ) {
        let Ok(entry) = EntryName::try_from(name.to_vec()) else {
            return;
        };
        // What stays is reported, or is not of this deletion.
        let _ = self.remove_to_depth(directory, name, &parent.join(&entry), MAX_DEPTH);
    }

    fn remove_to_depth(
        &mut self,
        directory: BorrowedFd<'_>,
        name: &[u8],
        local: &RelativePath,
        depth: usize,
    ) -> Result<(), Stay> {
        if self.state.halt.is_cancelled() {
            return Err(Stay::Ended);
        }
        let stat = match statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => stat,
            // Another process has removed it.
            Err(Errno::NOENT) => return Ok(()),
            Err(errno) => return Err(self.fail(local, errno)),
        };
        let is_directory = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
        if self.state.protects(local, is_directory) {
            return Err(Stay::Protected);
        }
        if self.state.written.contains(&stat) {
            return Err(Stay::Written);
        }
        if !is_directory {
            return self.unlink(directory, name, local, AtFlags::empty());
        }
        let Some(depth) = depth.checked_sub(1) else {
            let why = "cannot remove: the directories in it are too deep";
            self.state.fail(local, why);
            return Err(Stay::Failed);
        };
        let child = open_child(directory, name).map_err(|errno| self.fail(local, errno))?;
        let may_change = !self.state.options.dry_run && !self.state.keeper.is_root();
        let mode = may_change.then(|| make_writable(child.as_fd())).flatten();
        let emptied = self.empty(&child, local, depth);
        if emptied == Err(Stay::Limit) {
            self.state.removals.note_left();
        }
        let removed =
            emptied.and_then(|()| self.unlink(directory, name, local, AtFlags::REMOVEDIR));
        if let (Err(_), Some(mode)) = (removed, mode) {
            set_mode(child.as_fd(), mode);
        }
        removed
    }

    /// Removes what is in a directory. An entry that stays does not keep the others.
    fn empty(
        &mut self,
        directory: &OwnedFd,
        local: &RelativePath,
        depth: usize,
    ) -> Result<(), Stay> {
        let names = names_in(directory.as_fd()).map_err(|errno| self.fail(local, errno))?;
        let mut stay = None;
        for name in names {
            let Ok(entry) = EntryName::try_from(name.clone()) else {
                continue;
            };
            let local = local.join(&entry);
            let removed = self.remove_to_depth(directory.as_fd(), &name, &local, depth);
            stay = stay.max(removed.err());
        }
        stay.map_or(Ok(()), Err)
    }

    fn unlink(
        &mut self,
        directory: BorrowedFd<'_>,
        name: &[u8],
        local: &RelativePath,
        flags: AtFlags,
    ) -> Result<(), Stay> {
        let removed = self.try_unlink(directory, name, local, flags);
        removed.map_err(|errno| errno.map_or(Stay::Limit, |errno| self.fail(local, errno)))
    }

    /// Removes an entry that has nothing in it. Fails without an error of the system if the run may remove no more.
    fn try_unlink(
        &mut self,
        directory: BorrowedFd<'_>,
        name: &[u8],
        local: &RelativePath,
        flags: AtFlags,
    ) -> Result<(), Option<Errno>> {
        if !self.state.removals.take() {
            self.state.removals.note_left();
            return Err(None);
        }
        let removed = if self.state.options.dry_run {
            Ok(())
        } else {
            unlinkat(directory, name, flags)
        };
        match removed {
            Ok(()) => self.note_removed(local),
            Err(errno) => {
                self.state.removals.give_back();
                // Another process has removed it.
                if errno != Errno::NOENT {
                    return Err(Some(errno));
                }
            }
        }
        Ok(())
    }

    fn fail(&self, local: &RelativePath, errno: Errno) -> Stay {
        let why = format!("cannot remove: {}", errno_text(errno));
        self.state.fail(local, why);
        Stay::Failed
    }

    fn why(&self, stay: Stay) -> String {
        match stay {
            Stay::Protected => "--exclude protects what is there".to_owned(),
            Stay::Written => "the run has written it, or something in it".to_owned(),
            Stay::Limit => self.state.removals.limit_text(),
            Stay::Failed => "not everything in it could be removed".to_owned(),
            Stay::Ended => "the copy was ended".to_owned(),
        }
    }

    fn note_removed(&mut self, local: &RelativePath) {
        add(&self.state.counts.removed, 1);
        self.removed.push(local.as_bytes().to_vec());
        self.state.report_removed(&mut self.removed, false);
    }
}

impl Drop for Deletion<'_> {
    fn drop(&mut self) {
        self.state.report_removed(&mut self.removed, true);
    }
}

/// Returns the names of the entries of a directory. They are read before any is removed, because a file system may skip
/// entries while others are removed.
pub(super) fn names_in(directory: BorrowedFd<'_>) -> rustix::io::Result<Vec<Vec<u8>>> {
    let mut names = Vec::new();
    for entry in Dir::new(open_again(directory)?)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if name != b"." && name != b".." {
            names.push(name.to_vec());
        }
    }
    Ok(names)
}
