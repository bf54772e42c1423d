//! What the threads of a source share.

use std::{
    num::NonZero,
    sync::atomic::{AtomicU64, Ordering},
    thread::available_parallelism,
};

use rustix::fs::Stat;

use super::{
    hard_links::HardLinks, rate_limit::RateLimit, removal::SentSpool, tally::Tally,
    walk::folder::SourceFolder, work_board::WorkBoard,
};
use crate::copy::{
    order::{CopyOptions, ExistingFiles},
    path::EntryName,
};

/// What the threads of a source share.
pub(crate) struct SourceShared {
    /// How files are copied.
    pub(crate) options: CopyOptions,
    /// The counts, and the way to the controller.
    pub(crate) tally: Tally,
    /// The queue of the lanes.
    pub(crate) board: WorkBoard,
    /// Files that have several names.
    pub(crate) links: HardLinks,
    /// The limit of `--bwlimit`.
    pub(crate) limit: Option<RateLimit>,
    /// The list for `--remove-source-files`.
    pub(crate) spool: Option<SentSpool>,
    /// True if several lanes send one large file.
    pub(crate) shares_files: bool,
    large_files: AtomicU64,
}

/// The number of processors up to which one lane sends a large file, unless the user has chosen the lanes. The destination's
/// kernel lets one thread at a time write to a file, and a thread that waits for that takes the processor that the network
/// needs: with two processors, two lanes took 1.05 to 1.4 times as long as one. Different files and folders have no such limit.
const FEW_PROCESSORS: usize = 2;

/// Returns true if several lanes send one large file, with lanes that the user has chosen or not, on so many processors.
fn shares_files(has_chosen_lanes: bool, processors: Option<NonZero<usize>>) -> bool {
    has_chosen_lanes || processors.is_some_and(|count| count.get() > FEW_PROCESSORS)
}

impl SourceShared {
    /// Returns what the threads of a source share that has sent nothing.
    pub(super) fn new(options: CopyOptions, spool: Option<SentSpool>) -> Self {
        Self {
            tally: Tally::default(),
            board: WorkBoard::default(),
            links: HardLinks::default(),
            limit: options.bytes_per_second.map(RateLimit::new),
            spool,
            shares_files: shares_files(options.chosen_lanes, available_parallelism().ok()),
            large_files: AtomicU64::new(0),
            options,
        }
    }

    /// Returns true if the destination is asked for every entry.
    pub(crate) fn asks(&self) -> bool {
        let options = &self.options;
        options.existing != ExistingFiles::Replace || options.resume || options.dry_run
    }

    /// Returns true if the destination is asked with the metadata of every entry: those that it skips get them, or would in a dry
    /// run.
    pub(crate) fn asks_with_metadata(&self) -> bool {
        let options = &self.options;
        let may_skip_same = match options.existing {
            ExistingFiles::Keep => false,
            ExistingFiles::ReplaceOlder | ExistingFiles::ReplaceDifferent => true,
            ExistingFiles::Replace => options.resume,
        };
        options.archive && may_skip_same
    }

    /// Returns a number for a large file.
    pub(crate) fn next_large_id(&self) -> u64 {
        self.large_files.fetch_add(1, Ordering::Relaxed)
    }

    /// Counts an entry that was sent, and lists it. `is_whole` is false for one that changed meanwhile: it is not
    /// removed.
    pub(crate) fn sent(
        &self,
        folder: &SourceFolder,
        name: &EntryName,
        stat: &Stat,
        is_whole: bool,
    ) {
        self.tally.sent();
        if let Some(spool) = self.spool.as_ref().filter(|_| is_whole) {
            spool.add(folder, name, stat);
        }
        if self.options.list {
            self.tally.list(folder.path.join(name).into());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_lane_sends_a_file_on_few_processors_unless_the_user_has_chosen_lanes() {
        for (processors, is_shared) in [(1, false), (2, false), (3, true), (64, true)] {
            assert_eq!(shares_files(false, NonZero::new(processors)), is_shared);
            assert!(shares_files(true, NonZero::new(processors)));
        }
        assert!(!shares_files(false, None));
    }
}
