//! A finding: what is wrong, and what repairs it.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

/// How serious a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Severity {
    /// It is good to know, and needs no action.
    Note,
    /// Something does not work as it should until it is repaired.
    Repair,
}

/// What is wrong with a host or a pair of hosts, and what repairs it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Finding {
    /// How serious the finding is.
    pub(crate) severity: Severity,
    /// The host or the pair: `fs1`, `fs1 to fs2`.
    pub(crate) subject: String,
    /// What was found: one sentence without a full stop at its end.
    pub(crate) what: String,
    /// What a person can type to repair it.
    pub(crate) remedy: Option<String>,
    /// The name of this kind of finding for other programs. It never changes.
    pub(crate) code: Cow<'static, str>,
}

impl Finding {
    /// Makes a finding that needs no action.
    pub(super) fn note(code: &'static str, subject: &str, what: impl Into<String>) -> Self {
        Self {
            severity: Severity::Note,
            subject: subject.to_owned(),
            what: what.into(),
            remedy: None,
            code: code.into(),
        }
    }

    /// Makes a finding that should be repaired.
    pub(super) fn repair(code: &'static str, subject: &str, what: impl Into<String>) -> Self {
        Self {
            severity: Severity::Repair,
            ..Self::note(code, subject, what)
        }
    }

    /// Adds what repairs it.
    pub(super) fn with(mut self, remedy: impl Into<String>) -> Self {
        self.remedy = Some(remedy.into());
        self
    }

    /// Sets the severity to [`Severity::Repair`] if `is_serious`, otherwise to [`Severity::Note`].
    pub(super) fn serious_if(mut self, is_serious: bool) -> Self {
        self.severity = if is_serious {
            Severity::Repair
        } else {
            Severity::Note
        };
        self
    }
}
