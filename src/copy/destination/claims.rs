//! What each copy of a server writes, so that no two copies write the same. Pure, except for [`CopyClaims`], which
//! looks at directories.
//!
//! A copy claims its *targets*: the entries that the user named as its result. A target is a name in a directory, or a
//! directory itself (`-T`, or the contents of a directory). A target that is a directory is claimed with all that is
//! below it. Two claims of different copies conflict if
//!
//! - both are of the same name in the same directory, or of the same directory, or
//! - one is a directory, and the other is somewhere below it.
//!
//! Directories are compared by device and inode, so it does not matter which paths lead to them.

use std::{
    collections::{HashMap, hash_map::Entry},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{Arc, Mutex},
};

use rustix::{
    fs::{AtFlags, FileType, Mode, OFlags, fstat, openat, statat},
    io::Errno,
};

use super::state::{errno_text, lock};
use crate::copy::path::{EntryName, RelativePath};

/// The most targets of one copy: more than a command line holds.
const MAX_TARGETS: usize = 1 << 17;

/// The most directories above a target that are looked at. Linux accepts paths of at most 4095 bytes.
const MAX_ABOVE: usize = 2048;

/// The device and the inode of a directory.
type DirectoryId = (u64, u64);

/// The claims of all copies of a server. Clones are the same claims.
#[derive(Debug, Clone, Default)]
pub(crate) struct DestinationClaims(Arc<Mutex<ClaimTable>>);

#[derive(Debug, Default)]
struct ClaimTable {
    /// The number of the next copy.
    next: u64,
    copies: HashMap<u64, ClaimingCopy>,
    /// The copies by the names that they claim.
    names: HashMap<(DirectoryId, EntryName), u64>,
    directories: HashMap<DirectoryId, u64>,
}

#[derive(Debug)]
struct ClaimingCopy {
    client: String,
    /// The directory that the targets are in, and all directories above it.
    above: Vec<DirectoryId>,
}

/// A target, as far as it can be compared.
struct ClaimedTarget<'a> {
    /// The directory that the target is in, and all directories above it; begins with the target itself if that has no
    /// name.
    above: &'a [DirectoryId],
    name: Option<&'a EntryName>,
    /// The target, if it is a directory.
    directory: Option<DirectoryId>,
}

/// The claims of one copy. Dropping them releases them.
#[derive(Debug)]
pub(crate) struct CopyClaims {
    all: DestinationClaims,
    number: u64,
    client: String,
    own: Mutex<OwnClaims>,
}

#[derive(Debug, Default)]
struct OwnClaims {
    place: Option<ClaimPlace>,
    targets: HashMap<RelativePath, TargetState>,
}

/// The directory that the targets of a copy are in.
#[derive(Debug)]
struct ClaimPlace {
    directory: OwnedFd,
    above: Vec<DirectoryId>,
}

/// What a copy knows of a target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TargetState {
    /// The name is claimed. What has the name was no directory.
    Name,
    /// The target is claimed with all that is below it.
    Directory,
    /// Another copy has the target, or had it when it was asked for.
    Refused,
}

/// The reason why a target cannot be written: the reason for the user, unless that was returned before.
pub(super) type ClaimRefusal = Option<String>;

impl DestinationClaims {
    /// Returns the claims of a new copy, which has none yet. `client` is what the users of other copies are told.
    pub(crate) fn of_copy(&self, client: impl Into<String>) -> CopyClaims {
        let mut table = lock(&self.0);
        table.next += 1;
        CopyClaims {
            all: self.clone(),
            number: table.next,
            client: client.into(),
            own: Mutex::default(),
        }
    }
}

impl CopyClaims {
    /// Returns true if the copy has claimed or tried to claim `target`.
    pub(super) fn knows(&self, target: &RelativePath) -> bool {
        lock(&self.own).targets.contains_key(target)
    }

