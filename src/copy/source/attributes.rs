//! Reads the metadata of entries, and knows files that have several names.

use std::{
    collections::{HashMap, HashSet},
    sync::{Mutex, PoisonError},
};

use rustix::fs::Stat;

use crate::copy::{
    metadata::{Metadata, Timestamp},
    path::RelativePath,
};

/// Returns the metadata in `stat`, without extended attributes.
pub(crate) fn metadata_of(stat: &Stat) -> Metadata {
    Metadata {
        mode: stat.st_mode & 0o7777,
        uid: stat.st_uid,
        gid: stat.st_gid,
        modified: modified(stat),
        accessed: timestamp(stat.st_atime, stat.st_atime_nsec),
        attributes: Vec::new(),
    }
}

/// Returns the time of the last modification.
pub(crate) fn modified(stat: &Stat) -> Timestamp {
    timestamp(stat.st_mtime, stat.st_mtime_nsec)
}

/// Returns the time of the last change, which no program can set.
pub(crate) fn changed(stat: &Stat) -> Timestamp {
    timestamp(stat.st_ctime, stat.st_ctime_nsec)
}

fn timestamp(seconds: i64, nanoseconds: impl TryInto<u32>) -> Timestamp {
    Timestamp {
        seconds,
        nanoseconds: nanoseconds.try_into().unwrap_or(0),
    }
}

/// Returns the size of a file.
pub(crate) fn size(stat: &Stat) -> u64 {
    u64::try_from(stat.st_size).unwrap_or(0)
}

/// Returns the bytes of a file without its holes, as far as its blocks tell.
pub(crate) fn content_size(stat: &Stat) -> u64 {
    let blocks = u64::try_from(stat.st_blocks).unwrap_or(0);
    size(stat).min(blocks.saturating_mul(512))
}

/// Returns the number of names of a file.
#[allow(
    clippy::useless_conversion,
    reason = "the width of the field depends on the processor"
)]
pub(crate) fn link_count(stat: &Stat) -> u64 {
    u64::from(stat.st_nlink).max(1)
}

/// The names of owners that a stream has sent.
#[derive(Default)]
pub(crate) struct OwnerNames {
    users: HashSet<u32>,
    groups: HashSet<u32>,
    last: Option<(u32, u32)>,
}

/// The numbers and the names of owners: of a user, of a group.
pub(crate) type NamedOwners = (Option<(u32, String)>, Option<(u32, String)>);

impl OwnerNames {
    /// Returns the names of the owners of an entry, if one of them was not named before.
    pub(crate) fn names(&mut self, uid: u32, gid: u32) -> Option<NamedOwners> {
        if self.last.replace((uid, gid)) == Some((uid, gid)) {
            return None;
        }
        let text = |name: &std::ffi::OsStr| name.to_str().map(str::to_owned);
        let user = self.users.insert(uid).then(|| {
            let user = uzers::get_user_by_uid(uid)?;
            Some((uid, text(user.name())?))
        });
        let group = self.groups.insert(gid).then(|| {
            let group = uzers::get_group_by_gid(gid)?;
            Some((gid, text(group.name())?))
        });
        let (user, group) = (user.flatten(), group.flatten());
        let is_named = user.is_some() || group.is_some();
        is_named.then_some((user, group))
    }
}

/// The first name of each file that has further names.
#[derive(Default)]
pub(crate) struct HardLinks(Mutex<HashMap<(u64, u64), FirstName>>);

struct FirstName {
    path: RelativePath,
    /// The number of names that were not seen yet.
    missing: u64,
}

impl HardLinks {
    /// Returns the name under which the file is sent, if it is another one than `path`. The first caller with a file
    /// sends the file.
    ///
    /// A file is forgotten when all of its names were seen, so the table does not grow with links within the tree.
    pub(crate) fn first_name(&self, stat: &Stat, path: &RelativePath) -> Option<RelativePath> {
        let identity = (stat.st_dev, stat.st_ino);
        let mut table = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(first) = table.get_mut(&identity) else {
            let first = FirstName {
                path: path.clone(),
                missing: link_count(stat) - 1,
            };
            table.insert(identity, first);
            return None;
        };
        first.missing -= 1;
        let name = first.path.clone();
        if first.missing == 0 {
            table.remove(&identity);
        }
        (name != *path).then_some(name)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use rustix::fs::{AtFlags, CWD, statat};

    use super::*;

    #[test]
    fn owners_are_named_once() {
        let mut names = OwnerNames::default();
        let Some((user, group)) = names.names(0, 0) else {
            panic!("root has no name");
        };
        assert_eq!(user, Some((0, "root".to_owned())));
        assert!(group.is_some());
        assert_eq!(names.names(0, 0), None);
        assert_eq!(names.names(3_999_999_999, 0), None);
        assert_eq!(names.names(0, 0), None);
    }

    #[test]
    fn the_second_name_is_a_link_and_the_last_one_is_forgotten() {
        let place = tempfile::tempdir().unwrap();
        let first = place.path().join("first");
        fs::write(&first, b"x").unwrap();
        fs::hard_link(&first, place.path().join("second")).unwrap();
        let stat = statat(CWD, &first, AtFlags::empty()).unwrap();
        let path = |name: &str| RelativePath::try_from(name.as_bytes().to_vec()).unwrap();
        let links = HardLinks::default();
        assert_eq!(links.first_name(&stat, &path("a")), None);
        assert_eq!(links.first_name(&stat, &path("b")), Some(path("a")));
        assert!(links.0.lock().unwrap().is_empty());
    }
}
