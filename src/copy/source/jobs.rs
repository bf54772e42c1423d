//! Jobs for the lanes, each a folder with some of its entries: what the walk has found becomes jobs, and the jobs wait
//! in a bounded queue.

use std::{
    collections::VecDeque,
    ffi::CStr,
    os::fd::OwnedFd,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use rustix::{
    fs::{AtFlags, FileType, Stat, readlinkat, statat},
    io::Errno,
};
use tokio::sync::{Notify, OwnedSemaphorePermit, mpsc};

use super::{
    large_file::{LargeSource, NextRange},
    questions::ControlCommand,
    state::{SourceShared, unreadable},
};
use crate::copy::{
    budget::HeldBytes,
    identity::SourceOperand,
    metadata::{Attribute, EntryKind, Metadata, attributes_at, content_size},
    path::{EntryName, RelativePath},
    question::{AnswerKind, FromSource, MAX_ASKED_ATTRIBUTE_BYTES, MAX_ENTRIES, target_digest},
};

/// A walk that lasts longer also looks at the sizes of files, while it waits for the lanes. A shorter copy needs no
/// total for its progress, and is faster without it.
const SIZES_AFTER: Duration = Duration::from_secs(2);

/// Passes jobs to the lanes, or to the questions that come before.
pub(crate) struct WalkOutlet {
    shared: Arc<SourceShared>,
    /// For operands, questions and the names of `--delete`.
    control: mpsc::Sender<ControlCommand>,
    started: Instant,
}

impl WalkOutlet {
    pub(crate) fn new(shared: Arc<SourceShared>, control: mpsc::Sender<ControlCommand>) -> Self {
        Self {
            shared,
            control,
            started: Instant::now(),
        }
    }

    /// Passes on entries of a folder. Blocks while the queue is full.
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
        self.command(ControlCommand::Tell(message))
    }

    /// Passes on operands, for the destination to compare with their copies.
    pub(crate) fn operands(
        &self,
        operands: Vec<SourceOperand>,
        last: bool,
    ) -> Result<(), WalkStopped> {
        self.command(ControlCommand::Tell(FromSource::Operands {
            operands,
            last,
        }))
    }

    /// Passes on names if there are as many as fit into one message.
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

    /// Reports a note, once for each text.
    pub(crate) fn note(&self, text: &str) {
        self.shared.tally.note(text);
    }

    /// Returns true if the run has ended.
    pub(crate) fn is_stopped(&self) -> bool {
        self.shared.board.is_closed()
    }

    pub(crate) fn complete(self) {
        self.shared.tally.walked();
        if !self.shared.asks() {
            self.shared.board.complete();
            self.count_waiting();
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
        // Its answers say what of it is sent.
        job.is_counted = true;
        self.command(ControlCommand::Ask(job))
    }

    fn count_sizes(&self, job: &mut FolderJob) {
        self.count(&job.folder, &job.entries);
        job.is_counted = true;
    }

    fn count(&self, folder: &SourceFolder, entries: &EntryList) {
        let files = entries
            .iter()
            .filter(|(_, kind)| *kind == FileType::RegularFile);
        let stats = files.filter_map(|(name, _)| stat_entry(folder, name).ok());
        let bytes = stats.map(|stat| content_size(&stat)).sum();
        self.shared.tally.sized(entries.len(), bytes);
    }

    /// Looks at the sizes of the files that still wait for a lane, if the run lasts so long.
    fn count_waiting(&self) {
        let rest = SIZES_AFTER.saturating_sub(self.started.elapsed());
        for (folder, entries) in self.shared.board.uncounted_after(rest) {
            if self.is_stopped() {
                return;
            }
            self.count(&folder, &entries);
        }
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

/// The most entries of a job: enough that a job costs little for each entry, few enough that a queue of jobs is small.
pub(crate) const JOB_ENTRIES: usize = 128;

/// The directory that was opened for an operand. Its path and its identity are kept, not its descriptor.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct SourceRoot {
    pub(crate) open_path: Vec<u8>,
    /// The device and the inode of the directory.
    pub(crate) identity: (u64, u64),
}

/// A directory whose entries are sent.
pub(crate) struct SourceFolder {
    /// The open directory.
    pub(crate) fd: OwnedFd,
    /// The directory that the path `below` starts at.
    pub(crate) root: Arc<SourceRoot>,
    /// The path from the root.
    pub(crate) below: RelativePath,
    /// The path at the destination.
    pub(crate) path: RelativePath,
    /// The path as the user would type it; empty for the working directory.
    pub(crate) shown: Vec<u8>,
    /// The metadata; none if only entries of the folder were named.
    pub(crate) metadata: Option<Metadata>,
    /// The modes of the folder and of the directories above it up to the operand, the nearest first. Empty if only
    /// entries of the folder were named.
    pub(crate) modes: Arc<[u32]>,
    /// True if links among the entries are followed: the user named them, without asking for links.
    pub(crate) follow: bool,
    /// The lane that sends the entries, or [`NO_LANE`].
    lane: AtomicUsize,
    is_counted: AtomicBool,
}

const NO_LANE: usize = usize::MAX;

impl SourceFolder {
    /// Returns the folder that `fd` is open for, at the top of `root`.
    pub(crate) fn top(fd: OwnedFd, root: Arc<SourceRoot>, shown: Vec<u8>) -> Self {
        Self {
            fd,
            root,
            below: RelativePath::default(),
            path: RelativePath::default(),
            shown,
            metadata: None,
            modes: Arc::default(),
            follow: false,
            lane: AtomicUsize::new(NO_LANE),
            is_counted: AtomicBool::new(false),
        }
    }

    /// Returns true at the first call.
    pub(crate) fn claim_count(&self) -> bool {
        !self.is_counted.swap(true, Ordering::Relaxed)
    }

    /// Returns the path of an entry as the user would type it.
    pub(crate) fn shown(&self, name: &[u8]) -> Vec<u8> {
        join_shown(&self.shown, name)
    }

    /// Gives the folder to a lane, unless another one has it. Returns true if `lane` has it now.
    pub(crate) fn claim(&self, lane: usize) -> bool {
        let claimed =
            self.lane
                .compare_exchange(NO_LANE, lane, Ordering::Relaxed, Ordering::Relaxed);
        claimed.is_ok() || claimed == Err(lane)
    }
}

/// Returns the path of `name` in a folder that the user would type as `folder`.
pub(crate) fn join_shown(folder: &[u8], name: &[u8]) -> Vec<u8> {
    let mut path = Vec::with_capacity(folder.len() + 1 + name.len());
    path.extend_from_slice(folder);
    if !folder.is_empty() && !folder.ends_with(b"/") && !name.is_empty() {
        path.push(b'/');
    }
    path.extend_from_slice(name);
    path
}

/// Names of entries, back to back in one allocation.
#[derive(Default, Clone)]
pub(crate) struct EntryList {
    /// The names, each with a NUL behind it.
    names: Vec<u8>,
    /// For each entry, the end of its name and its type.
    heads: Vec<(usize, FileType)>,
}

impl EntryList {
    pub(crate) fn push(&mut self, name: &CStr, kind: FileType) {
        self.names.extend_from_slice(name.to_bytes_with_nul());
        self.heads.push((self.names.len(), kind));
    }

    pub(crate) fn len(&self) -> usize {
        self.heads.len()
    }

    /// Returns true if there is no entry.
    pub(crate) fn is_empty(&self) -> bool {
        self.heads.is_empty()
    }

    /// Returns the name and the type of an entry.
    /// Panics if there is no such entry.
    pub(crate) fn entry(&self, index: usize) -> (&CStr, FileType) {
        let start = index.checked_sub(1).map_or(0, |last| self.heads[last].0);
        let (end, kind) = self.heads[index];
        let name = CStr::from_bytes_with_nul(&self.names[start..end]);
        (name.unwrap_or_default(), kind)
    }

    /// Returns all entries in their order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&CStr, FileType)> {
        (0..self.len()).map(|index| self.entry(index))
    }
}

pub(crate) struct FolderJob {
    pub(crate) folder: Arc<SourceFolder>,
    /// The entries. None, if the folder has nothing but directories.
    pub(crate) entries: EntryList,
    /// What stat(2) said of each entry, if the destination is asked for them.
    pub(crate) stats: Vec<Stat>,
    /// The extended attributes of each entry, if the destination is asked with them; none for an entry whose attributes
    /// cannot be read.
    pub(crate) attributes: Vec<Option<Vec<Attribute>>>,
    /// The digest of the target of each symbolic link, if the destination is asked for the entries; none for others.
    pub(crate) targets: Vec<Option<u64>>,
    /// What the destination wants of each entry. Empty if it wants all.
    pub(crate) answers: Vec<AnswerKind>,
    /// The memory of the ranges in the answers.
    pub(crate) held: Option<HeldBytes>,
    /// Entries that the destination keeps and that are further names of a file: the number of each, and the first name.
    pub(crate) kept_links: Vec<(usize, RelativePath)>,
    /// The permit to ask for the entries. It is dropped when a lane takes the job.
    pub(crate) turn: Option<OwnedSemaphorePermit>,
    /// True if the sizes of the entries were added to what the walk has found.
    pub(crate) is_counted: bool,
}

impl FolderJob {
    /// Returns a job for entries that the destination is not asked for.
    pub(crate) fn new(folder: Arc<SourceFolder>, entries: EntryList) -> Self {
        Self {
            folder,
            entries,
            stats: Vec::new(),
            attributes: Vec::new(),
            targets: Vec::new(),
            answers: Vec::new(),
            held: None,
            kept_links: Vec::new(),
            turn: None,
            is_counted: false,
        }
    }
}

/// Returns a name that a directory has listed as the name of an entry.
pub(crate) fn entry_name(name: &CStr) -> Option<EntryName> {
    EntryName::try_from(name.to_bytes().to_vec()).ok()
}

/// The most jobs that wait for a lane: enough that no lane waits for the walk, few enough that their open folders are
/// far from the limit of descriptors.
const MAX_JOBS: usize = 16;

/// Jobs for the lanes, and large files whose ranges any lane may send.
///
/// A lane takes the first job whose folder it has, or that no lane has. So all entries of one folder travel in one
/// lane, and a lane without work takes the next folder.
#[derive(Default)]
pub(crate) struct WorkBoard {
    state: Mutex<BoardState>,
    /// Something has changed that a lane may wait for.
    changed: Notify,
    /// A job was taken: for the walker, which is a thread.
    room: Condvar,
}

#[derive(Default)]
struct BoardState {
    jobs: VecDeque<FolderJob>,
    shared: Vec<Arc<LargeSource>>,
    /// The number of lanes that work on a job, which may still share a large file.
    busy: usize,
    is_complete: bool,
    is_closed: bool,
}

pub(crate) enum LaneWork {
    /// All entries of a job. The lane calls [`WorkBoard::finished`] afterwards.
    Job(FolderJob),
    /// A range of a large file that another lane has shared, and then further ranges of the same file.
    Range(Arc<LargeSource>, NextRange),
}

/// The run has ended before the walk: the walk stops.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct WalkStopped;

/// What a lane does next.
#[allow(
    clippy::large_enum_variant,
    reason = "a lane has one, and a box would be an allocation for each job"
)]
pub(crate) enum NextWork {
    /// It sends this.
    Work(LaneWork),
    /// It waits: work may still come.
    Wait,
    /// It ends: no work will come.
    End,
}

