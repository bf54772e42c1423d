//! The times that a file system stores. Some store coarser ones than were set, and some end at certain years: FAT has
//! even seconds from 1980 on, ext4 with small inodes whole seconds until 2038.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags, Stat, Timespec, Timestamps, fstat, futimens, openat};

use super::entry::{TemporaryName, create_file};
use crate::copy::metadata::{Timestamp, changed, modified};

/// The seconds since 1970 that every file system can store: from FAT's first day in every time zone to the last second
/// of 32 bits.
const COMMON_SECONDS: std::ops::RangeInclusive<i64> = 315_532_800 + 86_400..=i32::MAX as i64;

/// The most seconds between a time and what a file system stores of it, unless the time is out of its range.
const COARSEST_SECONDS: u64 = 2;

/// The steps of file systems that store coarser times, in nanoseconds: NTFS and CIFS, many servers, exFAT, ext3 and
/// HFS+, FAT.
const STEPS: [i128; 5] = [100, 1_000, 10_000_000, 1_000_000_000, 2_000_000_000];

/// Returns true if there may be a file system that does not store this time.
pub(super) fn may_be_out_of_range(time: Timestamp) -> bool {
    !COMMON_SECONDS.contains(&time.seconds)
}

/// Returns true if an entry that got the time of modification `set` has another one, `stored`, because its file system
/// has no such year.
pub(super) fn is_clamped(set: Timestamp, stored: Timestamp) -> bool {
    may_be_out_of_range(set) && set.seconds.abs_diff(stored.seconds) > COARSEST_SECONDS
}

/// Returns true if the time of access is another year's. FAT stores the day of the last access only.
pub(super) fn is_access_clamped(set: Timestamp, stored: Timestamp) -> bool {
    may_be_out_of_range(set) && set.seconds.abs_diff(stored.seconds) > 2 * 86_400
}

/// Returns a time as the system takes it: a number of nanoseconds that is none must not be taken for `UTIME_NOW`.
pub(super) fn timespec(time: Timestamp) -> Timespec {
    Timespec {
        tv_sec: time.seconds,
        tv_nsec: time.nanoseconds.min(999_999_999).into(),
    }
}

/// Tells what the file system of a folder stores of a time. It sets the time of a file of its own there, which it makes
/// when it is first needed, and removes in the end.
pub(super) struct TimeProbe<'a> {
    folder: BorrowedFd<'a>,
    /// False in a dry run: then the file has never a name, also where that needs one.
    may_name: bool,
    temporary: TemporaryName,
    file: ProbeFile,
}

enum ProbeFile {
    NotMade,
    Made(OwnedFd),
    None,
}

impl<'a> TimeProbe<'a> {
    /// Returns a probe for an open folder, which has made nothing.
    pub(super) fn new(folder: BorrowedFd<'a>, may_name: bool) -> Self {
        Self {
            folder,
            may_name,
            temporary: TemporaryName::random(),
            file: ProbeFile::NotMade,
        }
    }

    /// Returns true if an entry that got the time `set` has the time of `found`.
    pub(super) fn stores_as(&mut self, set: Timestamp, found: &Stat) -> bool {
        let stored = modified(found);
        if set == stored {
            return true;
        }
        let is_near = set.seconds.abs_diff(stored.seconds) <= COARSEST_SECONDS;
        if !(is_near || may_be_out_of_range(set)) {
            return false;
        }
        match self.stored(set) {
            Some(probed) => probed == stored,
            None => fstat(self.folder).is_ok_and(|folder| looks_coarse(set, found, &folder)),
        }
    }

    /// Returns what the file system stores of a time; none if there can be no file to find out.
    fn stored(&mut self, time: Timestamp) -> Option<Timestamp> {
        if matches!(self.file, ProbeFile::NotMade) {
            self.file = self.make().map_or(ProbeFile::None, ProbeFile::Made);
        }
        let ProbeFile::Made(file) = &self.file else {
            return None;
        };
        let times = Timestamps {
            last_access: timespec(time),
            last_modification: timespec(time),
        };
        futimens(file, &times).ok()?;
        fstat(file).ok().map(|stat| modified(&stat))
    }

