//! Removes entries, with everything in them. Every removal is relative to an open directory and follows no link.

use std::os::fd::{AsFd, BorrowedFd};

use rustix::{
    fs::{AtFlags, Dir, unlinkat},
    io::Errno,
};

use super::beneath::{open_again, open_child};
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

impl<'a> Deletion<'a> {
    /// Returns a deletion that has removed nothing.
    pub(in crate::copy::destination) fn new(state: &'a DestinationState) -> Self {
        Self {
            state,
            removed: Vec::new(),
        }
    }

    /// Removes the entry `name` of `directory`, with everything in it. `local` is the entry's path.
    ///
    /// # Errors
    ///
    /// Fails with the reason for the user. A part may be removed then.
    pub(in crate::copy::destination) fn remove(
        &mut self,
        directory: BorrowedFd<'_>,
        name: &[u8],
        local: &RelativePath,
    ) -> Result<(), String> {
        self.remove_to_depth(directory, name, local, MAX_DEPTH)
    }

    /// Removes an entry of the folder `parent`. A failure is reported.
    pub(super) fn remove_or_report(
        &mut self,
        directory: BorrowedFd<'_>,
        name: &[u8],
        parent: &RelativePath,
    ) {
        if self.state.halt.is_cancelled() {
            return;
        }
        let Ok(entry) = EntryName::try_from(name.to_vec()) else {
            return;
        };
        let local = parent.join(&entry);
        if let Err(why) = self.remove(directory, name, &local) {
            self.state.fail(&local, why);
        }
    }

    fn remove_to_depth(
        &mut self,
        directory: BorrowedFd<'_>,
        name: &[u8],
        local: &RelativePath,
        depth: usize,
    ) -> Result<(), String> {
        let cannot = |errno| format!("cannot remove: {}", errno_text::<Errno>(errno));
        if self.state.options.dry_run {
            self.note_removed(local);
            return Ok(());
        }
        match unlinkat(directory, name, AtFlags::empty()) {
            Ok(()) => {
                self.note_removed(local);
                return Ok(());
            }
            // Some file systems say EPERM for a directory, as POSIX allows.
            Err(Errno::ISDIR | Errno::PERM) => {}
            Err(errno) => return Err(cannot(errno)),
        }
        let Some(depth) = depth.checked_sub(1) else {
            return Err("cannot remove: the directories in it are too deep".to_owned());
        };
        let child = open_child(directory, name).map_err(cannot)?;
        for name in names_in(child.as_fd()).map_err(cannot)? {
            if self.state.halt.is_cancelled() {
                return Err("the copy was ended".to_owned());
            }
            let entry = EntryName::try_from(name.clone()).map_err(|error| error.to_string())?;
            self.remove_to_depth(child.as_fd(), &name, &local.join(&entry), depth)?;
        }
        drop(child);
        unlinkat(directory, name, AtFlags::REMOVEDIR).map_err(cannot)?;
        self.note_removed(local);
        Ok(())
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
