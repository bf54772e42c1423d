//! Removes what the source has not (`--delete`), with everything in it. Every removal is relative to an open directory.
//!
//! A dry run takes the same way and makes the same decisions. It only leaves out the system calls that change
//! something.

use std::{
    hash::{BuildHasher, RandomState},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use rustix::{
    fs::{AtFlags, Dir, FileType, Stat, fstat, statat, unlinkat},
    io::Errno,
};

use super::{
    folders::{look_into, make_writable, open_again, open_child, set_mode},
    lane::broken,
    state::{DestinationShared, DestinationState, ENDED, add, errno_text},
    written::id_of,
};
use crate::copy::{
    job::CopyError,
    path::{EntryName, RelativePath},
    temporary_names::{is_random_name, name_of_part, without_tag},
    written::{BLOCK_BYTES, WrittenEntries},
};

/// The time after the last change of a temporary file from which it is taken for one that a copy has left when it was
/// killed. A copy that runs changes its temporary files all the time.
pub(super) const STALE_AGE: Duration = Duration::from_secs(24 * 60 * 60);

/// The bytes of the names of a mirrored folder that are read before these entries are removed.
const BATCH_BYTES: usize = 1 << 20;

/// The bytes of the names of a directory, in one that is removed, that are read before these entries are removed. Each
/// level of the removal has so many.
const LEVEL_BATCH_BYTES: usize = 16 << 10;

/// The reason for the user if nothing is removed, because the source's directory is empty.
const EMPTY_SOURCE: &str = "its source directory is empty, maybe because a file system is not mounted, so nothing was removed; if that is meant, give --max-delete N, the most entries to remove";

/// The reason for the user if nothing is removed, because another directory of the source is the same one here.
const MIRRORED_BEFORE: &str = "the file system takes its name for that of another directory of the source, so nothing was removed in it";

/// The names that the source has in the folder that it tells of at the moment.
#[derive(Debug, Default)]
pub(super) struct MirroredFolder {
    folder: Option<RelativePath>,
    names: NameSet,
    taken: usize,
    /// The directories of the destination that were mirrored.
    mirrored: WrittenEntries,
}

impl MirroredFolder {
    /// Adds names of a folder. After the last ones, removes what else the destination has there.
    /// Fails if the source breaks the protocol.
    pub(super) fn add(
        &mut self,
        shared: &DestinationShared,
        folder: &RelativePath,
        names: &[EntryName],
        last: bool,
    ) -> Result<(), CopyError> {
        if !shared.state.options.delete {
            return Err(broken("names that were not asked for"));
        }
        if self.folder.as_ref() != Some(folder) {
            self.forget(&shared.state);
            self.folder = Some(folder.clone());
        }
        let bytes = names.len() * NAME_BYTES + if self.taken == 0 { SET_BYTES } else { 0 };
        shared.state.keep(bytes)?;
        self.taken += bytes;
        for name in names {
            self.names.insert(name.as_bytes());
        }
        if last {
            self.names.sort();
            self.remove_others(shared, folder)?;
            self.forget(&shared.state);
        }
        Ok(())
    }

    fn forget(&mut self, state: &DestinationState) {
        self.folder = None;
        self.names = NameSet::default();
        state.budget().give_back(std::mem::take(&mut self.taken));
    }

    fn remove_others(
        &mut self,
        shared: &DestinationShared,
        wire: &RelativePath,
    ) -> Result<(), CopyError> {
        let state = &shared.state;
        if wire.is_empty() {
            state.placement.check_contents().map_err(broken)?;
        }
        let placed = match state.placement.folder(wire) {
            Ok(placed) => placed,
            Err(fault) => return shared.refuse_folder(fault),
        };
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
        if let Err(why) = self.begin(state, &directory)? {
            if let Some(why) = why {
                state.fail(&local, why);
            }
            return Ok(());
        }
        let is_at_source = |name: &[u8]| self.names.contains(name);
        let is_other = |name: &[u8]| {
            !is_at_source(name) && !is_unfinished(directory.as_fd(), name, is_at_source)
        };
        let is_empty_source =
            self.names.len() == 0 && state.placement.below_source(&local).is_empty();
        let may_remove = !is_empty_source || state.options.max_delete.is_some();
        let mut deletion = Deletion::new(state);
        let removing =
            deletion.in_batches(directory.as_fd(), BATCH_BYTES, is_other, |own, name| {
                state.check_running().map_err(|_| Errno::CANCELED)?;
                if state.placement.reserves(name) {
                    own.sweep(directory.as_fd(), name);
                    return Ok(None);
                }
                if !may_remove {
                    state.fail(&local, EMPTY_SOURCE);
                    return Err(Errno::EXIST);
                }
                Ok(own.remove_or_report(directory.as_fd(), name, &local))
            });
        match removing {
            Err(Errno::CANCELED) => Err(CopyError::Cancelled),
            Err(errno) if may_remove => {
                let why = format!("cannot look for what to remove: {}", errno_text(errno));
                state.fail(&local, why);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Notes a directory of the destination that is mirrored.
    /// The inner error says that nothing is removed in it: without a reason if the run has made it, so that nothing
    /// else is in it, and with a reason for the user if it was mirrored before, as another directory of the source. The
    /// outer one ends the copy, which has no memory to note the directory.
    fn begin(
        &mut self,
        state: &DestinationState,
        directory: &OwnedFd,
    ) -> Result<Result<(), Option<&'static str>>, CopyError> {
        let Ok(stat) = fstat(directory) else {
            return Ok(Ok(()));
        };
        if self.mirrored.contains(id_of(&stat)) {
            return Ok(Err(Some(MIRRORED_BEFORE)));
        }
        if self.mirrored.grows_with(id_of(&stat)) {
            state.keep(BLOCK_BYTES)?;
        }
        self.mirrored.insert(id_of(&stat));
        if state.written.contains(&stat) {
            return Ok(Err(None));
        }
        Ok(Ok(()))
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
    if part_of.is_none() && !is_random_name(name) {
        return false;
    }
    let Ok(stat) = statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) else {
        return true;
    };
    let files = [part_of, part_of.and_then(without_tag)];
    let is_of_source = files.into_iter().flatten().any(is_at_source);
    FileType::from_raw_mode(stat.st_mode) != FileType::Directory
        && (is_of_source || !is_long_ago(stat.st_ctime, SystemTime::now()))
}

fn is_long_ago(seconds: i64, now: SystemTime) -> bool {
    let changed = UNIX_EPOCH + Duration::from_secs(u64::try_from(seconds).unwrap_or(0));
    now.duration_since(changed).is_ok_and(|age| age > STALE_AGE)
}

/// The deepest directory in a directory that is removed. Each level is an open descriptor.
pub(super) const MAX_DEPTH: usize = 256;

/// Removes entries, and reports what it removed when it is dropped.
pub(super) struct Deletion<'a> {
    state: &'a DestinationState,
    removed: Vec<Vec<u8>>,
    /// The number of entries that were removed.
    count: u64,
}

/// The reason why an entry stays. If there are several, the last one of this list counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Stay {
    /// The filters leave it, or something in it, out of the copy.
    Protected,
    /// It has an unfinished file of a client of the server in it.
    Unfinished,
    /// The run has written it, or something in it. The file system takes its name for another one's.
    Written,
    /// The run has removed as many entries as it may.
    Limit,
    /// It cannot be removed, which is reported.
    Failed,
    Ended,
}

impl<'a> Deletion<'a> {
    /// Returns a deletion that has removed nothing.
    pub(super) fn new(state: &'a DestinationState) -> Self {
        Self {
            state,
            removed: Vec::new(),
            count: 0,
        }
    }

    /// Calls `remove` with the name of each entry of a directory that is `wanted`, in batches of so many bytes. Names are
    /// read before entries of their batch are removed, because a file system may skip entries while others are removed.
    /// If there were several batches, everything is read again until nothing is removed, unless `remove` returns that
    /// something stays which it has reported.
    /// Fails as getdents(2) and `remove` do, and with `ECANCELED` if the work has ended early.
    fn in_batches(
        &mut self,
        directory: BorrowedFd<'_>,
        bytes: usize,
        wanted: impl Fn(&[u8]) -> bool,
        mut remove: impl FnMut(&mut Self, &[u8]) -> rustix::io::Result<Option<Stay>>,
    ) -> rustix::io::Result<()> {
        let mut may_repeat = !self.state.options.dry_run;
        loop {
            let before = self.count;
            let mut left = Some(Dir::new(open_again(directory)?)?);
            let mut batches = 0;
            while let Some(listed) = left.take() {
                let names;
                (names, left) = next_names(self.state, listed, bytes, &wanted)?;
                batches += 1;
                for name in names {
                    let stay = remove(self, &name)?;
                    may_repeat &= !matches!(stay, Some(Stay::Limit | Stay::Failed));
                }
            }
            if batches == 1 || self.count == before || !may_repeat {
                return Ok(());
            }
        }
    }

    /// Removes the directory `name` of `directory` with everything in it, because another entry takes its place.
    /// `local` is the directory's path.
    /// Fails with the reason for the user if the directory stays. A part of what is in it may be removed then.
    pub(super) fn make_room(
        &mut self,
        directory: BorrowedFd<'_>,
        name: &[u8],
        local: &RelativePath,
    ) -> Result<(), String> {
        self.remove_to_depth(directory, name, local, MAX_DEPTH)
            .map_err(|stay| format!("cannot replace a directory: {}", self.why(stay)))
    }

    /// Removes the entry `name` of `directory`, which is not a directory, because a directory takes its place.
    /// Fails with the reason for the user if the entry stays.
    pub(crate) fn make_room_for_directory(
        &mut self,
        directory: BorrowedFd<'_>,
        name: &[u8],
        local: &RelativePath,
    ) -> Result<(), String> {
        let cannot = |why: &str| {
            format!(
                "the destination has something else of this name, which a directory does not replace: {why}"
            )
        };
        if self.state.protects(local, false) {
            return Err(cannot(&self.why(Stay::Protected)));
        }
        match self.try_unlink(directory, name, local, AtFlags::empty()) {
            Ok(()) => Ok(()),
            Err(None) => Err(cannot(&self.why(Stay::Limit))),
            Err(Some(errno)) => Err(cannot(&errno_text(errno))),
        }
    }

    /// Removes an entry of the folder `parent`. A failure is reported. Returns why the entry stays, if it does.
    pub(crate) fn remove_or_report(
        &mut self,
        directory: BorrowedFd<'_>,
        name: &[u8],
        parent: &RelativePath,
    ) -> Option<Stay> {
        let entry = EntryName::try_from(name.to_vec()).ok()?;
        let removed = self.remove_to_depth(directory, name, &parent.join(&entry), MAX_DEPTH);
        removed.err()
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
        let mut stay = None;
        let remove = |own: &mut Self, name: &[u8]| {
            if own.state.halt.is_cancelled() {
                return Err(Errno::CANCELED);
            }
            if own.state.placement.reserves(name) {
                let left = (!own.sweep(directory.as_fd(), name)).then_some(Stay::Unfinished);
                stay = stay.max(left);
                return Ok(left);
            }
            let Ok(entry) = EntryName::try_from(name.to_vec()) else {
                return Ok(None);
            };
            let local = local.join(&entry);
            let removed = own.remove_to_depth(directory.as_fd(), name, &local, depth);
            if removed == Err(Stay::Ended) {
                return Err(Errno::CANCELED);
            }
            stay = stay.max(removed.err());
            Ok(removed.err())
        };
        let emptied = self.in_batches(directory.as_fd(), LEVEL_BATCH_BYTES, |_| true, remove);
        emptied.map_err(|errno| match errno {
            Errno::CANCELED => Stay::Ended,
            errno => self.fail(local, errno),
        })?;
        stay.map_or(Ok(()), Err)
    }

    /// Removes what a copy to a server has left unfinished, if that is long ago. The client that mirrors is told nothing
    /// of it: it may be another client's. Returns false if it stays.
    fn sweep(&self, directory: BorrowedFd<'_>, name: &[u8]) -> bool {
        let is_stale = |stat: Stat| {
            let is_directory = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
            !is_directory && is_long_ago(stat.st_ctime, SystemTime::now())
        };
        match statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) if is_stale(stat) => {
                self.state.options.dry_run || unlinkat(directory, name, AtFlags::empty()).is_ok()
            }
            result => result.is_err(),
        }
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
            Stay::Unfinished => "a copy into it was cut, and may be continued".to_owned(),
            Stay::Written => "the run has written it, or something in it".to_owned(),
            Stay::Limit => self.state.removals.limit_text(),
            Stay::Failed => "not everything in it could be removed".to_owned(),
            Stay::Ended => ENDED.to_owned(),
        }
    }

    fn note_removed(&mut self, local: &RelativePath) {
        add(&self.state.counts.removed, 1);
        self.count += 1;
        self.removed.push(local.as_bytes().to_vec());
        self.state.report_removed(&mut self.removed, false);
    }
}

