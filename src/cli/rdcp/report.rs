//! What all copies of a run have done together: the summary of it, and the object of `--json`. Pure, no I/O.

use std::fmt::Write;

use serde::Serialize;

use crate::{
    Cipher, Transport,
    cli::shared::{
        message::without_numbers,
        report::{amount, counted, decimal, rate},
        run::Exit,
    },
    copy::{
        order::CopyReport,
        supervised::{CopyOutcome, CopyPlan, CopyState, DESTINATION, SOURCE},
    },
    printable::escaped,
    ssh::{plan::StageHost, supervisor::Summary},
};

/// The most failures in a report. The others are counted, and were printed when they happened.
const MAX_FAILURES: usize = 1000;

/// The most notes and errors in a report: far more than one run of honest hosts has.
const MAX_TEXTS: usize = 100;

/// What a report has beside its totals, collected while the copies run.
#[derive(Debug, Default, Serialize)]
pub(super) struct CopyLog {
    /// The reason why the run ended early, the first cause first.
    errors: Vec<String>,
    /// What of the copied files could not be kept.
    notes: Vec<String>,
    /// The entries that were not copied.
    failures: Vec<FailureRow>,
    /// The number of failures that are not in the list.
    failures_left_out: u64,
    copies: Vec<CopyRow>,
}

#[derive(Debug, Serialize)]
struct FailureRow {
    host: String,
    /// The path, with escapes for what is not printable.
    path: String,
    why: String,
}

#[derive(Debug, Serialize)]
struct CopyRow {
    source: HostRow,
    destination: HostRow,
    /// The two-way stream first, then the lanes.
    links: Vec<LinkRow>,
}

#[derive(Debug, Serialize)]
struct HostRow {
    /// The host as it was typed; `None` is this machine.
    host: Option<String>,
    /// The host's own name, as `uname -n` prints it.
    host_name: Option<String>,
}

#[derive(Debug, Serialize)]
struct LinkRow {
    transport: Option<Transport>,
    reason: Option<String>,
    cipher: Option<String>,
    address: Option<String>,
}

/// The whole report.
#[derive(Debug, Serialize)]
pub(super) struct CopyDocument<'a> {
    /// The exit code of rdcp.
    pub(super) exit: Exit,
    /// The time from the first ssh to the end of the run.
    pub(super) seconds: f64,
    pub(super) bytes_per_second: f64,
    #[serde(flatten)]
    pub(super) totals: &'a CopyTotals,
    #[serde(flatten)]
    pub(super) log: &'a CopyLog,
}

impl CopyLog {
    /// Adds an entry that was not copied.
    pub(super) fn failed(&mut self, host: &str, path: &[u8], why: &str) {
        if self.failures.len() >= MAX_FAILURES {
            self.failures_left_out += 1;
            return;
        }
        self.failures.push(FailureRow {
            host: host.to_owned(),
            path: escaped(path),
            why: without_numbers(why),
        });
    }

    /// Adds what could not be kept.
    pub(super) fn note(&mut self, text: String) {
        if self.notes.len() < MAX_TEXTS {
            self.notes.push(text);
        }
    }

    /// Adds a reason why the run ended early.
    pub(super) fn error(&mut self, text: &str) {
        if self.errors.len() < MAX_TEXTS {
            self.errors.push(without_numbers(text));
        }
    }

    pub(super) fn ended(&mut self, plan: &CopyPlan, summary: &Summary<CopyOutcome>) {
        let host = |place: &StageHost, agent: usize| HostRow {
            host: place.host().map(str::to_owned),
            host_name: summary.hosts[agent].clone(),
        };
        let links = summary.links.iter().map(|link| LinkRow {
            transport: link.as_ref().map(|link| link.transport),
            reason: link.as_ref().map(|link| link.reason.clone()),
            cipher: link
                .as_ref()
                .and_then(|link| link.cipher.as_ref())
                .map(Cipher::to_string),
            address: link.as_ref().map(|link| link.address.clone()),
        });
        self.copies.push(CopyRow {
            source: host(&plan.from, SOURCE),
            destination: host(&plan.to, DESTINATION),
            links: links.collect(),
        });
    }
}

impl<'a> CopyDocument<'a> {
    /// Returns the report of a run.
    pub(super) fn new(exit: Exit, seconds: f64, totals: &'a CopyTotals, log: &'a CopyLog) -> Self {
        Self {
            exit,
            seconds,
            bytes_per_second: rate(totals.bytes(), seconds),
            totals,
            log,
        }
    }
}

/// What all copies of a run have done together.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub(super) struct CopyTotals {
    /// Files, links and special files that have their final names; with `-n`, that would be copied.
    files: u64,
    directories: u64,
    /// The bytes of contents that were written, without holes.
    bytes: u64,
    /// Entries that the destination had already and kept.
    skipped: u64,
    /// Bytes that were not sent, because an earlier run had written them.
    resumed_bytes: u64,
    /// Entries that were removed at the destination.
    deleted: u64,
    removed_source_files: u64,
    /// Entries that were not copied, or not removed.
    failed: u64,
}

impl CopyTotals {
    /// Returns true if contents have arrived.
    pub(super) fn has_bytes(&self) -> bool {
        self.bytes > 0
    }

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
    use crate::{
        copy::{
            order::{CopyOptions, RunPart},
            path::CopiedSources,
        },
        ssh::protocol::EdgeLink,
    };

    #[test]
    fn json_has_totals_failures_hosts_and_links() {
        let mut log = CopyLog::default();
        for _ in 0..MAX_FAILURES + 2 {
            log.failed("a", b"x/\xff", "permission denied");
        }
        log.note("owners were not kept".to_owned());
        let plan = CopyPlan {
            from: StageHost::Here,
            paths: vec![b"x".to_vec()],
            to: StageHost::Host {
                destination: "u@b".to_owned(),
                host: "b".to_owned(),
            },
            path: b"y".to_vec(),
            sources: CopiedSources::One,
            part: RunPart::default(),
            lanes: 1,
            options: CopyOptions::default(),
        };
        let link = EdgeLink {
            transport: Transport::Tcp,
            reason: "no RDMA device here".to_owned(),
            is_fallback: false,
            cipher: None,
            rails: 1,
            address: "10.0.0.2".to_owned(),
        };
        let summary = Summary {
            outcome: CopyOutcome::default(),
            hosts: vec![None, Some("beta".to_owned())],
            links: vec![Some(link), None],
        };
        log.ended(&plan, &summary);
        let totals = CopyTotals::default();
        let document = CopyDocument::new(Exit::Local, 1.5, &totals, &log);
        let value: serde_json::Value = serde_json::to_value(&document).unwrap();
        assert_eq!(
            (&value["exit"], &value["seconds"]),
            (&1.into(), &1.5.into())
        );
        for name in [
            "files",
            "directories",
            "bytes",
            "skipped",
            "deleted",
            "failed",
        ] {
            assert_eq!(value[name], 0, "{name}");
        }
        assert_eq!(value["failures"].as_array().unwrap().len(), MAX_FAILURES);
        assert_eq!(value["failures"][0]["path"], "x/\\xff");
        assert_eq!(value["failures_left_out"], 2);
        assert_eq!(value["notes"][0], "owners were not kept");
        let copy = &value["copies"][0];
        assert_eq!(copy["source"]["host"], serde_json::Value::Null);
        assert_eq!(copy["destination"]["host"], "b");
        assert_eq!(copy["destination"]["host_name"], "beta");
        assert_eq!(copy["links"][0]["address"], "10.0.0.2");
        assert_eq!(copy["links"][1]["transport"], serde_json::Value::Null);
    }

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
