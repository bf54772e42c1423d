//! The state of a destination: how and where it writes, what is done, the way to the controller, and what lanes and
//! control share.

use std::{
    collections::HashSet,
    mem,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use tokio_util::sync::CancellationToken;

use super::{
    ExistingRights,
    attributes::MetadataKeeper,
    claims::{ClaimRefusal, CopyClaims},
    ends::{HardLinkSpool, SpooledLink},
    entry::TemporaryName,
    folders::FolderTable,
    lane::broken,
    large::LargeTable,
    large_target::LargeTarget,
    placement::{PlaceFault, Placement},
    written::WrittenGuard,
};
use crate::copy::{
    budget::{ListBudget, PATH_ENTRY_BYTES},
    job::{CopyContext, CopyError},
    order::{CopyNews, CopyOptions, CopyReport, ExistingFiles, FromCopy, NameFilter},
    path::RelativePath,
    record::LargeFile,
    temporary_names::{PartOwner, RESERVED},
};

/// The most different notes of one copy: far more than one of honest hosts has.
const MAX_NOTES: usize = 256;

/// The most digests or removed paths in one message to the controller.
const BATCH: usize = 256;

/// The reason why an entry is left when the work has ended early.
pub(super) const ENDED: &str = "the copy was ended";

/// How and where a destination writes, what is done so far, and the way to the controller.
pub(super) struct DestinationState {
    pub(super) options: CopyOptions,
    /// Where they go.
    pub(super) placement: Placement,
    /// What `--delete` leaves alone: what the filters leave out of the source.
    pub(super) filter: NameFilter,
    /// Whose unfinished files are written and continued.
    pub(super) owner: PartOwner,
    /// Gives entries their names, and knows what the run has written.
    pub(super) written: WrittenGuard,
    pub(super) keeper: MetadataKeeper,
    /// What the source may do with entries that exist.
    pub(super) existing: ExistingRights,
    /// What was done so far.
    pub(super) counts: CopyCounts,
    /// What may still be removed.
    pub(super) removals: RemovalBudget,
    /// Cancelled when the work ends early, here or elsewhere.
    pub(super) halt: CancellationToken,
    budget: Arc<ListBudget>,
    context: CopyContext,
    /// The reason why the work ends early, if the failure is here.
    first: Mutex<Option<CopyError>>,
    notes: Mutex<HashSet<String>>,
    digests: Mutex<Vec<(String, Vec<u8>)>>,
    current: Mutex<Vec<u8>>,
    /// Set while the next progress message has no path yet.
    needs_current: AtomicBool,
}

/// What a destination has done so far.
#[derive(Debug, Default)]
pub(super) struct CopyCounts {
    pub(super) files: AtomicU64,
    pub(super) directories: AtomicU64,
    pub(super) bytes: AtomicU64,
    pub(super) skipped: AtomicU64,
    pub(super) resumed_bytes: AtomicU64,
    pub(super) failed: AtomicU64,
    pub(super) removed: AtomicU64,
}

impl DestinationState {
    /// Returns the state of a destination that has written nothing.
    pub(super) fn new(
        placement: Placement,
        filter: NameFilter,
        options: CopyOptions,
        keeper: MetadataKeeper,
        written: WrittenGuard,
        budget: Arc<ListBudget>,
        context: CopyContext,
    ) -> Self {
        Self {
            owner: PartOwner::user(),
            written,
            keeper,
            existing: ExistingRights::ALL,
            counts: CopyCounts::default(),
            removals: RemovalBudget::new(options.max_delete),
            filter,
            halt: context.cancelled.child_token(),
            first: Mutex::default(),
            notes: Mutex::default(),
            digests: Mutex::default(),
            current: Mutex::default(),
            needs_current: AtomicBool::new(true),
            options,
            placement,
            budget,
            context,
        }
    }

    /// Takes memory for something that is kept because the source says so.
    /// Fails if the copy has none left, which ends the work.
    pub(super) fn keep(&self, bytes: usize) -> Result<(), CopyError> {
        if self.budget.take(bytes) {
            return Ok(());
        }
        let failure = CopyError::Local(self.budget.exceeded());
        self.end_early(&failure);
        Err(failure)
    }

    pub(super) fn budget(&self) -> &ListBudget {
        &self.budget
    }

    /// Ends the work early, and keeps the failure if it is the first one. Called before a stream is aborted: the source
    /// may then drop the other streams, which break too.
    pub(super) fn end_early(&self, failure: &CopyError) {
        let is_elsewhere = self.context.cancelled.is_cancelled();
        if !is_elsewhere && !matches!(failure, CopyError::Cancelled) {
            lock(&self.first).get_or_insert(failure.clone());
        }
        self.halt.cancel();
    }

    /// Ends the work before anything was done, for a reason that comes before that of the source.
    pub(super) fn refuse(&self, why: &str) {
        (self.context.give_up)(why);
    }

    /// Checks that the work goes on. Each loop that may last calls this in every step, and what gives an entry its
    /// final name calls it immediately before: a copy whose client is gone changes nothing any more.
    /// Fails with the reason for the user if the work has ended early.
    pub(super) fn check_running(&self) -> Result<(), String> {
        if self.halt.is_cancelled() {
            return Err(ENDED.to_owned());
        }
        Ok(())
    }

    /// Returns the first failure; none if the work has not failed, or has failed elsewhere.
    pub(super) fn first_failure(&self) -> Option<CopyError> {
        lock(&self.first).clone()
    }

    /// Returns the first failure, for the peer.
    pub(super) fn reason(&self) -> String {
        match self.first_failure() {
            Some(CopyError::Stream(error)) => error.to_string(),
            Some(CopyError::Local(why)) => why,
            Some(CopyError::Cancelled) | None => (self.context.reason)(),
        }
    }

    /// Returns true if what is at a local path may be removed to make room for an entry of another kind: the user has
    /// asked to mirror and not to keep what is there, and it is in a directory that is copied.
    pub(super) fn may_replace(&self, local: &RelativePath) -> bool {
        let is_asked = self.options.delete && self.options.existing != ExistingFiles::Keep;
        is_asked && self.placement.is_in_copied_directory(local)
    }

    /// Returns true if the filters would leave the entry at a local path out of the copy, if the source had it: it is
    /// not removed.
    pub(super) fn protects(&self, local: &RelativePath, is_directory: bool) -> bool {
        if self.filter.is_empty() {
            return false;
        }
        let below = self.placement.below_source(local);
        !below.is_empty() && self.filter.excludes(below.as_bytes(), is_directory)
    }

    /// Reports that the entry at a local path was not copied, or not removed.
    /// An entry that is left because the work has ended early is no failure of its own: the end has a reason.
    pub(super) fn fail(&self, local: &RelativePath, why: impl Into<String>) {
        let why = why.into();
        if why == ENDED {
            return;
        }
        add(&self.counts.failed, 1);
        self.say(CopyNews::Failed {
            path: self.placement.shown(local),
            why,
        });
    }

    /// Reports once that device nodes were not made.
    pub(super) fn note_devices(&self) {
        self.note(self.keeper.not_kept("device nodes"));
    }

    /// Reports, once for each text and for [`MAX_NOTES`] texts, that metadata were not kept.
    pub(super) fn note(&self, text: String) {
        let mut notes = lock(&self.notes);
        let is_new = notes.len() < MAX_NOTES
            && !notes.contains(&text)
            && self.budget.take_spare(text.len() + PATH_ENTRY_BYTES)
            && notes.insert(text.clone());
        drop(notes);
        if is_new {
            self.say(CopyNews::Note(text));
        }
    }

    /// Reports paths that were removed, or would be in a dry run.
    pub(super) fn report_removed(&self, paths: &mut Vec<Vec<u8>>, all: bool) {
        let is_wanted = self.options.list || self.options.dry_run;
        if !is_wanted {
            paths.clear();
        } else if paths.len() >= BATCH || (all && !paths.is_empty()) {
            self.say(CopyNews::Removed(mem::take(paths)));
        }
    }

    /// Reports paths of entries whose metadata were changed, or would be in a dry run.
    pub(super) fn report_changed(&self, paths: Vec<Vec<u8>>) {
        let is_wanted = self.options.list || self.options.dry_run;
        if is_wanted && !paths.is_empty() {
            self.say(CopyNews::Changed(paths));
        }
    }

    /// Keeps the digest of a file for the next report.
    pub(super) fn add_digest(&self, digest: String, path: &RelativePath) {
        let mut digests = lock(&self.digests);
        digests.push((digest, path.as_bytes().to_vec()));
        let is_full = digests.len() >= BATCH;
        drop(digests);
        if is_full {
            self.report_digests();
        }
    }

    /// Says what is written at the moment, if the next progress message needs it.
    pub(super) fn set_current(&self, path: impl FnOnce() -> RelativePath) {
        if self.needs_current.load(Ordering::Relaxed) {
            self.needs_current.store(false, Ordering::Relaxed);
            *lock(&self.current) = path().into();
        }
    }

    /// Reports what is done so far, and the digests since the last report if there is room for them. Does not wait.
    pub(super) fn report_progress(&self) {
        if self.context.report.has_room() {
            self.report_digests();
        }
        self.context.report.send(FromCopy::Progress {
            files: self.counts.files.load(Ordering::Relaxed),
            bytes: self.counts.bytes.load(Ordering::Relaxed),
            current: lock(&self.current).clone(),
        });
        self.needs_current.store(true, Ordering::Relaxed);
    }

    /// Reports the digests since the last report.
    pub(super) fn report_digests(&self) {
        let digests = mem::take(&mut *lock(&self.digests));
        if !digests.is_empty() {
            self.say(CopyNews::Digests(digests));
        }
    }

    /// Reports something for the user. Blocks this thread, which is one of the copy, while there is no room for it.
    fn say(&self, news: CopyNews) {
        let report = &self.context.report;
        report.send_when_room(FromCopy::News(news), &self.halt);
    }

    /// Returns the result of the work.
    pub(super) fn report(&self, complete: bool) -> CopyReport {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        CopyReport {
            files: count(&self.counts.files),
            directories: count(&self.counts.directories),
            bytes: count(&self.counts.bytes),
            skipped: count(&self.counts.skipped),
            resumed_bytes: count(&self.counts.resumed_bytes),
            failed: count(&self.counts.failed),
            removed: count(&self.counts.removed),
            complete,
        }
    }
}

/// The entries that `--delete` may remove, and those that it has left because they are more.
#[derive(Debug)]
pub(super) struct RemovalBudget {
    most: Option<u64>,
    taken: AtomicU64,
    left: AtomicU64,
}

impl RemovalBudget {
    /// Returns the budget of a run that removes at most `most` entries.
    pub(super) fn new(most: Option<u64>) -> Self {
        Self {
            most,
            taken: AtomicU64::new(0),
            left: AtomicU64::new(0),
        }
    }

    /// Takes one removal. Returns false if there is none left.
    pub(super) fn take(&self) -> bool {
        let Some(most) = self.most else { return true };
        let next = |taken| (taken < most).then_some(taken + 1);
        let (set, read) = (Ordering::Relaxed, Ordering::Relaxed);
        self.taken.fetch_update(set, read, next).is_ok()
    }

    pub(super) fn give_back(&self) {
        if self.most.is_some() {
            self.taken.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Counts an entry that stays because there was no removal left.
    pub(super) fn note_left(&self) {
        add(&self.left, 1);
    }

    /// Returns the failure for the user if entries stay because there was no removal left.
    pub(super) fn failure(&self) -> Option<String> {
        let left = self.left.load(Ordering::Relaxed);
        let (entries, were) = if left == 1 {
            ("entry", "was")
        } else {
            ("entries", "were")
        };
        (left > 0).then(|| {
            format!(
                "{left} more {entries} {were} not removed: {}",
                self.limit_text()
            )
        })
    }

    /// Returns the reason for the user if an entry stays because there was no removal left.
    pub(super) fn limit_text(&self) -> String {
        let most = self.most.unwrap_or(u64::MAX);
        format!("--max-delete {most} is reached")
    }
}

pub(super) fn add(counter: &AtomicU64, count: u64) {
    counter.fetch_add(count, Ordering::Relaxed);
}

/// What the lanes and the control of a destination share.
pub(super) struct DestinationShared {
    /// How and where they write, and what is done so far.
    pub(super) state: DestinationState,
    pub(super) folders: FolderTable,
    /// The files that arrive in parts.
    pub(super) large: LargeTable,
    pub(super) links: HardLinkSpool,
    /// Cancelled when all operands of the source were compared with their copies: from then on lanes write.
    pub(super) compared: CancellationToken,
    /// What the copy of a server claims; none in an agent.
    claims: Option<CopyClaims>,
}

impl DestinationShared {
    /// Returns what is shared by a destination that has written nothing.
    pub(super) fn new(state: DestinationState, claims: Option<CopyClaims>) -> Self {
        Self {
            state,
            folders: FolderTable::default(),
            large: LargeTable::default(),
            links: HardLinkSpool::default(),
            compared: CancellationToken::new(),
            claims,
        }
    }

    /// Opens a file that was announced: see [`LargeTable::open`].
    pub(super) fn open_large(
        &self,
        file: &LargeFile,
    ) -> Result<Result<Arc<LargeTarget>, String>, CopyError> {
        self.large.open(&self.state, &self.folders, file)
    }

    /// Makes a hard link: see [`HardLinkSpool::make`].
    pub(super) fn make_link(
        &self,
        temporary: &mut TemporaryName,
        link: &SpooledLink,
    ) -> Result<(), String> {
        let links = &self.links;
        links.make(&self.state, &self.folders, temporary, link)
    }

    /// Reports once that a folder has no place, because a name in its path is kept from the clients of a server.
    /// Fails if the source breaks the protocol.
    pub(super) fn refuse_folder(&self, fault: PlaceFault) -> Result<(), CopyError> {
        match fault {
            PlaceFault::Broken(why) => Err(broken(why)),
            PlaceFault::Reserved(local) => {
                let why = format!("{RESERVED}: rename it");
                self.folders.fail(&self.state, &local, &why);
                Ok(())
            }
        }
    }

    /// Returns true if a local path may be written, which a copy of a server claims. If another copy writes the target
    /// that the path is in, the target is reported once.
    pub(super) fn may_write(&self, local: &RelativePath) -> bool {
        let Some(claims) = &self.claims else {
            return true;
        };
        let target = self.state.placement.target_of(local);
        target.is_none_or(|target| self.claim(claims, &target))
    }

    /// Returns true if entries of the folder at a local path may be removed.
    pub(super) fn may_mirror(&self, local: &RelativePath) -> bool {
        let Some(claims) = &self.claims else {
            return true;
        };
        // Entries of the place itself may be the targets of other copies.
        let target = self.state.placement.target_of(local).unwrap_or_default();
        self.claim(claims, &target)
    }

    /// Returns true if the folder at a local path, which is open now, may be written. The copy may have made the target
    /// that the folder is in.
    pub(super) fn may_write_in(&self, local: &RelativePath) -> bool {
        let Some(claims) = &self.claims else {
            return true;
        };
        let target = self.state.placement.target_of(local);
        target.is_none_or(|target| self.has_claim(&target, claims.claim_made(&target)))
    }

    /// Returns true if each entry of the folder at a local path is claimed on its own.
    pub(super) fn has_targets_in(&self, local: &RelativePath) -> bool {
        self.claims.is_some() && self.state.placement.target_of(local).is_none()
    }

    /// Releases the claims of a copy that has ended.
    pub(super) fn release_claims(&self) {
        if let Some(claims) = &self.claims {
            claims.release();
        }
    }

    fn claim(&self, claims: &CopyClaims, target: &RelativePath) -> bool {
        let open_place = || {
            let folder = target.split_last().map(|(folder, _)| folder);
            let opened = self
                .folders
                .open(&self.state, &folder.unwrap_or_default(), None, &[]);
            opened.map(|folder| folder.fd).map_err(String::from)
        };
        // A claim has the path three times.
        let bytes = 3 * (target.as_bytes().len() + PATH_ENTRY_BYTES);
        if !claims.knows(target) && self.state.keep(bytes).is_err() {
            return false;
        }
        self.has_claim(target, claims.claim(target, open_place))
    }

    fn has_claim(&self, target: &RelativePath, claimed: Result<(), ClaimRefusal>) -> bool {
        match claimed {
            Ok(()) => return true,
            Err(Some(why)) => self.state.fail(target, why),
            Err(None) => {}
        }
        false
    }
}

/// Returns the text of a system call's failure, without its number.
pub(super) fn errno_text<E: Into<std::io::Error>>(errno: E) -> String {
    let text = errno.into().to_string();
    match text.split_once(" (os error") {
        Some((words, _)) => words.to_owned(),
        None => text,
    }
}

/// Locks a mutex. What a thread that panicked has left behind is used as it is.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