impl Drop for Deletion<'_> {
    fn drop(&mut self) {
        self.state.report_removed(&mut self.removed, true);
    }
}

/// Returns the next names of a directory that are `wanted`, of so many bytes, and what is left of the directory after
/// them; none at its end.
/// Fails as getdents(2) does, and with `ECANCELED` if the work has ended early.
fn next_names(
    state: &DestinationState,
    mut directory: Dir,
    bytes: usize,
    wanted: impl Fn(&[u8]) -> bool,
) -> rustix::io::Result<(Vec<Vec<u8>>, Option<Dir>)> {
    let mut names = Vec::new();
    let mut read = 0;
    while let Some(entry) = directory.next() {
        state.check_running().map_err(|_| Errno::CANCELED)?;
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if name != b"." && name != b".." && wanted(name) {
            read += name.len() + size_of::<Vec<u8>>();
            names.push(name.to_vec());
        }
        if read >= bytes {
            return Ok((names, Some(directory)));
        }
    }
    Ok((names, None))
}

/// The number of parts of a set. Each part grows on its own, so little is copied and unused.
const PARTS: usize = 256;

/// The bytes that a name takes at most: its hash, and a quarter of that for what its part has left.
pub(super) const NAME_BYTES: usize = 10;

/// The bytes that a set takes beside its names: the parts, and the first growth of each.
pub(super) const SET_BYTES: usize = PARTS * (24 + FIRST_GROWTH * 8);

