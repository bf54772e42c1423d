//! The whole report of a run, as JSON and as CSV.

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};

use super::{host_summary::HostSummary, sample::micros, series::Series};
use crate::perf::check::Finding;

/// The version of the report's form. It changes when a field changes its meaning.
pub(crate) const DOCUMENT_VERSION: u32 = 1;

/// The report of a run of rdperf.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct PerfDocument {
    /// The version of this form.
    pub(crate) version: u32,
    /// The version of rdperf.
    pub(crate) rdperf: String,
    /// The exit code of the run.
    pub(crate) exit: u8,
    /// The time of the start, in seconds since 1970.
    pub(crate) started: u64,
    /// The hosts that answered.
    pub(crate) hosts: Vec<HostSummary>,
    /// What is wrong, and how to repair it. Reports are compared by their measurements only.
    #[serde(default)]
    pub(crate) findings: Vec<Finding>,
    /// What auto would choose for each pair of hosts.
    pub(crate) choices: Vec<PairChoice>,
    /// The measurements.
    pub(crate) series: Vec<Series>,
    /// The errors of the run.
    pub(crate) errors: Vec<String>,
    /// What limits these hosts.
    pub(crate) verdict: String,
}

/// What auto would choose for a pair of hosts, and why.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct PairChoice {
    /// The host that dials.
    pub(crate) from: String,
    /// The host that listens.
    pub(crate) to: String,
    /// "rdma" or "tcp".
    pub(crate) transport: String,
    /// The RDMA port, or the reason why it is TCP.
    pub(crate) reason: String,
    /// What happened to the messages over each pair of RDMA ports, for the user.
    #[serde(default)]
    pub(crate) proofs: Vec<String>,
}

impl PerfDocument {
    /// Returns the report as JSON.
    pub(crate) fn json(&self) -> String {
        // Serialization only fails for maps whose keys are not strings, and the report has no maps.
        serde_json::to_string_pretty(self).unwrap_or_default() + "\n"
    }

    /// Returns the measurements as CSV: a row for each series.
    pub(crate) fn csv(&self) -> String {
        let mut text = CSV_HEADER.to_owned();
        for series in &self.series {
            let medium = series.what.medium().map(|medium| medium.to_string());
            let unit = if series.what.is_rate() {
                "bytes/s"
            } else {
                "us"
            };
            let mut cells = vec![
                series.from.clone(),
                series.to.clone().unwrap_or_default(),
                medium.unwrap_or_default(),
                series.what.to_string(),
                unit.to_owned(),
                number(series.median()),
                number(series.runs.iter().map(|run| run.value).reduce(f64::min)),
                number(series.runs.iter().map(|run| run.value).reduce(f64::max)),
                series.runs.len().to_string(),
                number(series.median_of(|run| Some(run.cpu_dialer))),
                number(series.median_of(|run| Some(run.cpu_listener))),
                number(series.lost()),
                number(series.median_of(|run| run.trips_per_second)),
                number(series.median_of(|run| run.average_us)),
            ];
            let histogram = series.histogram();
            let time = |percentile| {
                let histogram = histogram.as_ref();
                number(histogram.map(|histogram| micros(histogram.percentile(percentile))))
            };
            cells.extend([50.0, 90.0, 99.0, 99.9, 100.0].map(time));
            let cells: Vec<_> = cells.iter().map(|cell| quoted(cell)).collect();
            let _ = writeln!(text, "{}", cells.join(","));
        }
        text
    }
}

const CSV_HEADER: &str = "from,to,transport,measurement,unit,median,min,max,runs,cpu_from,cpu_to,loss,trips_per_second,average_us,p50_us,p90_us,p99_us,p99.9_us,max_us\n";

fn number(value: Option<f64>) -> String {
    value.map_or_else(String::new, |value| {
        let text = format!("{value:.6}");
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    })
}

/// Returns a cell as CSV requires it.
fn quoted(cell: &str) -> String {
    if cell.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", cell.replace('"', "\"\""))
    } else {
        cell.to_owned()
    }
}

/// How a measurement changed from one report to another.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Change {
    /// The measurement: "fs1 to fs2, TCP, stream, one way".
    pub(crate) name: String,
    /// True if a larger value is a better one.
    pub(crate) is_rate: bool,
    /// The median in the old report; none if it has no such measurement.
    pub(crate) old: Option<f64>,
    /// The median in the new report; none if it has no such measurement.
    pub(crate) new: Option<f64>,
    /// What the change means.
    pub(crate) kind: ChangeKind,
}

/// What a change means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ChangeKind {
    /// Two runs of the same thing can differ by so much.
    Noise,
    /// The new median is better by more than the noise.
    Better,
    /// The new median is worse by more than the noise.
    Worse,
    /// Only the old report has the measurement.
    Gone,
    /// Only the new report has the measurement.
    Added,
}

/// Returns how each measurement changed. A change counts if it is larger than `threshold`, a part of the old median,
/// and larger than the spreads of both series together.
pub(crate) fn changes(old: &PerfDocument, new: &PerfDocument, threshold: f64) -> Vec<Change> {
    let same = |one: &Series, other: &Series| {
        one.from == other.from && one.to == other.to && one.what == other.what
    };
    let with_old = old.series.iter().map(|before| {
        let after = new.series.iter().find(|after| same(before, after));
        change(
            before,
            after.and_then(|after| after.median().map(|_| after)),
            threshold,
        )
    });
    let added = new.series.iter().filter(|after| {
        after.median().is_some() && !old.series.iter().any(|before| same(before, after))
    });
    let added = added.map(|after| Change {
        name: name(after),
        is_rate: after.what.is_rate(),
        old: None,
        new: after.median(),
        kind: ChangeKind::Added,
    });
    with_old.chain(added).collect()
}

fn change(before: &Series, after: Option<&Series>, threshold: f64) -> Change {
    let (old, new) = (before.median(), after.and_then(Series::median));
    let kind = match (old, new) {
        (Some(old), Some(new)) => {
            let spreads = before.spread() + after.map_or(0.0, Series::spread);
            // The same factor counts in both directions: half the rate, or twice the time.
            let factor = if old > 0.0 && new > 0.0 {
                new / old
            } else {
                1.0
            };
            let change = factor.max(1.0 / factor) - 1.0;
            if change <= threshold.max(spreads) {
                ChangeKind::Noise
            } else if (factor > 1.0) == before.what.is_rate() {
                ChangeKind::Better
            } else {
                ChangeKind::Worse
            }
        }
        (Some(_), None) => ChangeKind::Gone,
        (None, Some(_)) => ChangeKind::Added,
        (None, None) => ChangeKind::Noise,
    };
    Change {
        name: name(before),
        is_rate: before.what.is_rate(),
        old,
        new,
        kind,
    }
}

/// Returns the name of a measurement for the user.
pub(crate) fn name(series: &Series) -> String {
    let to = series.to.as_ref().map(|to| format!(" to {to}"));
    let medium = series.what.medium().map(|medium| format!("{medium}, "));
    format!(
        "{}{}, {}{}",
        series.from,
        to.unwrap_or_default(),
        medium.unwrap_or_default(),
        series.what
    )
}
