//! Findings about hosts and pairs that are built of facts.

mod arbitrary;
mod facts;
mod hosts;
mod measured;
mod pairs;

use super::{Finding, Severity};

/// Returns the finding with this code.
fn with_code<'a>(findings: &'a [Finding], code: &str) -> &'a Finding {
    let found = findings.iter().find(|finding| finding.code == code);
    found.unwrap_or_else(|| panic!("no {code} in {findings:#?}"))
}

/// Fails unless there is one finding, which has this code and this severity, and whose remedy contains the text.
#[track_caller]
fn assert_one(findings: &[Finding], code: &str, severity: Severity, remedy: &str) {
    assert_eq!(findings.len(), 1, "{findings:#?}");
    assert_found(findings, code, severity, remedy);
}

/// Fails unless there is a finding with this code and this severity, and whose remedy contains the text.
#[track_caller]
fn assert_found(findings: &[Finding], code: &str, severity: Severity, remedy: &str) {
    let finding = with_code(findings, code);
    assert_eq!(finding.severity, severity, "{finding:#?}");
    let text = finding.remedy.as_deref().unwrap_or_default();
    assert!(text.contains(remedy), "{finding:#?}");
}