    /// Claims `target`, a local path. The target itself need not exist. `open_place` opens the directory that the
    /// targets of the copy are in; for the empty path, that is the target.
    /// Fails if another copy has claimed the target or something in it. The copy never gets the target then, so that
    /// one of the two writes it whole.
    pub(super) fn claim(
        &self,
        target: &RelativePath,
        open_place: impl FnOnce() -> Result<OwnedFd, String>,
    ) -> Result<(), ClaimRefusal> {
        let mut own = lock(&self.own);
        let count = own.targets.len();
        let OwnClaims { place, targets } = &mut *own;
        let entry = match targets.entry(target.clone()) {
            Entry::Occupied(known) if *known.get() == TargetState::Refused => return Err(None),
            Entry::Occupied(_) => return Ok(()),
            Entry::Vacant(_) if count >= MAX_TARGETS => {
                return Err(Some("is one entry too many for one copy".to_owned()));
            }
            Entry::Vacant(entry) => entry,
        };
        let claimed = ClaimPlace::find(place, open_place)
            .and_then(|place| self.claim_in(place, target, TargetState::Name));
        match claimed {
            Ok(state) => {
                entry.insert(state);
                Ok(())
            }
            Err(why) => {
                entry.insert(TargetState::Refused);
                Err(Some(why))
            }
        }
    }

    /// Claims `target` with all that is below it, if the copy has made a directory of it since it was claimed.
    /// Fails if another copy has claimed something in the new directory meanwhile.
    pub(super) fn claim_made(&self, target: &RelativePath) -> Result<(), ClaimRefusal> {
        let mut own = lock(&self.own);
        let OwnClaims { place, targets } = &mut *own;
        let (Some(place), Some(state)) = (place, targets.get_mut(target)) else {
            return Ok(());
        };
        match *state {
            TargetState::Directory => return Ok(()),
            TargetState::Refused => return Err(None),
            TargetState::Name => {}
        }
        match self.claim_in(place, target, *state) {
            Ok(now) => {
                *state = now;
                Ok(())
            }
            Err(why) => {
                *state = TargetState::Refused;
                Err(Some(why))
            }
        }
    }

    /// Releases all claims. The copy has ended.
    pub(super) fn release(&self) {
        lock(&self.all.0).release(self.number);
        *lock(&self.own) = OwnClaims::default();
    }

    fn claim_in(
        &self,
        place: &ClaimPlace,
        target: &RelativePath,
        otherwise: TargetState,
    ) -> Result<TargetState, String> {
        let name = target.split_last().map(|(_, name)| name);
        let directory = match &name {
            Some(name) => directory_at(place.directory.as_fd(), name),
            None => place.above.first().copied(),
        };
        let claimed = ClaimedTarget {
            above: &place.above,
            name: name.as_ref(),
            directory,
        };
        match lock(&self.all.0).claim(self.number, &self.client, &claimed) {
            Ok(()) if directory.is_some() => Ok(TargetState::Directory),
            Ok(()) => Ok(otherwise),
            Err(client) => Err(format!("another client writes it now ({client})")),
        }
    }
}

impl Drop for CopyClaims {
    fn drop(&mut self) {
        lock(&self.all.0).release(self.number);
    }
}

impl ClaimTable {
    /// Claims a target for a copy, or returns the client whose copy has a claim that conflicts.
    fn claim(
        &mut self,
        number: u64,
        client: &str,
        target: &ClaimedTarget<'_>,
    ) -> Result<(), String> {
        if let Some(other) = self.holder(number, target) {
            let other = self.copies.get(&other);
            return Err(other.map(|copy| copy.client.clone()).unwrap_or_default());
        }
        self.copies.entry(number).or_insert_with(|| ClaimingCopy {
            client: client.to_owned(),
            above: target.above.to_vec(),
        });
        if let (Some(name), Some(parent)) = (target.name, target.above.first()) {
            self.names.insert((*parent, name.clone()), number);
        }
        if let Some(directory) = target.directory {
            self.directories.insert(directory, number);
        }
        Ok(())
    }

