//! A large or sparse file, whose ranges several lanes may send, and what a lane sends of it.

use std::{
    os::fd::{AsFd, OwnedFd},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use rustix::{
    fs::{SeekFrom, Stat, fstat, seek},
    io::{Errno, pread, retry_on_intr},
};

use super::{
    jobs::SourceFolder,
    lane::LaneSender,
    lane::OpenedFile,
    state::{too_long, unreadable},
};
use crate::copy::{
    block_digest::{BlockDigest, DigestKey},
    holes::{next_data, zeros},
    job::CopyError,
    metadata::{Metadata, changed, content_size, size},
    path::EntryName,
    question::{AnswerKind, ByteRange, ComparedBlock},
    record::{LaneRecord, LargeFile},
};

/// The bytes of a range that a lane takes at a time: enough that taking one costs nothing, few enough that the lanes
/// end at the same time.
pub(crate) const RANGE_BYTES: u64 = 8 << 20;

/// Files of at least this size may be sent by all lanes.
pub(crate) const SHARED_BYTES: u64 = 64 << 20;

/// A file that is sent in parts.
pub(crate) struct LargeSource {
    /// What every lane announces.
    pub(crate) announcement: LargeFile,
    pub(crate) folder: Arc<SourceFolder>,
    /// The name in the folder.
    pub(crate) name: EntryName,
    /// The file.
    pub(crate) fd: OwnedFd,
    /// What fstat(2) said when the file was opened.
    pub(crate) stat: Stat,
    state: Mutex<LargeState>,
}

/// A range that a lane sends, and the hole in front of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NextRange {
    /// The offset where the hole begins; that of the range itself if there is none.
    pub(crate) hole_start: u64,
    pub(crate) range: ByteRange,
}

struct LargeState {
    extents: Extents,
    /// The offset behind the last range. What is between it and the next range is a hole, unless an earlier run has
    /// sent something of the file.
    reached: u64,
    /// The number of lanes that have a range.
    workers: usize,
    /// The bytes of all parts.
    sent: u64,
    is_exhausted: bool,
    broken: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ReadOutcome {
    /// The file is as it was when it was opened.
    Whole,
    /// The file changed: every byte was read, but not all at one time.
    Changed,
    /// The file could not be read, and why.
    Broken(String),
}

impl LargeSource {
    /// Returns a file of which the destination has ranges.
    pub(crate) fn new(
        announcement: LargeFile,
        folder: Arc<SourceFolder>,
        name: EntryName,
        (fd, stat): (OwnedFd, Stat),
        found: ComparedRanges,
    ) -> Self {
        let state = LargeState {
            extents: Extents::new(announcement.size, found),
            reached: 0,
            workers: 0,
            sent: 0,
            is_exhausted: false,
            broken: None,
        };
        Self {
            announcement,
            folder,
            name,
            fd,
            stat,
            state: Mutex::new(state),
        }
    }

    /// Makes the caller one of those who send the file, and returns its first range; none if no range is left.
    pub(crate) fn join(&self) -> Option<NextRange> {
        let mut state = self.state();
        let range = state.next(&self.fd)?;
        state.workers += 1;
        Some(range)
    }

    /// Makes the caller one of those who send the file, without a range.
    pub(crate) fn own(&self) {
        self.state().workers += 1;
    }

    pub(crate) fn next(&self) -> Option<NextRange> {
        self.state().next(&self.fd)
    }

    /// Counts the bytes of a part.
    pub(crate) fn sent(&self, bytes: u64) {
        self.state().sent += bytes;
    }

    /// Notes that the file cannot be read. Returns true if other lanes still send ranges of it.
    pub(crate) fn fail(&self, why: String) -> bool {
        let mut state = self.state();
        state.is_exhausted = true;
        state.broken.get_or_insert(why);
        state.workers > 1
    }

    /// Returns the record for the destination if the file cannot be read.
    pub(crate) fn broken_end(&self) -> LaneRecord {
        let id = self.announcement.id;
        if fstat(&self.fd).is_ok_and(|stat| is_same(&stat, &self.stat)) {
            let content_bytes = None;
            LaneRecord::LargeFileEnd { id, content_bytes }
        } else {
            LaneRecord::LargeFileChanged { id }
        }
    }

