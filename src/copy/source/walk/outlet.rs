//! Where the walk's findings go.

use std::{
    ffi::CStr,
    sync::Arc,
    time::{Duration, Instant},
};

use rustix::{
    fs::{AtFlags, FileType, Stat, readlinkat, statat},
    io::Errno,
};
use tokio::sync::mpsc;

use super::folder::{EntryList, FolderJob, SourceFolder, entry_name};
use crate::copy::{
    extended_attributes::{Attribute, attributes_at},
    metadata::EntryKind,
    path::{EntryName, RelativePath},
    question::{FromSource, MAX_ASKED_ATTRIBUTE_BYTES, MAX_ENTRIES, target_digest},
    source::{
        attributes::content_size, fault_text::unreadable, questions::ControlCommand,
        shared::SourceShared, work_board::WalkStopped,
    },
};

/// A walk that lasts longer also looks at the sizes of files, while it waits for the lanes. A shorter copy needs no
/// total for its progress, and is faster without it.
const SIZES_AFTER: Duration = Duration::from_secs(2);

/// Passes jobs to the lanes, or to the questions that come before.
pub(crate) struct WalkOutlet {
    shared: Arc<SourceShared>,
    /// For questions and for the names of `--delete`; none if there are neither.
    control: mpsc::Sender<ControlCommand>,
    started: Instant,
}

impl WalkOutlet {
    /// Returns an outlet.
    pub(crate) fn new(shared: Arc<SourceShared>, control: mpsc::Sender<ControlCommand>) -> Self {
        Self {
            shared,
            control,
            started: Instant::now(),
        }
    }

    /// Passes on entries of a folder. Blocks while the queue is full.
    ///
    /// # Errors
    ///
    /// Fails if the run has ended.
    pub(crate) fn deliver(
        &self,
        folder: &Arc<SourceFolder>,
        entries: EntryList,
    ) -> Result<(), WalkStopped> {
        self.shared.tally.found(entries.len());
        // A dry run asks for each folder, because something may be in its way.
        let dry_run = self.shared.options.dry_run;
        if self.shared.asks() && (dry_run || !entries.is_empty()) {
            return self.ask(folder, &entries);
        }
        let mut job = FolderJob::new(Arc::clone(folder), entries);
        if self.shared.board.is_full() && self.started.elapsed() > SIZES_AFTER {
            self.count_sizes(&mut job);
        }
        self.shared.board.push_blocking(job)
    }

    /// Passes on names that stay at the destination.
    ///
    /// # Errors
    ///
    /// Fails if the run has ended.
    pub(crate) fn names(
        &self,
        folder: &RelativePath,
        names: &mut Vec<EntryName>,
        last: bool,
    ) -> Result<(), WalkStopped> {
        let message = FromSource::Names {
            folder: folder.clone(),
            names: std::mem::take(names),
            last,
        };
        self.command(ControlCommand::Names(message))
    }

    /// Passes on names if there are as many as fit into one message.
    ///
    /// # Errors
    ///
    /// Fails if the run has ended.
    pub(crate) fn full_names(
        &self,
        folder: &RelativePath,
        names: &mut Vec<EntryName>,
    ) -> Result<(), WalkStopped> {
        if names.len() < MAX_ENTRIES {
            return Ok(());
        }
        self.names(folder, names, false)
    }

    /// Reports that an entry was not copied.
    pub(crate) fn fail(&self, path: Vec<u8>, why: String) {
        self.shared.tally.fail(path, why);
    }

    /// Returns true if the run has ended.
    pub(crate) fn is_stopped(&self) -> bool {
        self.shared.board.is_closed()
    }

    /// Notes that the walk is complete.
    pub(crate) fn complete(self) {
        self.shared.tally.walked();
        if !self.shared.asks() {
            self.shared.board.complete();
        }
    }

    fn command(&self, command: ControlCommand) -> Result<(), WalkStopped> {
        self.control.blocking_send(command).map_err(|_| WalkStopped)
    }

