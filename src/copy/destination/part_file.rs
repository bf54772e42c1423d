//! The temporary file and the map of a file that arrives in parts, and what an earlier run has left of them.
//!
//! The map says which ranges of the contents are written. A later run continues with it.
//!
//! ```text
//! header  magic 8 | size u64 | seconds i64 | nanoseconds u32 | 0 u32 | check u64
//! record  start u64 | end u64 | origin u64 | check u64
//! ```
//!
//! All numbers are little-endian. A check is the XXH3-64 of the bytes before it; that of a record is seeded with the
//! check of the header. `origin` stands for one start of the machine and one time of change of the source's file: after
//! a power failure, a range may be in the map though its contents did not reach the disk; and a program may change a
//! file and set its time of modification back, but not its time of change.

use std::{
    fs::{self, File},
    io::Read,
    os::fd::{BorrowedFd, OwnedFd},
};

use rustix::{
    fs::{
        AtFlags, FileType, FlockOperation, Mode, OFlags, Stat, flock, fstat, openat, statat,
        unlinkat,
    },
    io::{Errno, pread, retry_on_intr, write},
    process::geteuid,
};
use twox_hash::XxHash3_64;

use super::{
    attributes::PRIVATE_MODE,
    in_place::PlacingFault,
    state::{DestinationState, errno_text},
};
use crate::copy::{
    holes::{next_data, zeros},
    metadata::Timestamp,
    question::ByteRange,
    temporary_names::PartNames,
};

/// Files of at least this size are kept when they are not complete. To send fewer bytes again takes less time than to
/// start the copy.
pub(super) const MIN_KEPT_BYTES: u64 = 4 << 20;

/// The most unfinished files that the source is told of and that are not continued yet.
pub(super) const MAX_PROMISES: usize = 4096;

/// How often the temporary file is opened again that another process removes meanwhile.
const OPEN_TRIES: usize = 8;

/// What the source was told that an earlier run has left of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PartPromise {
    device: u64,
    inode: u64,
    /// The ranges that are written.
    pub(super) ranges: MappedRanges,
}

/// Opens the temporary file of a file, and locks it against other copies.
///
/// # Errors
///
/// Fails with the reason for the user.
pub(super) fn open_part(folder: BorrowedFd<'_>, name: &[u8]) -> Result<OwnedFd, PlacingFault> {
    let cannot = |errno| PlacingFault::new("cannot create", errno);
    let base = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    for _ in 0..OPEN_TRIES {
        let mode = Mode::from_raw_mode(PRIVATE_MODE);
        let fd = match retry_on_intr(|| openat(folder, name, base | OFlags::CREATE, mode)) {
            Ok(fd) => fd,
            Err(Errno::LOOP | Errno::NXIO) => {
                unlinkat(folder, name, AtFlags::empty()).map_err(cannot)?;
                continue;
            }
            Err(errno) => return Err(cannot(errno)),
        };
        // Another error comes from a file system without locks.
        let locked = flock(&fd, FlockOperation::NonBlockingLockExclusive);
        if locked == Err(Errno::WOULDBLOCK) {
            return Err(PlacingFault::Other("another copy writes it".to_owned()));
        }
        let stat = fstat(&fd).map_err(cannot)?;
        if !is_own_file(&stat) {
            unlinkat(folder, name, AtFlags::empty()).map_err(cannot)?;
        } else if has_name(folder, name, &stat) {
            return Ok(fd);
        }
    }
    let why = "cannot create: another process takes its temporary name";
    Err(PlacingFault::Other(why.to_owned()))
}

/// Opens the map of a file to append, and begins it if it is not there.
///
/// # Errors
///
/// Fails as the system calls do.
pub(super) fn open_map(
    folder: BorrowedFd<'_>,
    name: &[u8],
    version: SourceVersion,
) -> Result<MapWriter, Errno> {
    let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE | OFlags::NOFOLLOW;
    let flags = flags | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = openat(folder, name, flags, Mode::from_raw_mode(PRIVATE_MODE))?;
    let stat = fstat(&file)?;
    if !is_own_file(&stat) {
        return Err(Errno::EXIST);
    }
    MapWriter::open(file, version, stat.st_size == 0)
}

/// Returns what an earlier run has left of a file, and its contents; none if there is nothing that can be used.
pub(super) fn find_promise(
    state: &DestinationState,
    folder: BorrowedFd<'_>,
    names: &PartNames,
    version: SourceVersion,
) -> Option<(OwnedFd, PartPromise)> {
    let (part, stat) = open_own_file(folder, &names.part)?;
    if u64::try_from(stat.st_size) != Ok(version.size) {
        return None;
    }
    let (map, map_stat) = open_own_file(folder, &names.map)?;
    let length = usize::try_from(map_stat.st_size).ok()?;
    // A client of a server decides how many ranges a map has.
    let most = MAX_MAP_BYTES.min(state.budget().most() / 4);
    if length > most {
        return None;
    }
    let mut bytes = Vec::with_capacity(length);
    let limit = most as u64;
    File::from(map).take(limit).read_to_end(&mut bytes).ok()?;
    let ranges = parse_map(&bytes, version, origin_of(version))?;
    let promise = PartPromise {
        device: stat.st_dev,
        inode: stat.st_ino,
        ranges,
    };
    Some((part, promise))
}

