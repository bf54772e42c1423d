//! The map of a file that arrives in parts: which ranges of its contents are written. A later run continues with it.
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

use std::{fs, os::fd::OwnedFd};

use rustix::io::{Errno, retry_on_intr, write};
use twox_hash::XxHash3_64;

use crate::copy::{metadata::Timestamp, question::ByteRange};

/// The bytes of the header.
pub(in crate::copy::destination) const HEADER_BYTES: usize = 40;

/// The bytes of a record.
pub(in crate::copy::destination) const RECORD_BYTES: usize = 32;

/// The most bytes of a map: a million ranges. A longer map is not used.
pub(in crate::copy::destination) const MAX_MAP_BYTES: usize = 32 << 20;

const MAGIC: &[u8; 8] = b"rdcpmap1";

/// What a source's file was when a run began to send it. The map of a file of another size or time of modification is
/// not used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::copy::destination) struct SourceVersion {
    /// The size.
    pub(in crate::copy::destination) size: u64,
    /// The time of the last modification.
    pub(in crate::copy::destination) modified: Timestamp,
    /// The time of the last change, which no program can set. It changes without the contents too, as by a new mode.
    pub(in crate::copy::destination) changed: Timestamp,
}

/// The ranges of a map.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::copy::destination) struct MappedRanges {
    /// The ranges, in order, without overlaps.
    pub(in crate::copy::destination) ranges: Vec<ByteRange>,
    /// True if every range was written since the machine was started and since the source's file was changed.
    pub(in crate::copy::destination) is_current: bool,
}

/// Appends to a map.
#[derive(Debug)]
pub(in crate::copy::destination) struct MapWriter {
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
    pub(in crate::copy::destination) fn open(
        file: OwnedFd,
        version: SourceVersion,
        is_empty: bool,
    ) -> Result<Self, Errno> {
        let (header, seed) = header(version);
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
    pub(in crate::copy::destination) fn append(&self, range: ByteRange) -> Result<(), Errno> {
        self.write(&record(range, self.origin, self.seed))
    }

    fn write(&self, bytes: &[u8]) -> Result<(), Errno> {
        match retry_on_intr(|| write(&self.file, bytes))? {
            count if count == bytes.len() => Ok(()),
            _ => Err(Errno::NOSPC),
        }
    }
}

/// Returns the ranges in the bytes of a map, up to the first damage; none if the map is of another version of the file.
pub(in crate::copy::destination) fn parse(
    bytes: &[u8],
    version: SourceVersion,
    origin: u64,
) -> Option<MappedRanges> {
    let (expected, seed) = header(version);
    let records = bytes.strip_prefix(&expected[..])?;
    let mut ranges = Vec::new();
    let mut is_current = true;
    for bytes in records.chunks_exact(RECORD_BYTES) {
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
pub(in crate::copy::destination) fn origin_of(version: SourceVersion) -> u64 {
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
    if let Some(found) = parse(bytes, version, 0) {
        let is_inside = |range: &ByteRange| range.start < range.end && range.end <= version.size;
        assert!(found.ranges.iter().all(is_inside));
        assert!(found.ranges.is_sorted_by(|a, b| a.end < b.start));
    }
}

/// Returns a map with one range as another start of the machine would have written it.
#[cfg(test)]
pub(in crate::copy::destination) fn of_another_boot(map: &[u8]) -> Vec<u8> {
    let (header, rest) = map.split_at(HEADER_BYTES);
    let seed = XxHash3_64::oneshot(&header[..32]);
    let mut bytes = rest[..RECORD_BYTES].to_vec();
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
fn header(version: SourceVersion) -> ([u8; HEADER_BYTES], u64) {
    let mut bytes = [0; HEADER_BYTES];
    bytes[..8].copy_from_slice(MAGIC);
    bytes[8..16].copy_from_slice(&version.size.to_le_bytes());
    bytes[16..24].copy_from_slice(&version.modified.seconds.to_le_bytes());
    bytes[24..28].copy_from_slice(&version.modified.nanoseconds.to_le_bytes());
    let check = XxHash3_64::oneshot(&bytes[..32]);
    bytes[32..].copy_from_slice(&check.to_le_bytes());
    (bytes, check)
}

fn record(range: ByteRange, origin: u64, seed: u64) -> [u8; RECORD_BYTES] {
    let mut bytes = [0; RECORD_BYTES];
    bytes[..8].copy_from_slice(&range.start.to_le_bytes());
    bytes[8..16].copy_from_slice(&range.end.to_le_bytes());
    bytes[16..24].copy_from_slice(&origin.to_le_bytes());
    let check = XxHash3_64::oneshot_with_seed(seed, &bytes[..24]);
    bytes[24..].copy_from_slice(&check.to_le_bytes());
    bytes
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

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
        let (header, seed) = header(version());
        let records = ranges
            .iter()
            .map(|&(range, origin)| record(range, origin, seed));
        records.fold(header.to_vec(), |map, record| {
            [map, record.to_vec()].concat()
        })
    }

    #[test]
    fn ranges_are_joined_and_remember_their_origin() {
        let bytes = map(&[(range(10, 20), 1), (range(30, 40), 1), (range(20, 30), 1)]);
        let found = parse(&bytes, version(), 1).unwrap();
        assert_eq!(found.ranges, [range(10, 40)]);
        assert!(found.is_current);
        let bytes = map(&[(range(10, 20), 1), (range(30, 40), 2)]);
        let found = parse(&bytes, version(), 2).unwrap();
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
        assert_eq!(parse(&bytes, other, 1), None);
        assert_eq!(parse(&bytes[..HEADER_BYTES - 1], version(), 1), None);
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
        assert_eq!(parse(&bytes, version(), 1).unwrap().ranges, [range(10, 20)]);
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
            let found = parse(&bytes, version(), 1).map(|found| found.ranges).unwrap_or_default();
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
