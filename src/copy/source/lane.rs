//! Sends the entries of jobs over one lane: small files are read straight into the registered buffers of the stream.

use std::{collections::HashSet, ffi::CStr, io::Write, os::fd::OwnedFd, sync::Arc};

use rustix::{
    fs::{FileType, Mode, OFlags, SeekFrom, Stat, fstat, openat, readlinkat, seek},
    io::{Errno, read, retry_on_intr},
};
use tokio::io::AsyncWriteExt;

use super::{
    jobs::{FolderJob, LaneWork, NextWork, SourceFolder, entry_name, stat_entry},
    large_file::is_same,
    state::{SourceShared, too_long, unreadable},
};
use crate::{
    SendBuffer, Stream,
    carry::RateLimit,
    copy::{
        job::CopyError,
        metadata::{
            Attribute, EntryKind, Metadata, OwnerNames, attributes_at, attributes_of, content_size,
            link_count, metadata_of, size,
        },
        nameless::NamelessFile,
        path::EntryName,
        question::AnswerKind,
        record::{LaneRecord, RecordError, encode, set_content_length},
    },
};

/// The sender of a lane. Files are read with blocking calls, on the thread of the lane.
pub(crate) struct LaneSender {
    pub(super) number: usize,
    pub(super) packer: LanePacker,
    pub(super) shared: Arc<SourceShared>,
    /// The large files of several lanes that this lane has announced.
    pub(super) announced: HashSet<u64>,
    /// The folder of the records that follow.
    folder: Option<Arc<SourceFolder>>,
    owners: OwnerNames,
    /// False if the process may not read files without changing their times of access.
    quiet_reads: bool,
}

impl LaneSender {
    pub(crate) fn new(number: usize, packer: LanePacker, shared: Arc<SourceShared>) -> Self {
        Self {
            number,
            packer,
            shared,
            announced: HashSet::new(),
            folder: None,
            owners: OwnerNames::default(),
            quiet_reads: true,
        }
    }

    /// Sends all that the board has for this lane, and the last record.
    /// Fails if the stream broke. What concerns a single entry is reported.
    /// The stream cannot be used after the future was dropped.
    pub(crate) async fn send_all(&mut self) -> Result<(), CopyError> {
        let shared = Arc::clone(&self.shared);
        loop {
            let mut work = shared.board.try_take(self.number);
            if matches!(work, NextWork::Wait) {
                // The destination gets to work on what is there.
                self.packer.push().await?;
                work = shared.board.take(self.number).await;
            }
            match work {
                NextWork::Work(LaneWork::Job(job)) => {
                    self.send_job(&job).await?;
                    shared.board.finished();
                }
                NextWork::Work(LaneWork::Range(file, range)) => self.help(&file, range).await?,
                NextWork::End | NextWork::Wait => break,
            }
        }
        self.put(&LaneRecord::End).await?;
        self.packer.flush().await
    }

    async fn send_job(&mut self, job: &FolderJob) -> Result<(), CopyError> {
        self.enter(&job.folder).await?;
        for (index, target) in &job.kept_links {
            if let Some(name) = entry_name(job.entries.entry(*index).0) {
                let target = target.clone();
                self.put(&LaneRecord::KeptLink { name, target }).await?;
            }
        }
        for (index, (name, kind)) in job.entries.iter().enumerate() {
            let answer = job.answers.get(index).unwrap_or(&AnswerKind::Send);
            if answer.is_nothing() {
                continue;
            }
            if !job.is_counted {
                self.shared.tally.sized(1, 0);
            }
            let sent = if kind == FileType::RegularFile {
                self.send_file(job, name, answer).await?
            } else {
                self.send_special(&job.folder, name).await?
            };
            if let Err(why) = sent {
                let shown = job.folder.shown(name.to_bytes());
                self.shared.tally.fail(shown, why);
            }
        }
        Ok(())
    }

