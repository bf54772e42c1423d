//! The temporary file and the map of a file that arrives in parts, and what an earlier run has left of them.
//!
//! The map says which ranges of the contents are written. A later run continues with it.
//!
//! ```text
//! header  magic 8 | size u64 | seconds i64 | nanoseconds u32 | 0 u32 | owner 16 | check 16
//! record  start u64 | end u64 | origin u64 | check 16
//! ```
//!
//! All numbers are little-endian. `owner` is the id of a client of a server, or zero. The check of the header is an
//! HMAC-BLAKE2s of the bytes before it and of the name of the map, that of a record one of the check of the header and
//! the bytes before it. Their secret is the owner's ([`PartOwner`]): the map of another client, of another file or from
//! another hand is not used. `origin` stands for one start of the machine and one time of change of the source's file: after
//! a power failure, a range may be in the map though its contents did not reach the disk; and a program may change a
//! file and set its time of modification back, but not its time of change.

use std::{
    fs::{self, File},
    io::Read,
    ops::Range,
    os::fd::{BorrowedFd, OwnedFd},
};

use rdpipe_digest::xxh3_64;
use rustix::{
    fs::{
        AtFlags, FallocateFlags, FileType, FlockOperation, Mode, OFlags, Stat, fallocate, flock,
        fstat, ftruncate, openat, statat, unlinkat,
    },
    io::{Errno, pread, pwrite, retry_on_intr, write},
    process::geteuid,
};

use super::{
    attributes::PRIVATE_MODE,
    in_place::PlacingFault,
    state::{DestinationState, errno_text},
};
#[cfg(any(test, fuzzing))]
use crate::copy::path::EntryName;
use crate::{
    copy::{
        holes::{next_data, zeros},
        metadata::{Timestamp, changed},
        question::ByteRange,
        temporary_names::{OWNER_BYTES, PartNames, PartOwner},
    },
    key::keyed_digest,
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
    /// The time of its last change: what was written afterwards has not been compared.
    changed: Timestamp,
    pub(super) ranges: MappedRanges,
}

/// Opens the temporary file of a file, and locks it against other copies.
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
pub(super) fn open_map(
    folder: BorrowedFd<'_>,
    subject: MapSubject<'_>,
) -> Result<MapWriter, Errno> {
    let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE | OFlags::NOFOLLOW;
    let flags = flags | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let name = &subject.names.map[..];
    let file = openat(folder, name, flags, Mode::from_raw_mode(PRIVATE_MODE))?;
    let stat = fstat(&file)?;
    if !is_own_file(&stat) {
        return Err(Errno::EXIST);
    }
    MapWriter::open(file, subject, stat.st_size == 0)
}

