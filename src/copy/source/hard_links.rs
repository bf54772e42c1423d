//! The table of files that have several names.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
};

use rustix::fs::Stat;

use super::attributes::link_count;
use crate::copy::path::RelativePath;

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