    /// Sends the record of a folder, unless the last records were of this folder.
    pub(super) async fn enter(&mut self, folder: &Arc<SourceFolder>) -> Result<(), CopyError> {
        if self
            .folder
            .as_ref()
            .is_some_and(|current| Arc::ptr_eq(current, folder))
        {
            return Ok(());
        }
        self.folder = Some(Arc::clone(folder));
        if let Some(metadata) = &folder.metadata {
            self.name_owners(metadata).await?;
        }
        let above = match &folder.modes[..] {
            [_, above @ ..] if !self.shared.options.archive => above.to_vec(),
            _ => Vec::new(),
        };
        let mut record = LaneRecord::Folder {
            path: folder.path.clone(),
            metadata: folder.metadata.clone(),
            above,
        };
        if self.packer.put(&record).await?.is_err() {
            // Without its metadata, the folder still has its entries.
            let why = "its metadata are too long to be sent".to_owned();
            self.shared.tally.fail(folder.shown.clone(), why);
            record = LaneRecord::Folder {
                path: folder.path.clone(),
                metadata: None,
                above: Vec::new(),
            };
            self.put(&record).await?;
        } else if folder.metadata.is_some() && folder.claim_count() {
            self.shared.tally.sent_directory();
        }
        Ok(())
    }

    /// Sends a plain file. An inner error is a sentence for the user about this file.
    async fn send_file(
        &mut self,
        job: &FolderJob,
        name: &CStr,
        answer: &AnswerKind,
    ) -> Result<Result<(), String>, CopyError> {
        let folder = &job.folder;
        let opened = match OpenedFile::open(folder, name, &mut self.quiet_reads) {
            Ok(opened) => opened,
            Err(why) => return Ok(Err(why)),
        };
        let size = size(&opened.stat);
        if !job.is_counted {
            let bytes = content_size(&opened.stat);
            self.shared.tally.found_bytes(bytes);
        }
        let (name, metadata) = match self.describe(name, &opened.stat, || attributes_of(&opened.fd))
        {
            Ok(described) => described,
            Err(why) => return Ok(Err(why)),
        };
        self.name_owners(&metadata).await?;
        if let Some(record) = self.link(folder, &name, &opened.stat) {
            return self.send_record(folder, name, &opened.stat, &record).await;
        }
        if *answer != AnswerKind::Send || opened.is_sparse() {
            return self
                .send_large(folder, name, metadata, opened, answer)
                .await;
        }
        let record = LaneRecord::File { name, metadata };
        let head = match self.packer.encode(&record) {
            Ok(head) => head,
            Err(error) => return Ok(Err(too_long(&error))),
        };
        let needed = usize::try_from(size).unwrap_or(usize::MAX);
        let needed = needed.saturating_add(head + 1);
        let fits = self.packer.reserve(needed).await?;
        let LaneRecord::File { name, metadata } = record else {
            return Ok(Ok(()));
        };
        if !fits {
            return self
                .send_large(folder, name, metadata, opened, answer)
                .await;
        }
        if let Some(appended) = self.append_file(folder, &name, &opened) {
            return Ok(appended);
        }
        match opened.read_to_end().await {
            Ok(kept) => self.send_large(folder, name, metadata, kept, answer).await,
            Err(why) => Ok(Err(why)),
        }
    }

    /// Reads a small file into the buffer. Returns none if the file has more bytes than its size tells and than there
    /// is room for.
    fn append_file(
        &mut self,
        folder: &SourceFolder,
        name: &EntryName,
        opened: &OpenedFile,
    ) -> Option<Result<(), String>> {
        let mut is_longer = false;
        let read = |room: &mut [u8]| match opened.read_whole(room) {
            Ok(WholeRead::All(count)) => Ok(count),
            Ok(WholeRead::Longer(count)) => {
                is_longer = true;
                Ok(count)
            }
            Ok(WholeRead::Unsized) => Err(None),
            Err(fault) => Err(Some(fault)),
        };
        Some(match self.packer.append(read) {
            Ok(_) if is_longer => {
                self.shared.sent(folder, name, &opened.stat, false);
                Err("became longer while it was copied; the copy ends where it ended".to_owned())
            }
            Ok(_) => {
                self.shared.sent(folder, name, &opened.stat, true);
                Ok(())
            }
            Err(None) => return None,
            Err(Some(ReadFault::Shorter)) => {
                Err("became shorter while it was copied, and was left out".to_owned())
            }
            Err(Some(ReadFault::Failed(error))) => Err(unreadable(error)),
        })
    }

