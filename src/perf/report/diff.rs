//! How two reports differ, beyond noise.

use super::{document::PerfDocument, series::Series};

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

/// Returns how each measurement changed. A change counts if it is larger than `threshold`, a part of the old median, and
/// larger than the spreads of both series together.
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