    /// Ends the caller's part. Returns true if it was the last one: then no range is left.
    pub(crate) fn leave(&self) -> bool {
        let mut state = self.state();
        state.workers -= 1;
        state.workers == 0 && state.is_exhausted
    }

    /// Returns the bytes of all parts, and how the file was read.
    pub(crate) fn outcome(&self) -> (u64, ReadOutcome) {
        let state = self.state();
        let outcome = match (&state.broken, fstat(&self.fd)) {
            (Some(why), _) => ReadOutcome::Broken(why.clone()),
            (None, Ok(stat)) if is_same(&stat, &self.stat) => ReadOutcome::Whole,
            (None, _) => ReadOutcome::Changed,
        };
        (state.sent, outcome)
    }

    fn state(&self) -> MutexGuard<'_, LargeState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LargeState {
    fn next(&mut self, file: impl AsFd) -> Option<NextRange> {
        if self.is_exhausted {
            return None;
        }
        let range = self.extents.next(file);
        match range {
            Ok(Some(range)) => {
                let hole_start = std::mem::replace(&mut self.reached, range.end);
                Some(NextRange { hole_start, range })
            }
            Ok(None) => {
                self.is_exhausted = true;
                None
            }
            Err(error) => {
                self.is_exhausted = true;
                self.broken = Some(format!("cannot be read: {error}"));
                None
            }
        }
    }
}

/// Returns true if a file has not changed between two calls of fstat(2), as far as they tell.
pub(crate) fn is_same(one: &Stat, other: &Stat) -> bool {
    one.st_size == other.st_size
        && one.st_mtime == other.st_mtime
        && one.st_mtime_nsec == other.st_mtime_nsec
}

/// What an earlier run has left of a file at the destination.
#[derive(Debug, Default)]
pub(crate) struct ComparedRanges {
    /// The ranges that have the file's contents.
    present: Vec<ByteRange>,
    /// The ranges that have other contents.
    different: Vec<ByteRange>,
}

/// The ranges of a file that are sent: what has data and is missing at the destination, and everything of the ranges
/// that have other contents there, holes too.
struct Extents {
    size: u64,
    /// Ranges at the destination, in order and apart from each other.
    present: Vec<ByteRange>,
    /// Ranges that have other contents at the destination, in order and apart from each other.
    different: Vec<ByteRange>,
    position: u64,
    data_end: u64,
}

impl Extents {
    fn new(size: u64, found: ComparedRanges) -> Self {
        Self {
            size,
            present: merged(found.present),
            different: merged(found.different),
            position: 0,
            data_end: 0,
        }
    }

    /// Returns the next range, of at most [`RANGE_BYTES`] and within a multiple of them.
    fn next(&mut self, file: impl AsFd) -> Result<Option<ByteRange>, Errno> {
        loop {
            if self.position >= self.data_end && !self.find_data(&file)? {
                return Ok(None);
            }
            let next = next_range(&self.present, self.position);
            if let Some(range) = next.filter(|range| range.start <= self.position) {
                self.position = range.end;
                continue;
            }
            let border = (self.position / RANGE_BYTES + 1) * RANGE_BYTES;
            let end = next.map_or(border, |range| range.start.min(border));
            let range = ByteRange {
                start: self.position,
                end: end.min(self.data_end),
            };
            self.position = range.end;
            return Ok(Some(range));
        }
    }