    /// Sends an entry that has no contents.
    async fn send_special(
        &mut self,
        folder: &Arc<SourceFolder>,
        name: &CStr,
    ) -> Result<Result<(), String>, CopyError> {
        let stat = match stat_entry(folder, name) {
            Ok(stat) => stat,
            Err(error) => return Ok(Err(unreadable(error))),
        };
        let kind = match EntryKind::of(&stat) {
            Some(EntryKind::File | EntryKind::Directory) | None => {
                let why = "was replaced by something else while it was copied";
                return Ok(Err(why.to_owned()));
            }
            Some(kind) => kind,
        };
        let mut target = Vec::new();
        if kind == EntryKind::Symlink {
            match readlinkat(&folder.fd, name, Vec::new()) {
                Ok(link) => target = link.into_bytes(),
                Err(error) => return Ok(Err(unreadable(error))),
            }
        }
        let attributes = || self.special_attributes(folder, name);
        let (name, metadata) = match self.describe(name, &stat, attributes) {
            Ok(described) => described,
            Err(why) => return Ok(Err(why)),
        };
        self.name_owners(&metadata).await?;
        let record = match self.link(folder, &name, &stat) {
            Some(record) => record,
            None => LaneRecord::Special {
                name: name.clone(),
                kind,
                target,
                metadata,
            },
        };
        self.send_record(folder, name, &stat, &record).await
    }

    fn special_attributes(
        &self,
        folder: &SourceFolder,
        name: &CStr,
    ) -> Result<Vec<Attribute>, Errno> {
        match attributes_at(&folder.fd, name) {
            Err(Errno::NOENT) => {
                let tally = &self.shared.tally;
                tally.note(
                    "extended attributes of links and special files may be missing: /proc is not mounted at the source",
                );
                Ok(Vec::new())
            }
            result => result,
        }
    }

    async fn send_record(
        &mut self,
        folder: &SourceFolder,
        name: EntryName,
        stat: &Stat,
        record: &LaneRecord,
    ) -> Result<Result<(), String>, CopyError> {
        if let Err(error) = self.packer.put(record).await? {
            return Ok(Err(too_long(&error)));
        }
        self.shared.sent(folder, &name, stat, true);
        Ok(Ok(()))
    }

    /// Returns the name of an entry and its metadata, as far as the options want them.
    fn describe(
        &self,
        name: &CStr,
        stat: &Stat,
        attributes: impl FnOnce() -> Result<Vec<Attribute>, Errno>,
    ) -> Result<(EntryName, Metadata), String> {
        let name = entry_name(name).ok_or("has a name that cannot be sent")?;
        let mut metadata = metadata_of(stat);
        if self.shared.options.archive {
            metadata.attributes = attributes()
                .map_err(|error| format!("its extended attributes cannot be read: {error}"))?;
        }
        Ok((name, metadata))
    }

    /// Returns the record for a further name of a file, if its first name is sent.
    fn link(&self, folder: &SourceFolder, name: &EntryName, stat: &Stat) -> Option<LaneRecord> {
        if !self.shared.options.archive || link_count(stat) < 2 {
            return None;
        }
        let path = folder.path.join(name);
        let target = self.shared.links.first_name(stat, &path)?;
        Some(LaneRecord::HardLink {
            name: name.clone(),
            target,
        })
    }

    /// Sends the names of the owners, if they are kept and were not sent before.
    async fn name_owners(&mut self, metadata: &Metadata) -> Result<(), CopyError> {
        if !self.shared.options.archive {
            return Ok(());
        }
        match self.owners.names(metadata.uid, metadata.gid) {
            Some((user, group)) => self.put(&LaneRecord::Owner { user, group }).await,
            None => Ok(()),
        }
    }

    /// Sends a record that is always short enough.
    pub(super) async fn put(&mut self, record: &LaneRecord) -> Result<(), CopyError> {
        let put = self.packer.put(record).await?;
        put.map_err(|error| CopyError::Local(error.to_string()))
    }
}

/// Packs records back to back, with contents that are read straight into the buffer behind them.
pub(crate) struct LanePacker {
    stream: Stream,
    shared: Arc<SourceShared>,
    /// The buffer that is being filled.
    buffer: Option<SendBuffer>,
    /// The record that was encoded last.
    record: Vec<u8>,
    /// Where the length of its contents stands.
    length_at: usize,
}

impl LanePacker {
    pub(crate) fn new(stream: Stream, shared: Arc<SourceShared>) -> Self {
        Self {
            stream,
            shared,
            buffer: None,
            record: Vec::new(),
            length_at: 0,
        }
    }

