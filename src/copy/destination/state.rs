//! What the lanes and the control of a destination share.

use std::{
    collections::HashSet,
    mem,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use tokio_util::sync::CancellationToken;

use super::{
    DestinationEngine,
    attributes::MetadataKeeper,
    claims::{ClaimRefusal, CopyClaims},
    large::LargeTable,
    placement::Placement,
    tree::{folders::FolderTable, links::HardLinkSpool},
};
use crate::copy::{
    context::{CopyContext, CopyTrouble},
    filter::NameFilter,
    order::{CopyNews, CopyOptions, CopyReport, FromCopy},
    path::RelativePath,
};

/// The most digests or removed paths in one message to the controller.
const BATCH: usize = 256;

/// What the lanes and the control of a destination share.
pub(super) struct DestinationState {
    /// How files are copied.
    pub(super) options: CopyOptions,
    /// Where they go.
    pub(super) placement: Placement,
    /// The folders that the source has named.
    pub(super) folders: FolderTable,
    /// The files that arrive in parts.
    pub(super) large: LargeTable,
    /// The hard links that are made at the end.
    pub(super) links: HardLinkSpool,
    /// What `--delete` leaves alone: what the filters leave out of the source.
    pub(super) filter: NameFilter,
    /// Gives entries their metadata.
    pub(super) keeper: MetadataKeeper,
    /// What was done so far.
    pub(super) counts: CopyCounts,
    /// Cancelled when the work ends early, here or elsewhere.
    pub(super) halt: CancellationToken,
    /// What the copy of a server claims; none in an agent.
    claims: Option<CopyClaims>,
    context: CopyContext,
    /// Why the work ends early, if the failure is here.
    first: Mutex<Option<CopyTrouble>>,
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
    pub(super) fn new(engine: DestinationEngine, context: CopyContext) -> Self {
        let DestinationEngine {
            placement,
            filter,
            options,
            is_served,
            claims,
        } = engine;
        Self {
            folders: FolderTable::default(),
            large: LargeTable::default(),
            links: HardLinkSpool::default(),
            keeper: MetadataKeeper::of_process(options.archive, is_served),
            counts: CopyCounts::default(),
            filter,
            halt: context.cancelled.child_token(),
            first: Mutex::default(),
            notes: Mutex::default(),
            digests: Mutex::default(),
            current: Mutex::default(),
            needs_current: AtomicBool::new(true),
            options,
            placement,
            claims,
            context,
        }
    }

    /// Returns true if a local path may be written, which a copy of a server claims. If another copy writes the target that
    /// the path is in, the target is reported once.
    pub(super) fn may_write(&self, local: &RelativePath) -> bool {
        let Some(claims) = &self.claims else {
            return true;
        };
        let target = self.placement.target_of(local);
        target.is_none_or(|target| self.claim(claims, &target))
    }

    /// Returns true if entries of the folder at a local path may be removed.
    pub(super) fn may_mirror(&self, local: &RelativePath) -> bool {
        let Some(claims) = &self.claims else {
            return true;
        };
        // Entries of the place itself may be the targets of other copies.
        let target = self.placement.target_of(local).unwrap_or_default();
        self.claim(claims, &target)
    }

    /// Returns true if the folder at a local path, which is open now, may be written. The copy may have made the target
    /// that the folder is in.
    pub(super) fn may_write_in(&self, local: &RelativePath) -> bool {
        let Some(claims) = &self.claims else {
            return true;
        };
        let target = self.placement.target_of(local);
        target.is_none_or(|target| self.has_claim(&target, claims.claim_made(&target)))
    }

    /// Returns true if each entry of the folder at a local path is claimed on its own.
    pub(super) fn has_targets_in(&self, local: &RelativePath) -> bool {
        self.claims.is_some() && self.placement.target_of(local).is_none()
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
            let opened = self.folders.open(self, &folder.unwrap_or_default(), None);
            opened.map(|folder| folder.fd)
        };
        self.has_claim(target, claims.claim(target, open_place))
    }

    fn has_claim(&self, target: &RelativePath, claimed: Result<(), ClaimRefusal>) -> bool {
        match claimed {
            Ok(()) => return true,
            Err(Some(why)) => self.fail(target, why),
            Err(None) => {}
        }
        false
    }

    /// Ends the work early, and keeps the trouble if it is the first one. Called before a stream is aborted: the source may
    /// then drop the other streams, which break too.
    pub(super) fn end_early(&self, trouble: &CopyTrouble) {
        let is_elsewhere = self.context.cancelled.is_cancelled();
        if !is_elsewhere && !matches!(trouble, CopyTrouble::Cancelled) {
            lock(&self.first).get_or_insert(trouble.clone());
        }
        self.halt.cancel();
    }

    /// Returns the first trouble; none if the work has not failed, or has failed elsewhere.
    pub(super) fn first_trouble(&self) -> Option<CopyTrouble> {
        lock(&self.first).clone()
    }

    /// Returns the first failure, for the peer.
    pub(super) fn reason(&self) -> String {
        match self.first_trouble() {
            Some(CopyTrouble::Stream(error)) => error.to_string(),
            Some(CopyTrouble::Local(why)) => why,
            Some(CopyTrouble::Cancelled) | None => (self.context.reason)(),
        }
    }

    /// Reports that the entry at a local path was not copied, or not removed.
    pub(super) fn fail(&self, local: &RelativePath, why: impl Into<String>) {
        add(&self.counts.failed, 1);
        (self.context.report)(FromCopy::News(CopyNews::Failed {
            path: self.placement.shown(local),
            why: why.into(),
        }));
    }

    /// Reports, once for each text, that metadata were not kept.
    pub(super) fn note(&self, text: String) {
        let is_new = lock(&self.notes).insert(text.clone());
        if is_new {
            (self.context.report)(FromCopy::News(CopyNews::Note(text)));
        }
    }

    /// Reports paths that were removed, or would be in a dry run.
    pub(super) fn report_removed(&self, paths: &mut Vec<Vec<u8>>, all: bool) {
        let is_wanted = self.options.list || self.options.dry_run;
        if !is_wanted {
            paths.clear();
        } else if paths.len() >= BATCH || (all && !paths.is_empty()) {
            (self.context.report)(FromCopy::News(CopyNews::Removed(mem::take(paths))));
        }
    }

    /// Keeps the digest of a file for the next report.
    pub(super) fn add_digest(&self, digest: String, path: &RelativePath) {
        let mut digests = lock(&self.digests);
        digests.push((digest, path.as_bytes().to_vec()));
        if digests.len() >= BATCH {
            (self.context.report)(FromCopy::News(CopyNews::Digests(mem::take(&mut *digests))));
        }
    }

    /// Says what is written at the moment, if the next progress message needs it.
    pub(super) fn set_current(&self, path: impl FnOnce() -> RelativePath) {
        if self.needs_current.load(Ordering::Relaxed) {
            self.needs_current.store(false, Ordering::Relaxed);
            *lock(&self.current) = path().into();
        }
    }

    /// Reports what is done so far, and the digests since the last report.
    pub(super) fn report_progress(&self) {
        let digests = mem::take(&mut *lock(&self.digests));
        if !digests.is_empty() {
            (self.context.report)(FromCopy::News(CopyNews::Digests(digests)));
        }
        (self.context.report)(FromCopy::Progress {
            files: self.counts.files.load(Ordering::Relaxed),
            bytes: self.counts.bytes.load(Ordering::Relaxed),
            current: lock(&self.current).clone(),
        });
        self.needs_current.store(true, Ordering::Relaxed);
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

/// Adds to a counter.
pub(super) fn add(counter: &AtomicU64, count: u64) {
    counter.fetch_add(count, Ordering::Relaxed);
}

/// Locks a mutex. What a thread that panicked has left behind is used as it is.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the text of a system call's failure, without its number.
pub(super) fn words<E: Into<std::io::Error>>(errno: E) -> String {
    let text = errno.into().to_string();
    match text.split_once(" (os error") {
        Some((words, _)) => words.to_owned(),
        None => text,
    }
}