    /// Goes to the next data. Returns false if there is none.
    fn find_data(&mut self, file: impl AsFd) -> Result<bool, Errno> {
        if self.position >= self.size {
            return Ok(false);
        }
        let different = next_range(&self.different, self.position);
        if let Some(range) = different.filter(|range| range.start <= self.position) {
            self.data_end = range.end.min(self.size);
            return Ok(true);
        }
        let data = match seek(&file, SeekFrom::Data(self.position)) {
            Ok(data) => data,
            // Only a hole is left.
            Err(Errno::NXIO) => self.size,
            // The file system does not know holes.
            Err(Errno::INVAL | Errno::NOTSUP) => {
                self.data_end = self.size;
                return Ok(true);
            }
            Err(error) => return Err(error),
        };
        if let Some(range) = different.filter(|range| range.start < data.min(self.size)) {
            self.position = range.start;
            self.data_end = range.end.min(self.size);
            return Ok(true);
        }
        self.position = data.min(self.size);
        if self.position == self.size {
            return Ok(false);
        }
        self.data_end = seek(&file, SeekFrom::Hole(data))?.min(self.size);
        Ok(true)
    }
}

/// Returns the first range that ends behind a position.
fn next_range(ranges: &[ByteRange], position: u64) -> Option<ByteRange> {
    let at = ranges.partition_point(|range| range.end <= position);
    ranges.get(at).copied()
}

/// Sorts ranges, and joins those that touch.
fn merged(mut ranges: Vec<ByteRange>) -> Vec<ByteRange> {
    ranges.retain(|range| range.start < range.end);
    ranges.sort_unstable_by_key(|range| range.start);
    let mut merged: Vec<ByteRange> = Vec::with_capacity(ranges.len());
    for range in ranges {
        match merged.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => merged.push(range),
        }
    }
    merged
}

/// Parts end at multiples of this many bytes, so that the destination writes whole pages.
const PAGE_BYTES: usize = 4096;

/// The bytes that are read at a time to compare what an earlier run has left.
const COMPARED_BYTES: usize = 1 << 20;

impl LaneSender {
    /// Sends a file that does not fit into a buffer, that has holes, or that an earlier run has begun. Other lanes help
    /// with a very large one. An inner error is a sentence for the user about this file.
    pub(crate) async fn send_large(
        &mut self,
        folder: &Arc<SourceFolder>,
        name: EntryName,
        metadata: Metadata,
        opened: OpenedFile,
        answer: &AnswerKind,
    ) -> Result<Result<(), String>, CopyError> {
        let size = size(&opened.stat);
        let mut found = match answer {
            AnswerKind::Resume(ranges) => ComparedRanges {
                present: ranges.clone(),
                different: Vec::new(),
            },
            AnswerKind::Compare { key, blocks } => compare(&opened, *key, blocks).await,
            _ => ComparedRanges::default(),
        };
        found.present.retain(|range| range.end <= size);
        let present = found.present.iter();
        let resumed = present.map(|range| range.end - range.start).sum();
        self.shared.tally.resumed_bytes(resumed);
        let content_bytes = content_size(&opened.stat).saturating_sub(resumed);
        let announcement = LargeFile {
            id: self.shared.next_large_id(),
            path: folder.path.join(&name),
            size,
            content_bytes,
            changed: changed(&opened.stat),
            metadata,
            resumed: *answer != AnswerKind::Send,
        };
        // A digest needs the contents in their order.
        let is_shared = content_bytes >= SHARED_BYTES
            && self.shared.shares_files
            && self.shared.options.digest.is_none();
        let record = LaneRecord::LargeFile(announcement.clone());
        if let Err(error) = self.packer.put(&record).await? {
            return Ok(Err(too_long(&error)));
        }
        let file = (opened.fd, opened.stat);
        let file = LargeSource::new(announcement, Arc::clone(folder), name, file, found);
        let file = Arc::new(file);
        file.own();
        if is_shared {
            self.announced.insert(file.announcement.id);
            self.shared.board.share(Arc::clone(&file));
        }
        while let Some(range) = file.next() {
            self.send_range(&file, range).await?;
        }
        self.leave(&file).await?;
        Ok(Ok(()))
    }

    /// Sends ranges of a file that another lane has opened, until this lane has work of its own.
    pub(crate) async fn help(
        &mut self,
        file: &LargeSource,
        range: NextRange,
    ) -> Result<(), CopyError> {
        if self.announced.insert(file.announcement.id) {
            if file.folder.metadata.is_some() {
                // This lane may be the first one whose part arrives, and the folder has to be made.
                self.enter(&file.folder).await?;
            }
            let record = LaneRecord::LargeFile(file.announcement.clone());
            self.put(&record).await?;
        }
        let shared = Arc::clone(&self.shared);
        let mut next = Some(range);
        while let Some(range) = next {
            self.send_range(file, range).await?;
            let is_needed = shared.board.has_job(self.number);
            next = if is_needed { None } else { file.next() };
        }
        self.leave(file).await
    }