    /// Encodes a record that contents follow. Returns its length.
    /// Fails if the record is too long.
    pub(crate) fn encode(&mut self, record: &LaneRecord) -> Result<usize, RecordError> {
        self.record.clear();
        self.length_at = encode(record, &mut self.record)?;
        Ok(self.record.len())
    }

    /// Makes sure that the next `bytes` bytes fit into one buffer. Returns false if no buffer is so large.
    pub(crate) async fn reserve(&mut self, bytes: usize) -> Result<bool, CopyError> {
        for _ in 0..2 {
            let room = self.room().await?;
            if bytes <= room.len() {
                return Ok(true);
            }
            if self.buffer.as_ref().is_none_or(|buffer| buffer.is_empty()) {
                return Ok(false);
            }
            self.push().await?;
        }
        Ok(false)
    }

    /// Appends the encoded record and the contents that `fill` reads into the room behind it. If `fill` fails, nothing
    /// is appended. [`reserve`](Self::reserve) has made room.
    pub(crate) fn append<E>(
        &mut self,
        fill: impl FnOnce(&mut [u8]) -> Result<usize, E>,
    ) -> Result<usize, E> {
        let most = self.most_bytes();
        let Some(buffer) = &mut self.buffer else {
            return Ok(0);
        };
        let filled = buffer.len();
        let room = buffer.unfilled_mut();
        let end = room.len().min(most.saturating_sub(filled));
        let (head, contents) = room[..end].split_at_mut(self.record.len());
        let count = fill(contents)?;
        head.copy_from_slice(&self.record);
        let length = u32::try_from(count).unwrap_or(u32::MAX);
        set_content_length(head, self.length_at, length);
        buffer.advance(self.record.len() + count);
        self.shared.tally.sent_bytes(count as u64);
        Ok(count)
    }

    /// Appends a record without contents. It may be longer than a buffer.
    /// Fails if the stream broke. The inner error is that of [`encode`](Self::encode): then nothing was appended.
    pub(crate) async fn put(
        &mut self,
        record: &LaneRecord,
    ) -> Result<Result<(), RecordError>, CopyError> {
        if let Err(error) = self.encode(record) {
            return Ok(Err(error));
        }
        let record = std::mem::take(&mut self.record);
        let mut rest = &record[..];
        while !rest.is_empty() {
            let room = self.room().await?;
            let count = room.len().min(rest.len());
            room[..count].copy_from_slice(&rest[..count]);
            rest = &rest[count..];
            match &mut self.buffer {
                Some(buffer) if count > 0 => buffer.advance(count),
                _ => self.push().await?,
            }
        }
        self.record = record;
        Ok(Ok(()))
    }

    /// Sends what was packed, and waits as the limit of the rate says.
    pub(crate) async fn push(&mut self) -> Result<(), CopyError> {
        let Some(buffer) = self.buffer.take_if(|buffer| !buffer.is_empty()) else {
            return Ok(());
        };
        let bytes = buffer.len();
        self.stream
            .send(buffer)
            .map_err(|error| CopyError::of_stream(&error))?;
        if let Some(limit) = &self.shared.limit {
            tokio::time::sleep(limit.count(bytes)).await;
        }
        // Files are read without waiting: the other tasks of the thread run here.
        tokio::task::yield_now().await;
        Ok(())
    }

    /// Sends all that was packed, and waits until the network has accepted it.
    pub(crate) async fn flush(&mut self) -> Result<(), CopyError> {
        self.push().await?;
        let flushed = self.stream.flush().await;
        flushed.map_err(|error| CopyError::of_stream(&error))
    }

    /// Ends the stream, and waits until the destination has confirmed it.
    pub(crate) async fn finish(&mut self) -> Result<(), CopyError> {
        self.buffer = None;
        self.stream.finish().await.map_err(CopyError::Stream)
    }

    /// Returns the stream, without what was not sent.
    pub(crate) fn into_stream(self) -> Stream {
        self.stream
    }

    /// Returns the free bytes of a buffer.
    async fn room(&mut self) -> Result<&mut [u8], CopyError> {
        let most = self.most_bytes();
        let buffer = match &mut self.buffer {
            Some(buffer) => buffer,
            empty => {
                let lent = self.stream.send_buffer().await;
                empty.insert(lent.map_err(|error| CopyError::of_stream(&error))?)
            }
        };
        let filled = buffer.len();
        let room = buffer.unfilled_mut();
        let end = room.len().min(most.saturating_sub(filled));
        Ok(&mut room[..end])
    }