fn open_own_file(folder: BorrowedFd<'_>, name: &[u8]) -> Option<(OwnedFd, Stat)> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = openat(folder, name, flags, Mode::empty()).ok()?;
    let stat = fstat(&file).ok()?;
    is_own_file(&stat).then_some((file, stat))
}

/// Returns true for a file that no other name and no other user can change.
fn is_own_file(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile
        && stat.st_nlink == 1
        && stat.st_uid == geteuid().as_raw()
}

/// Returns true if `name` is a name of the file that `stat` is of.
pub(super) fn has_name(folder: BorrowedFd<'_>, name: &[u8], stat: &Stat) -> bool {
    let named = statat(folder, name, AtFlags::SYMLINK_NOFOLLOW);
    named.is_ok_and(|named| (named.st_dev, named.st_ino) == (stat.st_dev, stat.st_ino))
}

/// The bytes that are read at a time.
const READ_BYTES: usize = 1 << 20;

/// Reads a range of a file, and passes each piece to `take`. Holes are not read: their zeros are passed.
///
/// # Errors
///
/// Fails if the file cannot be read or is shorter, if the work is cancelled, or as `take` does.
pub(super) fn read_range(
    state: &DestinationState,
    fd: &OwnedFd,
    start: u64,
    end: u64,
    mut take: impl FnMut(&[u8]) -> Result<(), String>,
) -> Result<(), String> {
    let mut buffer = vec![0; READ_BYTES];
    let mut offset = start;
    let mut data = start..start;
    while offset < end {
        state.check_running()?;
        if offset >= data.end {
            data = next_data(fd, offset, end);
        }
        if offset < data.start {
            let hole = zeros(data.start - offset);
            take(hole)?;
            offset += hole.len() as u64;
            continue;
        }
        let left = data.end - offset;
        let length = usize::try_from(left).map_or(READ_BYTES, |left| left.min(READ_BYTES));
        match retry_on_intr(|| pread(fd, &mut buffer[..length], offset)) {
            Ok(0) => return Err("cannot read it again: the file is shorter".to_owned()),
            Ok(count) => {
                take(&buffer[..count])?;
                offset += count as u64;
            }
            Err(errno) => {
                return Err(format!(
                    "cannot read it again: {}",
                    errno_text::<Errno>(errno)
                ));
            }
        }
    }
    Ok(())
}

/// The bytes of the header.
pub(super) const MAP_HEADER_BYTES: usize = 40;

/// The bytes of a record.
pub(super) const MAP_RECORD_BYTES: usize = 32;

/// The most bytes of a map: a million ranges. A longer map is not used.
pub(super) const MAX_MAP_BYTES: usize = 32 << 20;

const MAP_MAGIC: &[u8; 8] = b"rdcpmap1";

/// What a source's file was when a run began to send it. The map of a file of another size or time of modification is
/// not used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SourceVersion {
    /// The size.
    pub(super) size: u64,
    /// The time of the last modification.
    pub(super) modified: Timestamp,
    /// The time of the last change, which no program can set. It changes without the contents too, as by a new mode.
    pub(super) changed: Timestamp,
}

/// The ranges of a map.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct MappedRanges {
    /// The ranges, in order, without overlaps.
    pub(super) ranges: Vec<ByteRange>,
    /// True if every range was written since the machine was started and since the source's file was changed.
    pub(super) is_current: bool,
}

/// Appends to a map.
#[derive(Debug)]
pub(super) struct MapWriter {
    file: OwnedFd,
    seed: u64,
    origin: u64,
}

impl MapWriter {
    /// Continues the map in `file`, which is open to append; begins it if it is empty.
    ///
    /// # Errors
    ///
    /// Fails as write(2) does.
    pub(super) fn open(
        file: OwnedFd,
        version: SourceVersion,
        is_empty: bool,
    ) -> Result<Self, Errno> {
        let (header, seed) = map_header(version);
        let writer = Self {
            file,
            seed,
            origin: origin_of(version),
        };
        if is_empty {
            writer.write(&header)?;
        }
        Ok(writer)
    }

    /// Appends a range whose contents are written.
    ///
    /// # Errors
    ///
    /// Fails as write(2) does.
    pub(super) fn append(&self, range: ByteRange) -> Result<(), Errno> {
        self.write(&map_record(range, self.origin, self.seed))
    }