    /// Sends the parts of a range, each in one buffer.
    async fn send_range(
        &mut self,
        file: &LargeSource,
        NextRange { hole_start, range }: NextRange,
    ) -> Result<(), CopyError> {
        let id = file.announcement.id;
        if hole_start < range.start && !file.announcement.resumed {
            let (start, end) = (hole_start, range.start);
            self.put(&LaneRecord::Hole { id, start, end }).await?;
        }
        let mut offset = range.start;
        while offset < range.end {
            let record = LaneRecord::Part {
                id: file.announcement.id,
                offset,
            };
            let head = self.encode_part(&record)?;
            let rest = usize::try_from(range.end - offset).unwrap_or(usize::MAX);
            // A small buffer is used to its last byte.
            if !self.packer.reserve(head + rest.min(PAGE_BYTES)).await? {
                self.packer.reserve(head + 1).await?;
            }
            let read = |room: &mut [u8]| {
                let most = part_bytes(room.len(), rest);
                match retry_on_intr(|| pread(&file.fd, &mut room[..most], offset)) {
                    Ok(0) => Err(None),
                    result => result.map_err(Some),
                }
            };
            match self.packer.append(read) {
                Ok(count) => {
                    file.sent(count as u64);
                    offset += count as u64;
                }
                Err(error) => {
                    if file.fail(cut_sentence(error)) {
                        // Parts of other lanes may wait for this range at the destination.
                        self.put(&file.broken_end()).await?;
                    }
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    fn encode_part(&mut self, record: &LaneRecord) -> Result<usize, CopyError> {
        let encoded = self.packer.encode(record);
        encoded.map_err(|error| CopyError::Local(error.to_string()))
    }

    /// Ends the part of this lane. The last lane ends the file.
    async fn leave(&mut self, file: &LargeSource) -> Result<(), CopyError> {
        if !file.leave() {
            return Ok(());
        }
        let (bytes, outcome) = file.outcome();
        let record = match outcome {
            ReadOutcome::Broken(_) => file.broken_end(),
            ReadOutcome::Whole | ReadOutcome::Changed => LaneRecord::LargeFileEnd {
                id: file.announcement.id,
                content_bytes: Some(bytes),
            },
        };
        self.put(&record).await?;
        let shared = &self.shared;
        let why = match outcome {
            ReadOutcome::Whole => {
                shared.sent(&file.folder, &file.name, &file.stat, true);
                return Ok(());
            }
            ReadOutcome::Changed => {
                shared.sent(&file.folder, &file.name, &file.stat, false);
                "changed while it was copied; the copy may have old and new contents".to_owned()
            }
            ReadOutcome::Broken(why) => why,
        };
        let shown = file.folder.shown(file.name.as_bytes());
        shared.tally.fail(shown, why);
        Ok(())
    }
}

/// Returns the bytes of the next part: to the end of the range, or as many whole pages as there is room for.
fn part_bytes(room: usize, rest: usize) -> usize {
    if rest <= room {
        rest
    } else if room < PAGE_BYTES {
        room
    } else {
        room - room % PAGE_BYTES
    }
}

fn cut_sentence(error: Option<Errno>) -> String {
    match error {
        Some(error) => unreadable(error),
        None => "became shorter while it was copied, and was left out".to_owned(),
    }
}

async fn compare(opened: &OpenedFile, key: DigestKey, blocks: &[ComparedBlock]) -> ComparedRanges {
    let mut buffer = vec![0; COMPARED_BYTES];
    let mut found = ComparedRanges::default();
    for (range, digest) in blocks {
        let mut own = BlockDigest::new(key);
        let mut offset = range.start;
        let mut data = offset..offset;
        while offset < range.end {
            // A hole may have terabytes: the run may end meanwhile.
            tokio::task::yield_now().await;
            if offset >= data.end {
                data = next_data(&opened.fd, offset, range.end);
            }
            if offset < data.start {
                let turn = data.start.min(offset + COMPARED_BYTES as u64);
                while offset < turn {
                    let hole = zeros(turn - offset);
                    own.update(hole);
                    offset += hole.len() as u64;
                }
                continue;
            }
            let rest = usize::try_from(data.end - offset).unwrap_or(usize::MAX);
            let most = rest.min(COMPARED_BYTES);
            match retry_on_intr(|| pread(&opened.fd, &mut buffer[..most], offset)) {
                Ok(count) if count > 0 => {
                    own.update(&buffer[..count]);
                    offset += count as u64;
                }
                _ => break,
            }
        }
        if offset >= range.end && own.finish() == *digest {
            found.present.push(*range);
        } else {
            found.different.push(*range);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use std::{fs::File, os::unix::fs::FileExt};

    use super::*;

    fn ranges(file: &File, size: u64, present: &[(u64, u64)]) -> Vec<(u64, u64)> {
        ranges_beside(file, size, present, &[])
    }

    fn ranges_beside(
        file: &File,
        size: u64,
        present: &[(u64, u64)],
        different: &[(u64, u64)],
    ) -> Vec<(u64, u64)> {
        let range = |&(start, end): &(u64, u64)| ByteRange { start, end };
        let found = ComparedRanges {
            present: present.iter().map(range).collect(),
            different: different.iter().map(range).collect(),
        };
        let mut extents = Extents::new(size, found);
        let next = || {
            extents
                .next(file)
                .unwrap()
                .map(|range| (range.start, range.end))
        };
        std::iter::from_fn(next).collect()
    }

    #[test]
    fn data_without_holes_comes_in_ranges() {
        let file = tempfile::tempfile().unwrap();
        let bytes = vec![7; 1 << 16];
        file.set_len(100 << 20).unwrap();
        file.write_all_at(&bytes, 1 << 20).unwrap();
        file.write_all_at(&bytes, (16 << 20) - (1 << 15)).unwrap();
        let found = ranges(&file, 100 << 20, &[]);
        let half = 1 << 15;
        let border = 16_u64 << 20;
        assert_eq!(
            found,
            [
                (1 << 20, (1 << 20) + (1 << 16)),
                (border - half, border),
                (border, border + half)
            ]
        );
    }

    #[test]
    fn what_the_destination_has_is_left_out() {
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(&[7; 10_000], 0).unwrap();
        assert!(ranges(&file, 10_000, &[(0, 10_000)]).is_empty());
        let found = ranges(&file, 10_000, &[(8192, 20_000), (0, 100), (4096, 5000)]);
        assert_eq!(found, [(100, 4096), (5000, 8192)]);
        // The file has become shorter.
        file.set_len(0).unwrap();
        assert!(ranges(&file, 10_000, &[]).is_empty());
    }

    #[test]
    fn a_range_with_other_contents_is_sent_with_its_holes() {
        const PAGE: u64 = 4096;
        let file = tempfile::tempfile().unwrap();
        file.set_len(100 * PAGE).unwrap();
        file.write_all_at(&[7; 4096], 20 * PAGE).unwrap();
        let found = |different: &[(u64, u64)]| {
            let different = different
                .iter()
                .map(|(start, end)| (start * PAGE, end * PAGE));
            let different: Vec<_> = different.collect();
            let found = ranges_beside(&file, 100 * PAGE, &[(0, PAGE)], &different);
            let found = found
                .into_iter()
                .map(|(start, end)| (start / PAGE, end / PAGE));
            found.collect::<Vec<_>>()
        };
        assert_eq!(found(&[]), [(20, 21)]);
        assert_eq!(found(&[(5, 10)]), [(5, 10), (20, 21)]);
        assert_eq!(found(&[(15, 20), (21, 25)]), [(15, 20), (20, 21), (21, 25)]);
        assert_eq!(found(&[(15, 30)]), [(15, 30)]);
        assert_eq!(found(&[(90, 120)]), [(20, 21), (90, 100)]);
    }

    #[test]
    fn parts_end_at_pages() {
        assert_eq!(part_bytes(10_000, 20_000), 8192);
        assert_eq!(part_bytes(10_000, 10_000), 10_000);
        assert_eq!(part_bytes(4000, 10_000), 4000);
        assert_eq!(part_bytes(8192, 100_000), 8192);
    }
}