    /// Returns another copy that has a claim which conflicts with that of a target.
    fn holder(&self, number: u64, target: &ClaimedTarget<'_>) -> Option<u64> {
        let is_other = |other: &u64| *other != number;
        let key = target.above.first().copied().zip(target.name.cloned());
        let same = key.and_then(|key| self.names.get(&key)).copied();
        let around = target.above.iter().chain(&target.directory);
        let around = around.filter_map(|id| self.directories.get(id)).copied();
        let is_inside =
            |copy: &ClaimingCopy| target.directory.is_some_and(|id| copy.above.contains(&id));
        let inside = self.copies.iter().filter(|(_, copy)| is_inside(copy));
        let inside = inside.map(|(other, _)| *other);
        same.into_iter().chain(around).chain(inside).find(is_other)
    }

    fn release(&mut self, number: u64) {
        if self.copies.remove(&number).is_some() {
            self.names.retain(|_, holder| *holder != number);
            self.directories.retain(|_, holder| *holder != number);
        }
    }
}

impl ClaimPlace {
    /// Returns the place in `known`, which is opened and looked at once.
    fn find(
        known: &mut Option<Self>,
        open: impl FnOnce() -> Result<OwnedFd, String>,
    ) -> Result<&Self, String> {
        if known.is_none() {
            let directory = open()?;
            let above = directories_above(directory.as_fd()).map_err(errno_text)?;
            *known = Some(Self { directory, above });
        }
        known.as_ref().ok_or_else(|| errno_text(Errno::NOENT))
    }
}

/// Returns a directory and all directories above it.
fn directories_above(directory: BorrowedFd<'_>) -> Result<Vec<DirectoryId>, Errno> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut at = openat(directory, ".", flags, Mode::empty())?;
    let mut above = Vec::new();
    while above.len() < MAX_ABOVE {
        let stat = fstat(&at)?;
        let id = (stat.st_dev, stat.st_ino);
        // The root is above itself.
        if above.last() == Some(&id) {
            break;
        }
        above.push(id);
        match openat(&at, "..", flags, Mode::empty()) {
            Ok(parent) => at = parent,
            // Nothing is claimed above a directory that may not be searched.
            Err(_) => break,
        }
    }
    Ok(above)
}

fn directory_at(directory: BorrowedFd<'_>, name: &EntryName) -> Option<DirectoryId> {
    let stat = statat(directory, name.as_bytes(), AtFlags::SYMLINK_NOFOLLOW).ok()?;
    let is_directory = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
    is_directory.then_some((stat.st_dev, stat.st_ino))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn target(text: &str) -> RelativePath {
        text.as_bytes().to_vec().try_into().unwrap()
    }

    #[test]
    fn a_directory_that_another_copy_has_entered_is_refused() {
        let place = tempfile::tempdir().unwrap();
        let open = |path: &str| Ok(fs::File::open(place.path().join(path)).unwrap().into());
        let all = DestinationClaims::default();
        let (first, second) = (all.of_copy("alice"), all.of_copy("bob"));
        assert_eq!(first.claim(&target("d"), || open("")), Ok(()));
        assert_eq!(first.claim_made(&target("d")), Ok(()));
        fs::create_dir(place.path().join("d")).unwrap();
        assert_eq!(second.claim(&target("x"), || open("d")), Ok(()));
        let why = "another client writes it now (bob)".to_owned();
        assert_eq!(first.claim_made(&target("d")), Err(Some(why)));
        // The reason is returned once, and the refusal stays.
        drop(second);
        assert_eq!(first.claim(&target("d"), || open("")), Err(None));
        assert_eq!(first.claim_made(&target("d")), Err(None));
    }

    #[test]
    fn released_claims_leave_nothing_behind() {
        let place = tempfile::tempdir().unwrap();
        fs::create_dir(place.path().join("d")).unwrap();
        let open = || Ok(fs::File::open(place.path()).unwrap().into());
        let all = DestinationClaims::default();
        let first = all.of_copy("alice");
        for name in ["d", "e", "f"] {
            assert_eq!(first.claim(&target(name), open), Ok(()));
        }
        assert_eq!(first.claim(&target(""), open), Ok(()));
        drop(first);
        let table = lock(&all.0);
        assert!(table.copies.is_empty() && table.names.is_empty());
        assert!(table.directories.is_empty());
    }
}
