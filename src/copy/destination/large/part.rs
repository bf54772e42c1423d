//! The temporary file and the map of a file that arrives in parts, and what an earlier run has left of them.

use std::{
    fs::File,
    io::Read,
    os::fd::{BorrowedFd, OwnedFd},
};

use rustix::{
    fs::{
        AtFlags, FileType, FlockOperation, Mode, OFlags, Stat, flock, fstat, openat, statat,
        unlinkat,
    },
    io::{Errno, pread, retry_on_intr},
    process::geteuid,
};
use twox_hash::XxHash3_64;

use super::map::{MAX_MAP_BYTES, MapWriter, MappedRanges, SourceVersion, origin_of, parse};
use crate::copy::{
    destination::{
        attributes::PRIVATE_MODE,
        in_place::PlacingFault,
        state::{DestinationState, errno_text},
    },
    path::{EntryName, MAX_NAME_BYTES},
};

/// Files of at least this size are kept when they are not complete. To send fewer bytes again takes less time than to
/// start the copy.
pub(in crate::copy::destination) const MIN_KEPT_BYTES: u64 = 4 << 20;

/// The most unfinished files that the source is told of and that are not continued yet.
pub(in crate::copy::destination) const MAX_PROMISES: usize = 4096;

const PART_SUFFIX: &[u8] = b".rdcp-part";
const MAP_SUFFIX: &[u8] = b".rdcp-map";

/// The bytes that stand for the rest of a name that is too long: a hyphen and 16 hexadecimal digits.
const HASH_BYTES: usize = 17;

/// How often the temporary file is opened again that another process removes meanwhile.
const OPEN_TRIES: usize = 8;

/// The temporary names of a file: `.NAME.rdcp-part` and `.NAME.rdcp-map`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::copy::destination) struct PartNames {
    /// The name of the contents.
    pub(in crate::copy::destination) part: Vec<u8>,
    /// The name of the map.
    pub(in crate::copy::destination) map: Vec<u8>,
}

/// What the source was told that an earlier run has left of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::copy::destination) struct PartPromise {
    device: u64,
    inode: u64,
    /// The ranges that are written.
    pub(in crate::copy::destination) ranges: MappedRanges,
}

impl PartNames {
    /// Returns the temporary names of the file `name`. A name that would become too long is cut, and gets a hash.
    pub(in crate::copy::destination) fn of(name: &EntryName) -> Self {
        let name = name.as_bytes();
        let room = MAX_NAME_BYTES - 1 - PART_SUFFIX.len();
        let stem = if name.len() <= room {
            name.to_vec()
        } else {
            let hash = format!("-{:016x}", XxHash3_64::oneshot(name));
            [&name[..room - HASH_BYTES], hash.as_bytes()].concat()
        };
        let with = |suffix: &[u8]| [b".", &stem[..], suffix].concat();
        Self {
            part: with(PART_SUFFIX),
            map: with(MAP_SUFFIX),
        }
    }
}

/// Returns the name of the file that a name of [`PartNames`] belongs to, as far as it was not cut; none for other
/// names.
pub(in crate::copy::destination) fn name_of_part(name: &[u8]) -> Option<&[u8]> {
    let stem = name.strip_prefix(b".")?;
    stem.strip_suffix(PART_SUFFIX)
        .or_else(|| stem.strip_suffix(MAP_SUFFIX))
}

/// Opens the temporary file of a file, and locks it against other copies.
///
/// # Errors
///
/// Fails with the reason for the user.
pub(in crate::copy::destination) fn open_part(
    folder: BorrowedFd<'_>,
    name: &[u8],
) -> Result<OwnedFd, PlacingFault> {
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
pub(in crate::copy::destination) fn open_map(
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
pub(in crate::copy::destination) fn find_promise(
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
    if length > MAX_MAP_BYTES {
        return None;
    }
    let mut bytes = Vec::with_capacity(length);
    let limit = MAX_MAP_BYTES as u64;
    File::from(map).take(limit).read_to_end(&mut bytes).ok()?;
    let ranges = parse(&bytes, version, origin_of(version))?;
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
pub(in crate::copy::destination) fn has_name(
    folder: BorrowedFd<'_>,
    name: &[u8],
    stat: &Stat,
) -> bool {
    let named = statat(folder, name, AtFlags::SYMLINK_NOFOLLOW);
    named.is_ok_and(|named| (named.st_dev, named.st_ino) == (stat.st_dev, stat.st_ino))
}

/// The bytes that are read at a time.
const READ_BYTES: usize = 1 << 20;

/// Reads a range of a file.
///
/// # Errors
///
/// Fails if the file cannot be read or is shorter, or the work is cancelled.
pub(in crate::copy::destination) fn read_range(
    state: &DestinationState,
    fd: &OwnedFd,
    start: u64,
    end: u64,
    mut take: impl FnMut(&[u8]),
) -> Result<(), String> {
    let mut buffer = vec![0; READ_BYTES];
    let mut offset = start;
    while offset < end {
        if state.halt.is_cancelled() {
            return Err("the copy was ended".to_owned());
        }
        let length = usize::try_from(end - offset).map_or(READ_BYTES, |left| left.min(READ_BYTES));
        match retry_on_intr(|| pread(fd, &mut buffer[..length], offset)) {
            Ok(0) => return Err("cannot read it again: the file is shorter".to_owned()),
            Ok(count) => {
                take(&buffer[..count]);
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

#[cfg(test)]
mod tests {
    use std::{fs, os::fd::AsFd};

    use super::*;

    #[test]
    fn temporary_names_are_short_enough_and_known() {
        for length in [1, 243, 244, 245, 255] {
            let name = vec![b'n'; length].try_into().unwrap();
            let names = PartNames::of(&name);
            assert!(names.part.len() <= MAX_NAME_BYTES);
            assert!(name_of_part(&names.part).is_some() && name_of_part(&names.map).is_some());
        }
        let names = PartNames::of(&b"a.rdcp-map".to_vec().try_into().unwrap());
        assert_eq!(name_of_part(&names.part), Some(&b"a.rdcp-map"[..]));
        assert_eq!(name_of_part(b"a.rdcp-part"), None);
        let long = |last| {
            let mut name = vec![b'n'; 254];
            name.push(last);
            PartNames::of(&name.try_into().unwrap())
        };
        assert_ne!(long(b'a'), long(b'b'));
    }

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
}