    fn write(&self, bytes: &[u8]) -> Result<(), Errno> {
        match retry_on_intr(|| write(&self.file, bytes))? {
            count if count == bytes.len() => Ok(()),
            _ => Err(Errno::NOSPC),
        }
    }
}

/// Returns the ranges in the bytes of a map, up to the first damage; none if the map is of another version of the file.
pub(super) fn parse_map(bytes: &[u8], version: SourceVersion, origin: u64) -> Option<MappedRanges> {
    let (expected, seed) = map_header(version);
    let records = bytes.strip_prefix(&expected[..])?;
    let mut ranges = Vec::new();
    let mut is_current = true;
    for bytes in records.chunks_exact(MAP_RECORD_BYTES) {
        let number = |index: usize| {
            let bytes = bytes[8 * index..][..8].try_into();
            u64::from_le_bytes(bytes.unwrap_or_default())
        };
        let range = ByteRange {
            start: number(0),
            end: number(1),
        };
        if number(3) != XxHash3_64::oneshot_with_seed(seed, &bytes[..24])
            || range.start >= range.end
            || range.end > version.size
        {
            break;
        }
        is_current &= number(2) == origin;
        ranges.push(range);
    }
    Some(MappedRanges {
        ranges: union(ranges),
        is_current,
    })
}

/// Returns a number for this start of the machine and the time of change of the source's file.
pub(super) fn origin_of(version: SourceVersion) -> u64 {
    let id = fs::read("/proc/sys/kernel/random/boot_id");
    // Without an id, no range is ever of this start, and each is digested again.
    let id = id.unwrap_or_else(|_| std::process::id().to_le_bytes().to_vec());
    let Timestamp {
        seconds,
        nanoseconds,
    } = version.changed;
    XxHash3_64::oneshot(&[&id, &seconds.to_le_bytes()[..], &nanoseconds.to_le_bytes()].concat())
}

/// Entry point of the fuzz target: any bytes are a map of a file of 1 GiB. Panics if a range is outside the file.
#[cfg(any(test, fuzzing))]
pub(crate) fn fuzz(bytes: &[u8]) {
    let version = SourceVersion {
        size: 1 << 30,
        modified: Timestamp::default(),
        changed: Timestamp::default(),
    };
    if let Some(found) = parse_map(bytes, version, 0) {
        let is_inside = |range: &ByteRange| range.start < range.end && range.end <= version.size;
        assert!(found.ranges.iter().all(is_inside));
        assert!(found.ranges.is_sorted_by(|a, b| a.end < b.start));
    }
}

/// Returns a map with one range as another start of the machine would have written it.
#[cfg(test)]
pub(super) fn map_of_another_boot(map: &[u8]) -> Vec<u8> {
    let (header, rest) = map.split_at(MAP_HEADER_BYTES);
    let seed = XxHash3_64::oneshot(&header[..32]);
    let mut bytes = rest[..MAP_RECORD_BYTES].to_vec();
    bytes[16] ^= 1;
    let check = XxHash3_64::oneshot_with_seed(seed, &bytes[..24]);
    bytes[24..].copy_from_slice(&check.to_le_bytes());
    [header, &bytes].concat()
}

/// Sorts ranges and joins those that touch.
fn union(mut ranges: Vec<ByteRange>) -> Vec<ByteRange> {
    ranges.sort_unstable_by_key(|range| range.start);
    let mut joined: Vec<ByteRange> = Vec::new();
    for range in ranges {
        match joined.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => joined.push(range),
        }
    }
    joined
}

/// Returns the header of a map, and its check.
fn map_header(version: SourceVersion) -> ([u8; MAP_HEADER_BYTES], u64) {
    let mut bytes = [0; MAP_HEADER_BYTES];
    bytes[..8].copy_from_slice(MAP_MAGIC);
    bytes[8..16].copy_from_slice(&version.size.to_le_bytes());
    bytes[16..24].copy_from_slice(&version.modified.seconds.to_le_bytes());
    bytes[24..28].copy_from_slice(&version.modified.nanoseconds.to_le_bytes());
    let check = XxHash3_64::oneshot(&bytes[..32]);
    bytes[32..].copy_from_slice(&check.to_le_bytes());
    (bytes, check)
}

fn map_record(range: ByteRange, origin: u64, seed: u64) -> [u8; MAP_RECORD_BYTES] {
    let mut bytes = [0; MAP_RECORD_BYTES];
    bytes[..8].copy_from_slice(&range.start.to_le_bytes());
    bytes[8..16].copy_from_slice(&range.end.to_le_bytes());
    bytes[16..24].copy_from_slice(&origin.to_le_bytes());
    let check = XxHash3_64::oneshot_with_seed(seed, &bytes[..24]);
    bytes[24..].copy_from_slice(&check.to_le_bytes());
    bytes
}