impl WorkBoard {
    /// Adds a job. Blocks while the board is full.
    /// Fails if the board was closed.
    pub(crate) fn push_blocking(&self, job: FolderJob) -> Result<(), WalkStopped> {
        let full = |state: &mut BoardState| !state.is_closed && state.jobs.len() >= MAX_JOBS;
        let waited = self.room.wait_while(self.state(), full);
        self.add(waited.unwrap_or_else(PoisonError::into_inner), job)
    }

    /// Adds a job that the destination was asked for. Does not wait: the permits for questions bound the number of
    /// these jobs.
    /// Fails if the board was closed.
    pub(crate) fn push_asked(&self, job: FolderJob) -> Result<(), WalkStopped> {
        self.add(self.state(), job)
    }

    fn add(
        &self,
        mut state: MutexGuard<'_, BoardState>,
        job: FolderJob,
    ) -> Result<(), WalkStopped> {
        if state.is_closed {
            return Err(WalkStopped);
        }
        state.jobs.push_back(job);
        drop(state);
        self.changed.notify_waiters();
        Ok(())
    }

    /// Returns true if the next job would have to wait.
    pub(crate) fn is_full(&self) -> bool {
        let state = self.state();
        !state.is_closed && state.jobs.len() >= MAX_JOBS
    }

