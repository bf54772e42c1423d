//! Sends large files in parts.

use std::{hash::Hasher, sync::Arc};

use rustix::io::{Errno, pread, retry_on_intr};
use twox_hash::XxHash3_64;

use super::{LaneSender, opened_file::OpenedFile};
use crate::copy::{
    job::CopyFailure,
    metadata::Metadata,
    path::EntryName,
    question::{AnswerKind, ByteRange},
    record::{LaneRecord, LargeFile},
    source::{
        attributes::{changed, content_size, size},
        large_file::{LargeSource, NextRange, ReadOutcome, SHARED_BYTES},
        shared::{too_long, unreadable},
        walk::outlet::SourceFolder,
    },
};

/// Parts end at multiples of this many bytes, so that the destination writes whole pages.
const PAGE_BYTES: usize = 4096;

/// The bytes that are read at a time to compare what an earlier run has left.
const COMPARED_BYTES: usize = 1 << 20;

impl LaneSender {
    /// Sends a file that does not fit into a buffer, that has holes, or that an earlier run has begun. Other lanes help
    /// with a very large one. An inner error is a sentence for the user about this file.
    pub(super) async fn send_large(
        &mut self,
        folder: &Arc<SourceFolder>,
        name: EntryName,
        metadata: Metadata,
        opened: OpenedFile,
        answer: &AnswerKind,
    ) -> Result<Result<(), String>, CopyFailure> {
        let size = size(&opened.stat);
        let present = match answer {
            AnswerKind::Resume(ranges) => ranges.clone(),
            AnswerKind::Compare(digests) => unchanged(&opened, digests).await,
            _ => Vec::new(),
        };
        let present: Vec<ByteRange> = present
            .into_iter()
            .filter(|range| range.end <= size)
            .collect();
        let resumed = present.iter().map(|range| range.end - range.start).sum();
        self.shared.tally.resumed_bytes(resumed);
        let announcement = LargeFile {
            id: self.shared.next_large_id(),
            path: folder.path.join(&name),
            size,
            changed: changed(&opened.stat),
            metadata,
            resumed: *answer != AnswerKind::Send,
        };
        // A digest needs the contents in their order.
        let is_shared = content_size(&opened.stat).saturating_sub(resumed) >= SHARED_BYTES
            && self.shared.shares_files
            && self.shared.options.digest.is_none();
        let record = LaneRecord::LargeFile(announcement.clone());
        if let Err(error) = self.packer.put(&record).await? {
            return Ok(Err(too_long(&error)));
        }
        let file = (opened.fd, opened.stat);
        let file = LargeSource::new(announcement, Arc::clone(folder), name, file, present);
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
    pub(super) async fn help(
        &mut self,
        file: &LargeSource,
        range: NextRange,
    ) -> Result<(), CopyFailure> {
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
    ) -> Result<(), CopyFailure> {
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

    fn encode_part(&mut self, record: &LaneRecord) -> Result<usize, CopyFailure> {
        let encoded = self.packer.encode(record);
        encoded.map_err(|error| CopyFailure::Local(error.to_string()))
    }

    /// Ends the part of this lane. The last lane ends the file.
    async fn leave(&mut self, file: &LargeSource) -> Result<(), CopyFailure> {
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

/// Returns the ranges of a file whose digests are those that the destination has computed.
async fn unchanged(opened: &OpenedFile, digests: &[(ByteRange, u64)]) -> Vec<ByteRange> {
    let mut buffer = vec![0; COMPARED_BYTES];
    let mut same = Vec::new();
    for (range, digest) in digests {
        let mut hasher = XxHash3_64::new();
        let mut offset = range.start;
        while offset < range.end {
            let rest = usize::try_from(range.end - offset).unwrap_or(usize::MAX);
            let most = rest.min(COMPARED_BYTES);
            match retry_on_intr(|| pread(&opened.fd, &mut buffer[..most], offset)) {
                Ok(count) if count > 0 => {
                    hasher.write(&buffer[..count]);
                    offset += count as u64;
                }
                _ => break,
            }
            tokio::task::yield_now().await;
        }
        if offset >= range.end && hasher.finish() == *digest {
            same.push(*range);
        }
    }
    same
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_end_at_pages() {
        assert_eq!(part_bytes(10_000, 20_000), 8192);
        assert_eq!(part_bytes(10_000, 10_000), 10_000);
        assert_eq!(part_bytes(4000, 10_000), 4000);
        assert_eq!(part_bytes(8192, 100_000), 8192);
    }
}