    /// Passes on entries that the destination is asked for, with what it is asked with. Entries that are gone are left
    /// out.
    fn ask(&self, folder: &Arc<SourceFolder>, entries: &EntryList) -> Result<(), WalkStopped> {
        let new_job = || FolderJob::new(Arc::clone(folder), EntryList::default());
        let has_metadata = self.shared.asks_with_metadata();
        let mut job = new_job();
        let mut attribute_bytes = 0;
        for (name, _) in entries.iter() {
            if attribute_bytes > MAX_ASKED_ATTRIBUTE_BYTES {
                attribute_bytes = 0;
                self.ask_job(std::mem::replace(&mut job, new_job()))?;
            }
            match stat_entry(folder, name) {
                Ok(stat) if is_strange(&stat) => {
                    let why = "was replaced by something else before it was copied".to_owned();
                    self.fail(folder.shown(name.to_bytes()), why);
                }
                Ok(stat) => {
                    job.entries
                        .push(name, FileType::from_raw_mode(stat.st_mode));
                    job.targets.push(asked_target(folder, name, &stat));
                    job.stats.push(stat);
                    if has_metadata {
                        let attributes = asked_attributes(folder, name);
                        attribute_bytes += attributes.as_deref().map_or(0, byte_count);
                        job.attributes.push(attributes);
                    }
                }
                Err(error) => {
                    let why = unreadable(error);
                    self.fail(folder.shown(name.to_bytes()), why);
                }
            }
        }
        self.ask_job(job)
    }

    fn ask_job(&self, mut job: FolderJob) -> Result<(), WalkStopped> {
        let is_file = |stat: &&Stat| EntryKind::of(stat) == Some(EntryKind::File);
        let sizes = job.stats.iter().filter(is_file).map(content_size);
        self.shared.tally.found_bytes(sizes.sum());
        job.is_counted = true;
        self.command(ControlCommand::Ask(job))
    }

    fn count_sizes(&self, job: &mut FolderJob) {
        let files = job
            .entries
            .iter()
            .filter(|(_, kind)| *kind == FileType::RegularFile);
        let stats = files.filter_map(|(name, _)| stat_entry(&job.folder, name).ok());
        self.shared
            .tally
            .found_bytes(stats.map(|stat| content_size(&stat)).sum());
        job.is_counted = true;
    }
}

/// Returns true for what was no directory when the folder was listed, and is one now, and for unknown types.
fn is_strange(stat: &Stat) -> bool {
    matches!(EntryKind::of(stat), None | Some(EntryKind::Directory))
}

/// Returns the extended attributes of an entry for a question; none if they cannot be read or are too long.
fn asked_attributes(folder: &SourceFolder, name: &CStr) -> Option<Vec<Attribute>> {
    let attributes = attributes_at(&folder.fd, name).ok();
    attributes.filter(|attributes| byte_count(attributes) <= MAX_ASKED_ATTRIBUTE_BYTES)
}

/// Returns the digest of the target of a symbolic link for a question.
fn asked_target(folder: &SourceFolder, name: &CStr, stat: &Stat) -> Option<u64> {
    let is_link = EntryKind::of(stat) == Some(EntryKind::Symlink);
    let target = is_link.then(|| readlinkat(&folder.fd, name, Vec::new()));
    Some(target_digest(target?.ok()?.as_bytes()))
}

fn byte_count(attributes: &[Attribute]) -> usize {
    let sizes = attributes.iter();
    sizes.map(|(name, value)| name.len() + value.len()).sum()
}

/// Calls stat(2) for an entry of a folder, as the lanes will open it.
pub(crate) fn stat_entry(folder: &SourceFolder, name: &CStr) -> Result<Stat, Errno> {
    let flags = if folder.follow {
        AtFlags::empty()
    } else {
        AtFlags::SYMLINK_NOFOLLOW
    };
    statat(&folder.fd, name, flags)
}

/// Appends a name to those that stay at the destination.
pub(crate) fn keep_name(names: &mut Vec<EntryName>, name: &CStr) {
    names.extend(entry_name(name));
}
