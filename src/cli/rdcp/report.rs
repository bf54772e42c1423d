//! The report of `--json`: one object about all copies of a run.

use serde::Serialize;

use super::{names::shown, totals::CopyTotals};
use crate::{
    cli::shared::{amounts::rate, exit::Exit},
    copy::supervised::{CopyOutcome, CopyPlan, DESTINATION, SOURCE},
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
    transport: Option<String>,
    reason: Option<String>,
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
            path: shown(path),
            why: why.to_owned(),
        });
    }

    /// Adds what could not be kept.
    pub(super) fn note(&mut self, text: String) {
        if self.notes.len() < MAX_TEXTS {
            self.notes.push(text);
        }
    }

    /// Adds a reason why the run ended early.
    pub(super) fn error(&mut self, text: String) {
        if self.errors.len() < MAX_TEXTS {
            self.errors.push(text);
        }
    }

    /// Adds a copy that has ended.
    pub(super) fn ended(&mut self, plan: &CopyPlan, summary: &Summary<CopyOutcome>) {
        let host = |place: &StageHost, agent: usize| HostRow {
            host: place.host().map(str::to_owned),
            host_name: summary.hosts[agent].clone(),
        };
        let links = summary.links.iter().map(|link| LinkRow {
            transport: link.as_ref().map(|link| link.transport.clone()),
            reason: link.as_ref().map(|link| link.reason.clone()),
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

    /// Returns the report as JSON.
    pub(super) fn json(&self) -> String {
        // Serialization only fails for maps whose keys are not strings, and the report has no maps.
        serde_json::to_string_pretty(self).unwrap_or_default() + "\n"
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        copy::{
            operand::CopiedSources,
            order::{CopyOptions, RunPart},
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
            transport: "tcp".to_owned(),
            reason: "no RDMA device here".to_owned(),
            is_fallback: false,
            address: "10.0.0.2".to_owned(),
        };
        let summary = Summary {
            outcome: CopyOutcome::default(),
            hosts: vec![None, Some("beta".to_owned())],
            links: vec![Some(link), None],
        };
        log.ended(&plan, &summary);
        let totals = CopyTotals::default();
        let text = CopyDocument::new(Exit::Local, 1.5, &totals, &log).json();
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
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
}