/// Returns what an earlier run has left of a file, and its contents; none if there is nothing that can be used.
pub(super) fn find_promise(
    state: &DestinationState,
    folder: BorrowedFd<'_>,
    subject: MapSubject<'_>,
) -> Option<(OwnedFd, PartPromise)> {
    let MapSubject { names, version, .. } = subject;
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
    let ranges = parse_map(&bytes, subject, origin_of(version))?;
    let promise = PartPromise {
        device: stat.st_dev,
        inode: stat.st_ino,
        changed: changed(&stat),
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

/// Makes zeros of everything in a temporary file but these ranges, which are in order: the source sends no holes. The
/// file has `size` bytes afterwards.
pub(super) fn clear_around(
    state: &DestinationState,
    part: &OwnedFd,
    ranges: &[ByteRange],
    size: u64,
) -> Result<(), String> {
    let mut offset = 0;
    for range in ranges {
        clear(state, part, offset..range.start)?;
        offset = range.end;
    }
    ftruncate(part, offset)
        .and_then(|()| ftruncate(part, size))
        .map_err(errno_text)
}

/// Makes a hole of a range. Where the file system makes none, writes zeros over the data.
fn clear(state: &DestinationState, part: &OwnedFd, range: Range<u64>) -> Result<(), String> {
    if range.is_empty() {
        return Ok(());
    }
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    if fallocate(part, flags, range.start, range.end - range.start).is_ok() {
        return Ok(());
    }
    let mut data = range.start..range.start;
    while data.start < range.end {
        state.check_running()?;
        if data.is_empty() {
            data = next_data(part, data.end, range.end);
            continue;
        }
        let zeros = zeros(data.end - data.start);
        let written = retry_on_intr(|| pwrite(part, zeros, data.start));
        data.start +=
            written.map_err(|errno| format!("cannot write: {}", errno_text(errno)))? as u64;
    }
    Ok(())
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

pub(super) const MAP_HEADER_BYTES: usize = 64;

pub(super) const MAP_RECORD_BYTES: usize = 40;

/// The most bytes of a map: a million ranges. A longer map is not used.
pub(super) const MAX_MAP_BYTES: usize = 40 << 20;

const MAP_MAGIC: &[u8; 8] = b"rdcpmap2";

const CHECK_BYTES: usize = 16;

/// A part of an HMAC-BLAKE2s: none of another owner's making is ever equal.
type MapCheck = [u8; CHECK_BYTES];

#[derive(Debug, Clone, Copy)]
pub(super) struct MapSubject<'a> {
    /// Whose unfinished file it is.
    pub(super) owner: &'a PartOwner,
    /// The temporary names of the file.
    pub(super) names: &'a PartNames,
    /// The source's file.
    pub(super) version: SourceVersion,
}

impl MapSubject<'_> {
    fn header(&self) -> ([u8; MAP_HEADER_BYTES], MapCheck) {
        let SourceVersion { size, modified, .. } = self.version;
        let mut bytes = [0; MAP_HEADER_BYTES];
        bytes[..8].copy_from_slice(MAP_MAGIC);
        bytes[8..16].copy_from_slice(&size.to_le_bytes());
        bytes[16..24].copy_from_slice(&modified.seconds.to_le_bytes());
        bytes[24..28].copy_from_slice(&modified.nanoseconds.to_le_bytes());
        bytes[32..32 + OWNER_BYTES].copy_from_slice(self.owner.id());
        let checked = MAP_HEADER_BYTES - CHECK_BYTES;
        let check = check(self.owner, &[&bytes[..checked], &self.names.map]);
        bytes[checked..].copy_from_slice(&check);
        (bytes, check)
    }
}

/// Returns the check of the bytes of `pieces`.
fn check(owner: &PartOwner, pieces: &[&[u8]]) -> MapCheck {
    let mut check = [0; CHECK_BYTES];
    check.copy_from_slice(&keyed_digest(owner.secret(), &pieces.concat())[..CHECK_BYTES]);
    check
}

/// What a source's file was when a run began to send it. The map of a file of another size or time of modification is
/// not used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SourceVersion {
    pub(super) size: u64,
    /// The time of the last modification.
    pub(super) modified: Timestamp,
    /// The time of the last change, which no program can set. It changes without the contents too, as by a new mode.
    pub(super) changed: Timestamp,
}

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
    owner: PartOwner,
    header_check: MapCheck,
    origin: u64,
}

impl MapWriter {
    /// Continues the map in `file`, which is open to append; begins it if it is empty.
    pub(super) fn open(
        file: OwnedFd,
        subject: MapSubject<'_>,
        is_empty: bool,
    ) -> Result<Self, Errno> {
        let (header, header_check) = subject.header();
        let writer = Self {
            file,
            owner: subject.owner.clone(),
            header_check,
            origin: origin_of(subject.version),
        };
        if is_empty {
            writer.write(&header)?;
        }
        Ok(writer)
    }

    /// Appends a range whose contents are written.
    pub(super) fn append(&self, range: ByteRange) -> Result<(), Errno> {
        let record = map_record(range, self.origin, &self.owner, &self.header_check);
        self.write(&record)
    }

    fn write(&self, bytes: &[u8]) -> Result<(), Errno> {
        match retry_on_intr(|| write(&self.file, bytes))? {
            count if count == bytes.len() => Ok(()),
            _ => Err(Errno::NOSPC),
        }
    }
}