    /// Returns true if the run has ended.
    pub(crate) fn is_closed(&self) -> bool {
        self.state().is_closed
    }

    /// Waits while jobs are on the board, at most for `limit`, and then returns the entries of the jobs whose sizes were
    /// not counted, which count from now on.
    fn uncounted_after(&self, limit: Duration) -> Vec<(Arc<SourceFolder>, EntryList)> {
        let has_jobs = |state: &mut BoardState| !state.is_closed && !state.jobs.is_empty();
        let waited = self.room.wait_timeout_while(self.state(), limit, has_jobs);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        let jobs = state.jobs.iter_mut().filter(|job| !job.is_counted);
        let take = |job: &mut FolderJob| {
            job.is_counted = true;
            (Arc::clone(&job.folder), job.entries.clone())
        };
        jobs.map(take).collect()
    }

    /// Notes that no job will be added.
    pub(crate) fn complete(&self) {
        self.state().is_complete = true;
        self.changed.notify_waiters();
    }

    /// Drops all jobs and ends the walk.
    pub(crate) fn close(&self) {
        let jobs = {
            let mut state = self.state();
            state.is_closed = true;
            std::mem::take(&mut state.jobs)
        };
        drop(jobs);
        self.room.notify_all();
        self.changed.notify_waiters();
    }

