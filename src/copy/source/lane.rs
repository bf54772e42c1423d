//! Sends the entries of jobs over one lane.

mod opened_file;
pub(super) mod packer;
mod parts;

use std::{collections::HashSet, ffi::CStr, sync::Arc};

use rustix::{
    fs::{FileType, Stat, readlinkat},
    io::Errno,
};

use self::{
    opened_file::{OpenedFile, ReadFault, WholeRead},
    packer::LanePacker,
};
use super::{
    attributes::{OwnerNames, content_size, link_count, metadata_of, size},
    shared::{SourceShared, too_long, unreadable},
    walk::outlet::{FolderJob, SourceFolder, entry_name, stat_entry},
    work_board::{LaneWork, NextWork},
};
use crate::copy::{
    job::CopyFailure,
    metadata::{Attribute, EntryKind, Metadata, attributes_at, attributes_of},
    path::EntryName,
    question::AnswerKind,
    record::LaneRecord,
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
    /// Returns the sender of the lane `number`.
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
    ///
    /// # Errors
    ///
    /// Fails if the stream broke. What concerns a single entry is reported.
    ///
    /// # Cancel safety
    ///
    /// The stream cannot be used after the future was dropped.
    pub(crate) async fn send_all(&mut self) -> Result<(), CopyFailure> {
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

    async fn send_job(&mut self, job: &FolderJob) -> Result<(), CopyFailure> {
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
    pub(super) async fn enter(&mut self, folder: &Arc<SourceFolder>) -> Result<(), CopyFailure> {
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
    ) -> Result<Result<(), String>, CopyFailure> {
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
    ) -> Result<Result<(), String>, CopyFailure> {
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
    ) -> Result<Result<(), String>, CopyFailure> {
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
    async fn name_owners(&mut self, metadata: &Metadata) -> Result<(), CopyFailure> {
        if !self.shared.options.archive {
            return Ok(());
        }
        match self.owners.names(metadata.uid, metadata.gid) {
            Some((user, group)) => self.put(&LaneRecord::Owner { user, group }).await,
            None => Ok(()),
        }
    }

    /// Sends a record that is always short enough.
    pub(super) async fn put(&mut self, record: &LaneRecord) -> Result<(), CopyFailure> {
        let put = self.packer.put(record).await?;
        put.map_err(|error| CopyFailure::Local(error.to_string()))
    }
}