    /// Makes a file without a name. Where the file system has none, makes one with a name.
    fn make(&mut self) -> Option<OwnedFd> {
        let (flags, mode) = (OFlags::WRONLY | OFlags::CLOEXEC, Mode::RUSR | Mode::WUSR);
        if let Ok(file) = openat(self.folder, ".", flags | OFlags::TMPFILE, mode) {
            return Some(file);
        }
        let folder = self.may_name.then_some(self.folder)?;
        let named = self
            .temporary
            .make(|name| create_file(folder, name, mode.as_raw_mode()));
        named.ok()
    }
}

impl Drop for TimeProbe<'_> {
    fn drop(&mut self) {
        self.temporary.remove(self.folder.as_fd());
    }
}

/// Returns true if an entry seems to have the time `set` because its file system stores coarser times: the time was
/// rounded down, and what no program can set, its change time and those of its folder, are as coarse.
fn looks_coarse(set: Timestamp, found: &Stat, folder: &Stat) -> bool {
    let stored = in_nanoseconds(modified(found));
    let others = [changed(found), changed(folder), modified(folder)];
    let set = in_nanoseconds(set);
    STEPS.into_iter().any(|step| {
        let is_whole = |time: &Timestamp| in_nanoseconds(*time).rem_euclid(step) == 0;
        set - set.rem_euclid(step) == stored && others.iter().all(is_whole)
    })
}

fn in_nanoseconds(time: Timestamp) -> i128 {
    i128::from(time.seconds) * 1_000_000_000 + i128::from(time.nanoseconds)
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    fn time(seconds: i64, nanoseconds: u32) -> Timestamp {
        Timestamp {
            seconds,
            nanoseconds,
        }
    }

    fn entry(seconds: i64, modified: u32, changed: u32) -> Stat {
        let mut stat = fstat(File::open(".").unwrap()).unwrap();
        (stat.st_mtime, stat.st_mtime_nsec) = (seconds, modified.into());
        (stat.st_ctime, stat.st_ctime_nsec) = (seconds + 10, changed.into());
        stat
    }

    #[test]
    fn a_file_system_that_stores_nanoseconds_takes_no_two_times_for_one() {
        let place = tempfile::tempdir().unwrap();
        let folder = File::open(place.path()).unwrap();
        let mut probe = TimeProbe::new(folder.as_fd(), true);
        let set = time(1_000_000_001, 123_456_789);
        for (seconds, nanoseconds) in [
            (1_000_000_001, 123_456_700),
            (1_000_000_001, 120_000_000),
            (1_000_000_001, 0),
            (1_000_000_000, 0),
            (1_000_000_003, 123_456_789),
        ] {
            // Change times that are as coarse prove nothing here.
            assert!(!probe.stores_as(set, &entry(seconds, nanoseconds, 0)));
        }
        assert!(probe.stores_as(set, &entry(1_000_000_001, 123_456_789, 1)));
        drop(probe);
        assert_eq!(std::fs::read_dir(place.path()).unwrap().count(), 0);
    }

    #[test]
    fn without_a_file_of_its_own_the_change_times_tell_how_coarse_a_file_system_is() {
        let set = time(1_000_000_001, 123_456_789);
        for (seconds, modified, changed) in [
            (1_000_000_001, 123_456_700, 300),
            (1_000_000_001, 123_456_000, 7_000),
            (1_000_000_001, 120_000_000, 30_000_000),
            (1_000_000_001, 0, 0),
            (1_000_000_000, 0, 0),
        ] {
            let found = entry(seconds, modified, changed);
            assert!(looks_coarse(set, &found, &found), "{modified}");
            let fine = entry(seconds, modified, changed + 1);
            assert!(!looks_coarse(set, &fine, &found), "{modified}");
            assert!(!looks_coarse(set, &found, &fine), "{modified}");
        }
        let later = entry(1_000_000_002, 0, 0);
        assert!(!looks_coarse(set, &later, &later));
    }

    #[test]
    fn only_another_year_is_named() {
        let far = time(2_524_608_000, 5);
        assert!(is_clamped(far, time(i32::MAX.into(), 0)));
        assert!(!is_clamped(far, time(2_524_608_000, 0)));
        assert!(!is_access_clamped(far, time(2_524_600_000, 0)));
        assert!(is_access_clamped(far, time(i32::MAX.into(), 0)));
        // A file system that does not keep times of access.
        assert!(!is_access_clamped(time(1_700_000_000, 0), time(0, 0)));
    }
}