    fn most_bytes(&self) -> usize {
        let limit = self.shared.limit.as_ref();
        limit.map_or(usize::MAX, RateLimit::most_bytes)
    }
}

/// A file with fewer bytes in holes is sent as if it had none: a file system that counts blocks of 4 KiB shows no less.
const MIN_HOLE: u64 = 4096;

/// The bytes that are read at a time from a file whose size is not known.
const SPOOLED_BYTES: usize = 256 << 10;

pub(crate) struct OpenedFile {
    pub(crate) fd: OwnedFd,
    /// What fstat(2) said after it was opened.
    pub(crate) stat: Stat,
}

/// What was read of a file of which no more bytes than its size were expected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WholeRead {
    /// This many bytes, up to the end of the file.
    All(usize),
    /// This many bytes: those that the file had when it was opened. It has become longer.
    Longer(usize),
    /// The size that the system tells is not the number of bytes that the file has: files of `/proc` have size 0, files
    /// of `/sys` that of a page. There was no room for all bytes.
    Unsized,
}

/// Why a small file could not be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ReadFault {
    /// The file became shorter: its contents are not whole.
    Shorter,
    /// read(2) failed.
    Failed(Errno),
}

impl OpenedFile {
    /// Opens a file of a folder. No FIFO or device is waited for, and no link is followed that was not named.
    /// `quiet_reads` is cleared if the process may not read files without changing their times of access.
    pub(crate) fn open(
        folder: &SourceFolder,
        name: &CStr,
        quiet_reads: &mut bool,
    ) -> Result<Self, String> {
        let mut flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
        if !folder.follow {
            flags |= OFlags::NOFOLLOW;
        }
        let open = |flags| retry_on_intr(|| openat(&folder.fd, name, flags, Mode::empty()));
        let opened = if *quiet_reads {
            match open(flags | OFlags::NOATIME) {
                Err(Errno::PERM) => {
                    *quiet_reads = false;
                    open(flags)
                }
                result => result,
            }
        } else {
            open(flags)
        };
        let fd = opened.map_err(unreadable)?;
        let stat = fstat(&fd).map_err(unreadable)?;
        if FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile {
            Ok(Self { fd, stat })
        } else {
            Err("was replaced by something else while it was copied".to_owned())
        }
    }

    /// Returns true if the file has a hole that is worth keeping.
    pub(crate) fn is_sparse(&self) -> bool {
        let size = size(&self.stat);
        if size - content_size(&self.stat) < MIN_HOLE {
            return false;
        }
        // Compressed files have few blocks as well, and files of `/sys` none.
        let has_hole = seek(&self.fd, SeekFrom::Hole(0)).is_ok_and(|hole| hole < size);
        // The search for a hole has moved the position, from which a small file is read.
        seek(&self.fd, SeekFrom::Start(0)).is_ok() && has_hole
    }

    /// Reads the whole file into `room`, which has one byte more than the file.
    ///
    /// A read that is shorter than the room is the end of a plain file, so one call suffices.
    /// Fails if the file cannot be read to the size that it had.
    pub(crate) fn read_whole(&self, room: &mut [u8]) -> Result<WholeRead, ReadFault> {
        let expected = usize::try_from(size(&self.stat)).unwrap_or(usize::MAX);
        // A file of 0 bytes in /proc has contents.
        let most = match expected {
            0 => room.len(),
            expected => room.len().min(expected + 1),
        };
        let mut filled = 0;
        while filled < most {
            let read = retry_on_intr(|| read(&self.fd, &mut room[filled..most]));
            let count = read.map_err(ReadFault::Failed)?;
            filled += count;
            if count == 0 || filled == expected {
                break;
            }
        }
        if filled == expected || (expected == 0 && filled < most) {
            return Ok(WholeRead::All(filled));
        }
        // A file that the kernel makes up has no blocks.
        let is_made_up = content_size(&self.stat) == 0
            && fstat(&self.fd).is_ok_and(|stat| is_same(&stat, &self.stat));
        match (filled < expected, is_made_up) {
            (true, false) => Err(ReadFault::Shorter),
            (true, true) => Ok(WholeRead::All(filled)),
            (false, false) if expected > 0 => Ok(WholeRead::Longer(expected)),
            (false, _) => Ok(WholeRead::Unsized),
        }
    }