    /// Lets other lanes send ranges of a file.
    pub(crate) fn share(&self, file: Arc<LargeSource>) {
        self.state().shared.push(file);
        self.changed.notify_waiters();
    }

    /// Notes that a lane has finished a job.
    pub(crate) fn finished(&self) {
        self.state().busy -= 1;
        self.changed.notify_waiters();
    }

    /// Returns true if a job waits that `lane` could take.
    pub(crate) fn has_job(&self, lane: usize) -> bool {
        let state = self.state();
        state.jobs.iter().any(|job| job.folder.claim(lane))
    }

    /// Waits for work for a lane. Returns work or the end.
    /// Cancel safe: work that was not returned stays on the board.
    pub(crate) async fn take(&self, lane: usize) -> NextWork {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            match self.try_take(lane) {
                NextWork::Wait => changed.await,
                work => return work,
            }
        }
    }

    pub(crate) fn try_take(&self, lane: usize) -> NextWork {
        let mut state = self.state();
        if let Some(at) = state.jobs.iter().position(|job| job.folder.claim(lane)) {
            state.busy += 1;
            let job = state.jobs.remove(at);
            drop(state);
            self.room.notify_one();
            return match job {
                Some(mut job) => {
                    job.turn = None;
                    NextWork::Work(LaneWork::Job(job))
                }
                None => NextWork::Wait,
            };
        }
        while let Some(file) = state.shared.last() {
            if let Some(range) = file.join() {
                return NextWork::Work(LaneWork::Range(Arc::clone(file), range));
            }
            state.shared.pop();
        }
        let is_over = state.is_complete && state.jobs.is_empty() && state.busy == 0;
        if is_over || state.is_closed {
            NextWork::End
        } else {
            NextWork::Wait
        }
    }

    fn state(&self) -> MutexGuard<'_, BoardState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_come_back_in_their_order() {
        let mut list = EntryList::default();
        list.push(c"first", FileType::RegularFile);
        list.push(c"\xff\n", FileType::Symlink);
        assert_eq!(list.len(), 2);
        assert_eq!(list.entry(1), (c"\xff\n", FileType::Symlink));
        let names: Vec<&CStr> = list.iter().map(|(name, _)| name).collect();
        assert_eq!(names, [c"first", c"\xff\n"]);
    }

    #[test]
    fn shown_paths_are_what_a_user_types() {
        assert_eq!(join_shown(b"", b"a"), b"a");
        assert_eq!(join_shown(b"/", b"a"), b"/a");
        assert_eq!(join_shown(b"dir/", b"a"), b"dir/a");
        assert_eq!(join_shown(b"dir", b"a"), b"dir/a");
        assert_eq!(join_shown(b"dir", b""), b"dir");
    }
}