#[cfg(test)]
mod tests {
    use std::{fs, os::fd::AsFd};

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_second_copy_and_planted_files_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let outside = tempfile::NamedTempFile::new().unwrap();
        fs::write(outside.path(), b"outside").unwrap();
        let root = fs::File::open(folder.path()).unwrap();
        let part = folder.path().join(".a.rdcp-part");
        std::os::unix::fs::symlink(outside.path(), &part).unwrap();
        let first = open_part(root.as_fd(), b".a.rdcp-part").unwrap();
        assert!(fs::symlink_metadata(&part).unwrap().is_file());
        let second = open_part(root.as_fd(), b".a.rdcp-part").unwrap_err();
        assert_eq!(second.into_text(), "another copy writes it");
        drop(first);
        fs::remove_file(&part).unwrap();
        let twice = folder.path().join("twice");
        fs::write(&twice, b"kept").unwrap();
        fs::hard_link(&twice, &part).unwrap();
        let own = open_part(root.as_fd(), b".a.rdcp-part").unwrap();
        rustix::fs::ftruncate(&own, 0).unwrap();
        assert_eq!(fs::read(&twice).unwrap(), b"kept");
        assert_eq!(fs::read(outside.path()).unwrap(), b"outside");
    }

    const SIZE: u64 = 1000;

    fn version() -> SourceVersion {
        SourceVersion {
            size: SIZE,
            modified: Timestamp {
                seconds: -5,
                nanoseconds: 7,
            },
            changed: Timestamp {
                seconds: 100,
                nanoseconds: 8,
            },
        }
    }

    fn range(start: u64, end: u64) -> ByteRange {
        ByteRange { start, end }
    }

    fn map(ranges: &[(ByteRange, u64)]) -> Vec<u8> {
        let (header, seed) = map_header(version());
        let records = ranges
            .iter()
            .map(|&(range, origin)| map_record(range, origin, seed));
        records.fold(header.to_vec(), |map, record| {
            [map, record.to_vec()].concat()
        })
    }

    #[test]
    fn ranges_are_joined_and_remember_their_origin() {
        let bytes = map(&[(range(10, 20), 1), (range(30, 40), 1), (range(20, 30), 1)]);
        let found = parse_map(&bytes, version(), 1).unwrap();
        assert_eq!(found.ranges, [range(10, 40)]);
        assert!(found.is_current);
        let bytes = map(&[(range(10, 20), 1), (range(30, 40), 2)]);
        let found = parse_map(&bytes, version(), 2).unwrap();
        assert_eq!(found.ranges, [range(10, 20), range(30, 40)]);
        assert!(!found.is_current);
    }

    #[test]
    fn the_map_of_another_version_is_not_used() {
        let bytes = map(&[(range(10, 20), 1)]);
        let other = SourceVersion {
            size: SIZE + 1,
            ..version()
        };
        assert_eq!(parse_map(&bytes, other, 1), None);
        assert_eq!(
            parse_map(&bytes[..MAP_HEADER_BYTES - 1], version(), 1),
            None
        );
    }

    #[test]
    fn a_file_that_was_changed_has_another_origin() {
        let mut other = version();
        other.changed.nanoseconds += 1;
        assert_eq!(origin_of(version()), origin_of(version()));
        assert_ne!(origin_of(version()), origin_of(other));
    }

    #[test]
    fn a_range_outside_the_file_is_damage() {
        let bytes = map(&[
            (range(10, 20), 1),
            (range(990, 1001), 1),
            (range(30, 40), 1),
        ]);
        assert_eq!(
            parse_map(&bytes, version(), 1).unwrap().ranges,
            [range(10, 20)]
        );
    }

    proptest! {
        /// Whatever is damaged or cut off, no range is found that was not written.
        #[test]
        fn damage_adds_no_range(
            starts in prop::collection::vec(0..SIZE - 50, 0..20),
            position in 0..700_usize,
            value in 0..=255_u8,
            cut in 0..700_usize,
        ) {
            let written: Vec<_> = starts.iter().map(|&start| (range(start, start + 50), 1)).collect();
            let mut bytes = map(&written);
            if let Some(byte) = bytes.get_mut(position) {
                *byte = value;
            }
            bytes.truncate(cut);
            let found = parse_map(&bytes, version(), 1).map(|found| found.ranges).unwrap_or_default();
            for one in found {
                for at in one.start..one.end {
                    prop_assert!(written.iter().any(|(range, _)| range.start <= at && at < range.end));
                }
            }
        }

        #[test]
        fn any_bytes_are_parsed(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            fuzz(&bytes);
        }
    }
}
