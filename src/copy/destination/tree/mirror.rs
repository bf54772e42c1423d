//! Removes what the source has not (`--delete`).

use std::{
    collections::HashSet,
    hash::{BuildHasher, RandomState},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use rustix::fs::{AtFlags, FileType, fstat, statat};

use super::{
    deletion::{Deletion, names_in},
    folders::look_into,
};
use crate::copy::{
    context::CopyFailure,
    destination::{
        fault_text::errno_text, large::part::name_of_part, reader::broken,
        shared::DestinationShared, state::DestinationState, temporary_name::is_temporary_name,
        written::id_of,
    },
    path::{EntryName, RelativePath},
    written::WrittenEntries,
};

/// The time after the last change of a temporary file from which it is taken for one that a copy has left when it was
/// killed. A copy that runs changes its temporary files all the time.
pub(in crate::copy::destination) const STALE_AGE: Duration = Duration::from_secs(24 * 60 * 60);

/// The most names of one folder: the memory for them is 8 bytes each and some more for the table.
const MAX_NAMES: usize = 64 << 20;

/// The reason for the user if nothing is removed, because the source's directory is empty.
const EMPTY_SOURCE: &str = "its source directory is empty, maybe because a file system is not mounted, so nothing was removed; if that is meant, give --max-delete N, the most entries to remove";

/// The reason for the user if nothing is removed, because another directory of the source is the same one here.
const MIRRORED_BEFORE: &str = "the file system takes its name for that of another directory of the source, so nothing was removed in it";

/// The names that the source has in the folder that it tells of at the moment.
///
/// A name is kept as a hash with a random key. Two names with one hash, which practically does not happen, would leave an
/// entry at the destination.
#[derive(Debug, Default)]
pub(in crate::copy::destination) struct MirroredFolder {
    folder: Option<RelativePath>,
    names: HashSet<u64>,
    keys: RandomState,
    /// The directories of the destination that were mirrored.
    mirrored: WrittenEntries,
}

impl MirroredFolder {
    /// Adds names of a folder. After the last ones, removes what else the destination has there.
    ///
    /// # Errors
    ///
    /// Fails if the source breaks the protocol.
    pub(in crate::copy::destination) fn add(
        &mut self,
        shared: &DestinationShared,
        folder: &RelativePath,
        names: &[EntryName],
        last: bool,
    ) -> Result<(), CopyFailure> {
        if !shared.state.options.delete {
            return Err(broken("names that were not asked for"));
        }
        if self.folder.as_ref() != Some(folder) {
            self.names.clear();
            self.folder = Some(folder.clone());
        }
        let hashes = names.iter().map(|name| self.keys.hash_one(name.as_bytes()));
        self.names.extend(hashes);
        if self.names.len() > MAX_NAMES {
            return Err(broken("too many names in one folder"));
        }
        if last {
            self.remove_others(shared, folder)?;
            self.folder = None;
            self.names.clear();
        }
        Ok(())
    }

    fn remove_others(
        &mut self,
        shared: &DestinationShared,
        wire: &RelativePath,
    ) -> Result<(), CopyFailure> {
        let state = &shared.state;
        if wire.is_empty() {
            state.placement.check_contents().map_err(broken)?;
        }
        let placed = state.placement.folder(wire).map_err(broken)?;
        let directory = match look_into(shared, &placed) {
            Ok(Some(directory)) => directory,
            // The folder will be made, or it cannot be.
            Ok(None) => return Ok(()),
            Err(errno) => {
                let why = format!("cannot look for what to remove: {}", errno_text(errno));
                state.fail(&placed.path, why);
                return Ok(());
            }
        };
        let local = placed.path;
        if !state.options.dry_run && !shared.may_mirror(&local) {
            return Ok(());
        }
        if let Err(why) = self.begin(state, &directory) {
            if let Some(why) = why {
                state.fail(&local, why);
            }
            return Ok(());
        }
        let is_at_source = |name: &[u8]| self.names.contains(&self.keys.hash_one(name));
        let keeps = |name: &[u8]| {
            is_at_source(name) || is_unfinished(directory.as_fd(), name, is_at_source)
        };
        let others = match names_in(directory.as_fd()) {
            Ok(names) => names
                .into_iter()
                .filter(|name| !keeps(name))
                .collect::<Vec<_>>(),
            Err(errno) => {
                let why = format!("cannot look for what to remove: {}", errno_text(errno));
                state.fail(&local, why);
                return Ok(());
            }
        };
        let is_empty_source =
            self.names.is_empty() && state.placement.below_source(&local).is_empty();
        if is_empty_source && state.options.max_delete.is_none() && !others.is_empty() {
            state.fail(&local, EMPTY_SOURCE);
            return Ok(());
        }
        let mut deletion = Deletion::new(state);
        for name in others {
            deletion.remove_or_report(directory.as_fd(), &name, &local);
        }
        Ok(())
    }

    /// Notes a directory of the destination that is mirrored.
    ///
    /// # Errors
    ///
    /// Fails if nothing is removed in it: without a reason if the run has made it, so that nothing else is in it, and
    /// with a reason for the user if it was mirrored before, as another directory of the source.
    fn begin(
        &mut self,
        state: &DestinationState,
        directory: &OwnedFd,
    ) -> Result<(), Option<&'static str>> {
        let Ok(stat) = fstat(directory) else {
            return Ok(());
        };
        if self.mirrored.contains(id_of(&stat)) {
            return Err(Some(MIRRORED_BEFORE));
        }
        self.mirrored.insert(id_of(&stat));
        if state.written.contains(&stat) {
            return Err(None);
        }
        Ok(())
    }
}

/// Returns true if an entry is what a copy writes or has left unfinished: it has such a name, is no directory, and the
/// source has the file that it is for, or it was changed within [`STALE_AGE`].
fn is_unfinished(
    directory: BorrowedFd<'_>,
    name: &[u8],
    is_at_source: impl Fn(&[u8]) -> bool,
) -> bool {
    let part_of = name_of_part(name);
    if part_of.is_none() && !is_temporary_name(name) {
        return false;
    }
    let Ok(stat) = statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) else {
        return true;
    };
    FileType::from_raw_mode(stat.st_mode) != FileType::Directory
        && (part_of.is_some_and(is_at_source) || !is_long_ago(stat.st_ctime, SystemTime::now()))
}

fn is_long_ago(seconds: i64, now: SystemTime) -> bool {
    let changed = UNIX_EPOCH + Duration::from_secs(u64::try_from(seconds).unwrap_or(0));
    now.duration_since(changed).is_ok_and(|age| age > STALE_AGE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_temporary_file_is_stale_after_a_day() {
        let changed = 1_700_000_000;
        let after = |hours: u64| UNIX_EPOCH + Duration::from_secs(1_700_000_000 + hours * 3600);
        assert!(!is_long_ago(changed, after(23)));
        assert!(is_long_ago(changed, after(25)));
        // A clock that went back, or that of a file server.
        assert!(!is_long_ago(changed, UNIX_EPOCH));
    }
}
