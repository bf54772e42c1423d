//! What the threads of a source share, the rate of all lanes together among it.

use std::{
    num::NonZero,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    thread::available_parallelism,
    time::{Duration, Instant},
};

use rustix::{fs::Stat, io::Errno};

use super::{
    attributes::HardLinks, removal::SentSpool, tally::Tally, walk::outlet::SourceFolder,
    work_board::WorkBoard,
};
use crate::copy::{
    order::{CopyOptions, ExistingFiles},
    path::EntryName,
    record::RecordError,
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

/// The number of processors up to which one lane sends a large file, unless the user has chosen the lanes. The
/// destination's kernel lets one thread at a time write to a file, and a thread that waits for that takes the processor
/// that the network needs: with two processors, two lanes took 1.05 to 1.4 times as long as one. Different files and
/// folders have no such limit.
const FEW_PROCESSORS: usize = 2;

/// Returns true if several lanes send one large file, with lanes that the user has chosen or not, on so many
/// processors.
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

    /// Returns true if the destination is asked with the metadata of every entry: those that it skips get them, or
    /// would in a dry run.
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

/// The time that a rate may be made up for: bytes that were not sent for longer are not caught up.
const BURST: Duration = Duration::from_millis(100);

/// The fewest bytes that are sent at a time.
const MIN_PIECE: usize = 4 << 10;

/// A limit of the bytes per second, shared by all lanes.
pub(crate) struct RateLimit {
    bytes_per_second: u64,
    /// When all bytes that were sent so far may have been sent.
    paid: Mutex<Instant>,
}

impl RateLimit {
    /// Returns a limit. A rate of 0 counts as 1 byte per second.
    pub(crate) fn new(bytes_per_second: u64) -> Self {
        Self {
            bytes_per_second: bytes_per_second.max(1),
            paid: Mutex::new(Instant::now()),
        }
    }

    /// Returns the most bytes that are sent at a time: those of a twentieth of a second, so that a slow rate is even.
    pub(crate) fn most_bytes(&self) -> usize {
        let piece = usize::try_from(self.bytes_per_second / 20).unwrap_or(usize::MAX);
        piece.max(MIN_PIECE)
    }

    /// Counts bytes that were sent, and returns how long the caller has to wait now.
    pub(crate) fn count(&self, bytes: usize) -> Duration {
        let now = Instant::now();
        let mut paid = self.paid.lock().unwrap_or_else(PoisonError::into_inner);
        let earliest = now.checked_sub(BURST).unwrap_or(now);
        #[allow(clippy::cast_precision_loss, reason = "a duration of some seconds")]
        let cost = Duration::from_secs_f64(bytes as f64 / self.bytes_per_second as f64);
        *paid = (*paid).max(earliest) + cost;
        paid.saturating_duration_since(now)
    }
}

/// Returns the sentence for an entry whose opening or reading has failed.
pub(super) fn unreadable(error: Errno) -> String {
    match error {
        Errno::NOENT => "vanished before it was copied".to_owned(),
        Errno::LOOP | Errno::NXIO | Errno::NOTDIR => {
            "was replaced by something else while it was copied".to_owned()
        }
        error => format!("cannot be read: {error}"),
    }
}

/// Returns the sentence for metadata that do not fit into a record.
pub(super) fn too_long(error: &RecordError) -> String {
    format!("its metadata cannot be sent: {error}")
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

    #[test]
    fn a_second_of_bytes_takes_a_second() {
        let limit = RateLimit::new(1 << 20);
        assert_eq!(limit.most_bytes(), (1 << 20) / 20);
        let mut wait = Duration::ZERO;
        for _ in 0..32 {
            wait = limit.count(1 << 15);
        }
        assert!(wait > Duration::from_millis(800) && wait <= Duration::from_secs(1));
        assert_eq!(RateLimit::new(10).most_bytes(), MIN_PIECE);
    }
}
