//! Compares two reports.

use std::{fs, path::Path};

use anyhow::Context;

use super::report::table::{TextTable, digits};
use crate::{
    cli::shared::{
        exit::Exit,
        message::{Console, sentence},
        stdout::print,
    },
    perf::report::document::{Change, ChangeKind, DOCUMENT_VERSION, PerfDocument, changes},
};

/// Prints how the measurements of two reports differ. Returns [`Exit::Local`] if one is worse.
pub(super) fn run(old: &Path, new: &Path, threshold: f64, console: &Console) -> Exit {
    let (before, after) = match (read(old), read(new)) {
        (Ok(before), Ok(after)) => (before, after),
        (Err(error), _) | (_, Err(error)) => {
            console.error(&sentence(&error));
            return Exit::Usage;
        }
    };
    let changes = changes(&before, &after, threshold);
    let text = lines(&changes).join("\n") + "\n";
    if let Err(unwritten) = print(&text, console) {
        return unwritten;
    }
    let is_worse = |change: &Change| matches!(change.kind, ChangeKind::Worse | ChangeKind::Gone);
    if changes.iter().any(is_worse) {
        Exit::Local
    } else {
        Exit::Ok
    }
}

/// Reads a report.
pub(super) fn read(path: &Path) -> anyhow::Result<PerfDocument> {
    let name = path.display();
    let bytes = fs::read(path).with_context(|| format!("cannot read {name}"))?;
    let document: PerfDocument = serde_json::from_slice(&bytes)
        .with_context(|| format!("{name} is no report of rdperf --json"))?;
    anyhow::ensure!(
        document.version == DOCUMENT_VERSION,
        "{name} was made by rdperf {}, whose reports have another form",
        document.rdperf
    );
    Ok(document)
}

/// Returns the lines for the user: a row for each measurement, and a sentence.
fn lines(changes: &[Change]) -> Vec<String> {
    let mut table = TextTable::default();
    table.row(["", "old", "new", "change", ""].map(str::to_owned).to_vec());
    for change in changes {
        table.row(row(change));
    }
    let mut lines = if changes.is_empty() {
        Vec::new()
    } else {
        table.lines()
    };
    let count = |kind: ChangeKind| changes.iter().filter(|change| change.kind == kind).count();
    let (better, worse) = (count(ChangeKind::Better), count(ChangeKind::Worse));
    let gone = count(ChangeKind::Gone);
    lines.push(match (better, worse, gone) {
        (0, 0, 0) => "Nothing has changed beyond noise.".to_owned(),
        _ => format!("{worse} worse, {better} better, {gone} missing."),
    });
    lines
}

fn row(change: &Change) -> Vec<String> {
    let value = |value: Option<f64>| match value {
        None => "-".to_owned(),
        Some(value) if change.is_rate => format!("{} GB/s", digits(value / 1e9)),
        Some(value) => format!("{} µs", digits(value)),
    };
    let percent = match (change.old, change.new) {
        (Some(old), Some(new)) if old > 0.0 => format!("{:+.1}%", (new / old - 1.0) * 100.0),
        _ => String::new(),
    };
    let kind = match change.kind {
        ChangeKind::Noise => "",
        ChangeKind::Better => "better",
        ChangeKind::Worse => "WORSE",
        ChangeKind::Gone => "missing",
        ChangeKind::Added => "new",
    };
    vec![
        change.name.clone(),
        value(change.old),
        value(change.new),
        percent,
        kind.to_owned(),
    ]
}