    /// Reads a file to its end, whatever its size is said to be, and returns its contents as a file without a name.
    /// Cancel safe: the contents are dropped.
    pub(crate) async fn read_to_end(&self) -> Result<Self, String> {
        let cannot_keep =
            |error: std::io::Error| format!("cannot be kept until it is sent: {error}");
        let mut kept = NamelessFile::make(None).map_err(cannot_keep)?.file;
        let mut buffer = vec![0; SPOOLED_BYTES];
        seek(&self.fd, SeekFrom::Start(0)).map_err(unreadable)?;
        loop {
            let count = retry_on_intr(|| read(&self.fd, &mut buffer[..])).map_err(unreadable)?;
            if count == 0 {
                break;
            }
            kept.write_all(&buffer[..count]).map_err(cannot_keep)?;
            tokio::task::yield_now().await;
        }
        let fd = OwnedFd::from(kept);
        let stat = fstat(&fd).map_err(unreadable)?;
        Ok(Self { fd, stat })
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink, path::Path, sync::Arc};

    use rustix::fs::{CWD, mknodat};

    use super::*;
    use crate::copy::source::{jobs::SourceRoot, walk::DIRECTORY_FLAGS};

    fn folder(path: &Path) -> SourceFolder {
        let root = SourceRoot {
            open_path: Vec::new(),
            identity: (0, 0),
        };
        let fd = openat(CWD, path, DIRECTORY_FLAGS, Mode::empty()).unwrap();
        SourceFolder::top(fd, Arc::new(root), Vec::new())
    }

    #[test]
    fn only_a_plain_file_is_opened() {
        let place = tempfile::tempdir().unwrap();
        fs::write(place.path().join("file"), b"x").unwrap();
        symlink("file", place.path().join("link")).unwrap();
        fs::create_dir(place.path().join("folder")).unwrap();
        let fifo = place.path().join("fifo");
        mknodat(CWD, &fifo, FileType::Fifo, Mode::RUSR, 0).unwrap();
        let folder = folder(place.path());
        let open = |name| OpenedFile::open(&folder, name, &mut true).map(|_| ());
        assert_eq!(open(c"file"), Ok(()));
        for name in [c"link", c"folder", c"fifo"] {
            assert!(open(name).unwrap_err().contains("was replaced"));
        }
        assert!(open(c"missing").unwrap_err().contains("vanished"));
    }

    #[test]
    fn a_file_that_changes_is_noticed() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("file");
        fs::write(&path, [7; 1000]).unwrap();
        let folder = folder(place.path());
        let open = || OpenedFile::open(&folder, c"file", &mut true).unwrap();
        let mut room = [0; 5000];
        assert_eq!(open().read_whole(&mut room), Ok(WholeRead::All(1000)));
        let opened = open();
        fs::write(&path, [7; 2000]).unwrap();
        assert_eq!(opened.read_whole(&mut room), Ok(WholeRead::Longer(1000)));
        let opened = open();
        fs::write(&path, [7; 10]).unwrap();
        assert_eq!(opened.read_whole(&mut room), Err(ReadFault::Shorter));
        assert!(!open().is_sparse());
        fs::File::create(&path).unwrap().set_len(1 << 20).unwrap();
        assert!(open().is_sparse());
    }

    #[test]
    fn a_file_that_the_kernel_makes_up_has_the_bytes_that_can_be_read() {
        // Its size is that of a page.
        let path = Path::new("/sys/kernel/mm/transparent_hugepage/enabled");
        if path.exists() {
            let folder = folder(path.parent().unwrap());
            let opened = OpenedFile::open(&folder, c"enabled", &mut true).unwrap();
            assert!(!opened.is_sparse());
            let contents = fs::read(path).unwrap();
            let mut room = [0; 5000];
            let read = opened.read_whole(&mut room);
            assert_eq!(read, Ok(WholeRead::All(contents.len())));
            assert_eq!(room[..contents.len()], contents);
        }
        // Its size is 0, and it has more bytes than the room.
        let folder = folder(Path::new("/proc/self"));
        let opened = OpenedFile::open(&folder, c"status", &mut true).unwrap();
        assert_eq!(opened.read_whole(&mut [0; 10]), Ok(WholeRead::Unsized));
        let kept = futures::executor::block_on(opened.read_to_end());
        let kept = kept.unwrap_or_else(|why| panic!("{why}"));
        assert!(size(&kept.stat) > 100);
    }
}
