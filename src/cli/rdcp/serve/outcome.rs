//! How the session of a client ended.

use super::served_copies::ServedSide;
use crate::{
    cli::shared::amounts::{amount, counted, decimal, rate},
    copy::order::{CopyEnd, CopyReport},
    ssh::protocol::AgentReport,
};

/// How the session of a client ended.
pub(super) struct ClientOutcome {
    /// The side of the copy that the server was.
    pub(super) side: ServedSide,
    /// What the copy did, if it began.
    pub(super) report: Option<CopyReport>,
    /// The reason why not everything was copied.
    pub(super) failure: Option<String>,
}

impl ClientOutcome {
    pub(super) fn of(result: Result<AgentReport, String>, side: ServedSide) -> Self {
        let report = match result {
            Ok(report) => report,
            Err(why) => {
                return Self {
                    side,
                    report: None,
                    failure: Some(why),
                };
            }
        };
        let end: Option<CopyEnd> = report.result.and_then(|end| end.decode().ok());
        let done = end.map(|end| end.report);
        let failure = match (report.fault, &done) {
            (Some(fault), _) => Some(fault.text),
            (None, Some(done)) if done.failed > 0 => Some(format!(
                "{} not copied",
                counted(done.failed, "file was", "files were")
            )),
            (None, Some(done)) if done.complete => None,
            (None, _) => Some("the copy ended early".to_owned()),
        };
        Self {
            side,
            report: done,
            failure,
        }
    }

    /// Returns what was copied, in words.
    pub(super) fn text(&self, seconds: f64) -> String {
        let done = self.report.clone().unwrap_or_default();
        let what = match self.side {
            ServedSide::Source => "sent",
            ServedSide::Destination => "received",
        };
        format!(
            "{what} {}, {} in {seconds:.1} s ({}/s)",
            counted(done.files, "file", "files"),
            amount(done.bytes),
            decimal(rate(done.bytes, seconds)),
        )
    }
}