/// The names for which a part has room at first, beside a quarter of those that it has.
const FIRST_GROWTH: usize = 8;

/// A set of names. A name is kept as a hash with a random key: two names with one hash, which practically does not
/// happen, count as one.
#[derive(Debug, Default)]
pub(super) struct NameSet {
    keys: RandomState,
    parts: Vec<Vec<u64>>,
    count: usize,
    /// True if all parts are in order.
    is_sorted: bool,
}

impl NameSet {
    /// Adds a name.
    pub(super) fn insert(&mut self, name: &[u8]) {
        if self.parts.is_empty() {
            self.parts.resize_with(PARTS, Vec::new);
        }
        let hash = self.keys.hash_one(name);
        let part = &mut self.parts[part_of(hash)];
        if part.len() == part.capacity() {
            part.reserve_exact(part.len() / 4 + FIRST_GROWTH);
        }
        part.push(hash);
        self.count += 1;
        self.is_sorted = false;
    }

    /// Returns true if the set has a name. The set must be in order ([`sort`](Self::sort)).
    pub(super) fn contains(&self, name: &[u8]) -> bool {
        debug_assert!(self.is_sorted || self.parts.is_empty());
        let hash = self.keys.hash_one(name);
        let part = self.parts.get(part_of(hash));
        part.is_some_and(|part| part.binary_search(&hash).is_ok())
    }

    /// Puts the set in order.
    pub(super) fn sort(&mut self) {
        self.parts.iter_mut().for_each(|part| part.sort_unstable());
        self.is_sorted = true;
    }

    /// Returns the number of names that were added.
    pub(super) fn len(&self) -> usize {
        self.count
    }
}

fn part_of(hash: u64) -> usize {
    usize::from(hash.to_be_bytes()[0])
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

    #[test]
    fn a_large_set_has_its_names_and_no_others_and_takes_what_it_says() {
        const COUNT: u32 = 300_000;
        let mut set = NameSet::default();
        (0..COUNT).for_each(|number| set.insert(&number.to_le_bytes()));
        set.sort();
        assert!((0..COUNT).all(|number| set.contains(&number.to_le_bytes())));
        assert!((COUNT..2 * COUNT).all(|number| !set.contains(&number.to_le_bytes())));
        let bytes: usize = set.parts.iter().map(|part| part.capacity() * 8).sum();
        assert!(bytes <= set.len() * NAME_BYTES + SET_BYTES, "{bytes}");
    }
}
