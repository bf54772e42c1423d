//! What all copies of a run have done together, and the summary of it. Pure, no I/O.

use std::fmt::Write;

use serde::Serialize;

use crate::{
    cli::shared::amounts::{amount, counted, decimal, rate},
    copy::{
        order::CopyReport,
        supervised::{CopyOutcome, CopyState},
    },
};

/// What all copies of a run have done together.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub(super) struct CopyTotals {
    /// Files, links and special files that have their final names; with `-n`, that would be copied.
    files: u64,
    /// Directories that were made.
    directories: u64,
    /// The bytes of contents that were written, without holes.
    bytes: u64,
    /// Entries that the destination had already and kept.
    skipped: u64,
    /// Bytes that were not sent, because an earlier run had written them.
    resumed_bytes: u64,
    /// Entries that were removed at the destination.
    deleted: u64,
    /// Files that were removed at the source.
    removed_source_files: u64,
    /// Entries that were not copied, or not removed.
    failed: u64,
}

impl CopyTotals {
    /// Adds a copy that has ended. `state` counts for a destination without a report.
    pub(super) fn add(&mut self, outcome: &CopyOutcome, state: &CopyState) {
        let source = outcome.source.clone().unwrap_or_default();
        let destination = outcome.destination.clone().unwrap_or(CopyReport {
            files: state.files,
            bytes: state.bytes,
            ..CopyReport::default()
        });
        self.files += destination.files;
        self.directories += destination.directories;
        self.bytes += destination.bytes;
        // Which of the two agents counts what was not sent depends on the option.
        self.skipped += source.skipped.max(destination.skipped);
        self.resumed_bytes += source.resumed_bytes.max(destination.resumed_bytes);
        self.deleted += destination.removed;
        self.removed_source_files += source.removed;
        self.failed += outcome.failed;
    }

    /// Adds a dry run. Its source counts what it would send, and its destination what it would remove.
    pub(super) fn add_dry(&mut self, outcome: &CopyOutcome) {
        let count = |report: &Option<CopyReport>| report.as_ref().map_or(0, |report| report.files);
        self.add(outcome, &CopyState::default());
        let written = count(&outcome.destination);
        self.files += count(&outcome.source).saturating_sub(written);
    }

    /// Returns the bytes of contents that were written.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the summary of a run that took so many seconds, in one line.
    pub(super) fn summary(&self, seconds: f64, is_dry_run: bool) -> String {
        let mut text = if is_dry_run {
            format!("would copy {}", counted(self.files, "file", "files"))
        } else {
            format!(
                "{}, {}, {} in {seconds:.1} s ({}/s)",
                counted(self.files, "file", "files"),
                counted(self.directories, "directory", "directories"),
                amount(self.bytes),
                decimal(rate(self.bytes, seconds)),
            )
        };
        let would = if is_dry_run { "would be " } else { "" };
        for (count, what) in [
            (self.skipped, "skipped"),
            (self.deleted, "removed"),
            (self.removed_source_files, "removed at the source"),
        ] {
            if count > 0 {
                let _ = write!(text, ", {count} {would}{what}");
            }
        }
        if self.resumed_bytes > 0 {
            let _ = write!(text, ", {} were there already", amount(self.resumed_bytes));
        }
        if self.failed > 0 {
            let _ = write!(text, ", {} failed", self.failed);
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(source: CopyReport, destination: Option<CopyReport>, failed: u64) -> CopyOutcome {
        CopyOutcome {
            source: Some(source),
            destination,
            failed,
            ..CopyOutcome::default()
        }
    }

    #[test]
    fn a_summary_names_what_happened() {
        let mut totals = CopyTotals::default();
        let written = CopyReport {
            files: 1,
            directories: 1,
            bytes: 3_000_000,
            complete: true,
            ..CopyReport::default()
        };
        let sent = written.clone();
        totals.add(&outcome(sent, Some(written), 0), &CopyState::default());
        assert_eq!(
            totals.summary(2.0, false),
            "1 file, 1 directory, 3.0 MB in 2.0 s (1.5 MB/s)"
        );
        let source = CopyReport {
            skipped: 5,
            removed: 2,
            ..CopyReport::default()
        };
        let destination = CopyReport {
            files: 9,
            removed: 4,
            resumed_bytes: 7_000,
            ..CopyReport::default()
        };
        totals.add(
            &outcome(source, Some(destination), 3),
            &CopyState::default(),
        );
        assert_eq!(
            totals.summary(2.0, false),
            "10 files, 1 directory, 3.0 MB in 2.0 s (1.5 MB/s), 5 skipped, 4 removed, 2 removed at the source, 7.0 kB were there already, 3 failed"
        );
    }

    #[test]
    fn a_copy_that_was_cut_counts_what_the_destination_had_reported() {
        let mut totals = CopyTotals::default();
        let state = CopyState {
            files: 7,
            bytes: 70,
            found_files: 100,
            ..CopyState::default()
        };
        totals.add(&outcome(CopyReport::default(), None, 0), &state);
        assert!(
            totals
                .summary(0.0, false)
                .starts_with("7 files, 0 directories, 70 B")
        );
    }

    #[test]
    fn the_summary_of_a_dry_run_says_what_would_happen() {
        let totals = CopyTotals {
            files: 3,
            deleted: 1,
            ..CopyTotals::default()
        };
        assert_eq!(
            totals.summary(1.0, true),
            "would copy 3 files, 1 would be removed"
        );
    }
}