/// Returns the ranges in the bytes of a map, up to the first damage; none if the map is of something else: another
/// version of the file, another file or another owner.
pub(super) fn parse_map(
    bytes: &[u8],
    subject: MapSubject<'_>,
    origin: u64,
) -> Option<MappedRanges> {
    let (expected, header_check) = subject.header();
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
        let record = map_record(range, number(2), subject.owner, &header_check);
        let is_inside = range.start < range.end && range.end <= subject.version.size;
        if bytes != record || !is_inside {
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
    xxh3_64(&[&id, &seconds.to_le_bytes()[..], &nanoseconds.to_le_bytes()].concat())
}

/// Entry point of the fuzz target: any bytes are a map of a file of 1 GiB. Panics if a range is outside the file.
#[cfg(any(test, fuzzing))]
pub(crate) fn fuzz(bytes: &[u8]) {
    let version = SourceVersion {
        size: 1 << 30,
        modified: Timestamp::default(),
        changed: Timestamp::default(),
    };
    let (owner, name) = (PartOwner::user(), EntryName::try_from(b"a".to_vec()));
    let names = PartNames::of(&name.expect("a name"), &owner);
    let subject = MapSubject {
        owner: &owner,
        names: &names,
        version,
    };
    if let Some(found) = parse_map(bytes, subject, 0) {
        let is_inside = |range: &ByteRange| range.start < range.end && range.end <= version.size;
        assert!(found.ranges.iter().all(is_inside));
        assert!(found.ranges.is_sorted_by(|a, b| a.end < b.start));
    }
}

/// Returns a map of the user of an agent with one range, as another start of the machine would have written it.
#[cfg(test)]
pub(super) fn map_of_another_boot(map: &[u8]) -> Vec<u8> {
    let (header, rest) = map.split_at(MAP_HEADER_BYTES);
    let mut bytes = rest[..MAP_RECORD_BYTES].to_vec();
    bytes[16] ^= 1;
    let header_check = &header[MAP_HEADER_BYTES - CHECK_BYTES..];
    let check = check(&PartOwner::user(), &[header_check, &bytes[..24]]);
    bytes[24..].copy_from_slice(&check);
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

fn map_record(
    range: ByteRange,
    origin: u64,
    owner: &PartOwner,
    header_check: &MapCheck,
) -> [u8; MAP_RECORD_BYTES] {
    let mut bytes = [0; MAP_RECORD_BYTES];
    bytes[..8].copy_from_slice(&range.start.to_le_bytes());
    bytes[8..16].copy_from_slice(&range.end.to_le_bytes());
    bytes[16..24].copy_from_slice(&origin.to_le_bytes());
    let check = check(owner, &[header_check, &bytes[..24]]);
    bytes[24..].copy_from_slice(&check);
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

    fn names() -> PartNames {
        PartNames::of(&b"a".to_vec().try_into().unwrap(), &PartOwner::user())
    }

    /// Returns the ranges of a map of the user of an agent.
    fn parsed(bytes: &[u8], version: SourceVersion, origin: u64) -> Option<MappedRanges> {
        let (owner, names) = (&PartOwner::user(), &names());
        let subject = MapSubject {
            owner,
            names,
            version,
        };
        parse_map(bytes, subject, origin)
    }

    fn map(ranges: &[(ByteRange, u64)]) -> Vec<u8> {
        map_of(&PartOwner::user(), &names(), ranges)
    }

    fn map_of(owner: &PartOwner, names: &PartNames, ranges: &[(ByteRange, u64)]) -> Vec<u8> {
        let version = version();
        let subject = MapSubject {
            owner,
            names,
            version,
        };
        let (header, check) = subject.header();
        let records = ranges
            .iter()
            .map(|&(range, origin)| map_record(range, origin, owner, &check));
        records.fold(header.to_vec(), |map, record| {
            [map, record.to_vec()].concat()
        })
    }

    #[test]
    fn ranges_are_joined_and_remember_their_origin() {
        let bytes = map(&[(range(10, 20), 1), (range(30, 40), 1), (range(20, 30), 1)]);
        let found = parsed(&bytes, version(), 1).unwrap();
        assert_eq!(found.ranges, [range(10, 40)]);
        assert!(found.is_current);
        let bytes = map(&[(range(10, 20), 1), (range(30, 40), 2)]);
        let found = parsed(&bytes, version(), 2).unwrap();
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
        assert_eq!(parsed(&bytes, other, 1), None);
        assert_eq!(parsed(&bytes[..MAP_HEADER_BYTES - 1], version(), 1), None);
    }

    #[test]
    fn the_map_of_another_owner_or_of_another_file_is_not_used() {
        let client = |name: &str, secret: u8| {
            let key = crate::Key::parse(format!("a key {secret}")).unwrap();
            PartOwner::client(name, &key)
        };
        let (alice, bob, renewed) = (client("alice", 1), client("bob", 2), client("alice", 3));
        let file = |text: &str, owner| {
            let name = text.as_bytes().to_vec().try_into().unwrap();
            PartNames::of(&name, owner)
        };
        let own = file("a", &alice);
        let bytes = map_of(&alice, &own, &[(range(10, 20), 1)]);
        let found = |bytes: &[u8], owner: &PartOwner, names: &PartNames| {
            let version = version();
            let subject = MapSubject {
                owner,
                names,
                version,
            };
            parse_map(bytes, subject, 1).map(|found| found.ranges)
        };
        assert_eq!(found(&bytes, &alice, &own), Some(vec![range(10, 20)]));
        let user = PartOwner::user();
        for owner in [&bob, &renewed, &user] {
            for names in [&own, &file("a", owner)] {
                assert_eq!(found(&bytes, owner, names), None);
                let forged = map_of(owner, names, &[(range(0, SIZE), 1)]);
                assert_eq!(found(&forged, &alice, &own), None);
            }
        }
        assert_eq!(found(&bytes, &alice, &file("b", &alice)), None);
        // A record of one map in another one.
        let other = map_of(&alice, &file("b", &alice), &[(range(0, SIZE), 1)]);
        let mixed = [&bytes[..], &other[MAP_HEADER_BYTES..]].concat();
        assert_eq!(found(&mixed, &alice, &own), Some(vec![range(10, 20)]));
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
            parsed(&bytes, version(), 1).unwrap().ranges,
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
            let found = parsed(&bytes, version(), 1).map(|found| found.ranges).unwrap_or_default();
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
