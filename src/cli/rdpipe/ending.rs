//! The end of a run of rdpipe: error messages, the table of stages, and the exit code.

use std::{fs, time::Duration};

use super::table::Table;
use crate::{
    cli::{
        args::RdpipeArgs,
        shared::{amounts::rate, message::Console},
    },
    ssh::{
        outcome::{RunFault, Site, Verdict, describe},
        plan::Plan,
        protocol::FaultKind,
        supervisor::Summary,
    },
};

/// Prints what failed, prints the table of stages, writes it for `--json`, and returns the exit code.
pub(super) fn tell(
    args: &RdpipeArgs,
    plan: &Plan,
    summary: &Summary,
    elapsed: Duration,
    console: &Console,
) -> u8 {
    let outcome = &summary.outcome;
    let (errors, details) = words(plan, summary);
    for error in &errors {
        console.error(error);
    }
    for detail in &details {
        console.detail(detail);
    }
    let table = Table::new(plan, summary, errors, elapsed);
    let is_failure = !outcome.is_success() && outcome.signal.is_none();
    if args.report.verbose || (is_failure && !args.report.quiet) {
        console.lines(&table.lines());
    }
    let (bytes, seconds) = (table.bytes(), table.stage_seconds());
    console.detail(&format!("Bytes {bytes}"));
    console.detail(&format!("Seconds {:.3}", elapsed.as_secs_f64()));
    let gigabytes = rate(bytes, seconds) / 1e9;
    console.detail(&format!("Bandwidth {gigabytes:.3} GB/s"));
    let exit = outcome.exit();
    if let Some(path) = &args.report.json {
        if let Err(error) = fs::write(path, table.json()) {
            console.error(&format!("cannot write {}: {error}", path.display()));
            return if exit == 0 { super::FAILED_HERE } else { exit };
        }
    }
    exit
}

/// Returns the errors, the first cause first, and then the details: failures that followed from the errors.
fn words(plan: &Plan, summary: &Summary) -> (Vec<String>, Vec<String>) {
    let outcome = &summary.outcome;
    if let Some(number) = outcome.signal {
        let text = crate::ssh::explain::signal(number);
        return (vec![format!("interrupted by {text}")], Vec::new());
    }
    let mut errors = Vec::new();
    let mut details = Vec::new();
    for cause in outcome.ranked() {
        // The first of several faults of the same kind is the cause; the others mostly follow from it.
        let is_first = errors.is_empty() && cause.fault.kind <= FaultKind::Edge;
        let text = sentence(plan, cause);
        if is_first || cause.fault.kind == FaultKind::Local {
            errors.push(text);
        } else {
            details.push(text);
        }
    }
    for (stage, verdict) in outcome.verdicts().into_iter().enumerate() {
        // A fault that a peer or the controller passed to the stage does not explain the stage's own failure.
        let own = |cause: &RunFault| {
            cause.site == Site::Agent(stage) && cause.fault.kind <= FaultKind::Edge
        };
        let has_cause = outcome.causes.iter().any(own);
        let status = outcome.stages[stage].status();
        if let (Verdict::Failed(_), Some(status), false) = (verdict, status, has_cause) {
            errors.push(format!("{} {}", plan.site(stage), describe(status)));
        }
    }
    if errors.is_empty() && !details.is_empty() {
        // Without an error, the first detail is the best explanation.
        errors.push(details.remove(0));
    }
    (errors, details)
}

fn sentence(plan: &Plan, cause: &RunFault) -> String {
    let text = &cause.fault.text;
    match cause.site {
        Site::Agent(stage) => format!("{}: {text}", plan.site(stage)),
        Site::Input | Site::Output | Site::Edge(_) => text.clone(),
    }
}
