//! What came of a pipeline: statuses, the first cause, the number to exit with. Pure, no I/O.

#[cfg(test)]
mod tests;

use super::{
    explain::signal,
    protocol::{FaultKind, WorkFault},
    stage::{StageReport, Status},
};

/// Where something happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Site {
    /// In this stage, counted from 0.
    Stage(usize),
    /// At the controller's own input, which feeds the first stage.
    Input,
    /// At the controller's own output, which takes what the last stage writes.
    Output,
    /// Between the stages: while edge `.0` was being set up.
    Edge(usize),
}

/// Something that broke, in the order in which it came to be known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PipelineFault {
    /// Where it broke.
    pub(crate) site: Site,
    /// What broke.
    pub(crate) fault: WorkFault,
    /// Whether ssh, the network or an agent failed, and not what the user asked for.
    pub(crate) is_trouble: bool,
}

/// What is known about a stage in the end.
#[derive(Debug, Clone, Default)]
pub(crate) struct StageOutcome {
    /// From [`FromStage::Ended`](super::stage::FromStage::Ended): nothing had failed before it.
    pub(crate) ended: Option<Status>,
    /// The stage's own report, if its agent has sent one.
    pub(crate) report: Option<StageReport>,
    /// What broke, by its agent's report.
    pub(crate) fault: Option<WorkFault>,
    /// Whether it is about a file and runs no command.
    pub(crate) is_file: bool,
}

/// What is known about the whole.
#[derive(Debug, Clone, Default)]
pub(crate) struct PipelineOutcome {
    /// Every stage, in order.
    pub(crate) stages: Vec<StageOutcome>,
    /// Everything that broke, in the order in which it became known.
    pub(crate) causes: Vec<PipelineFault>,
    /// Whether the reader of the controller's output closed it before the end.
    pub(crate) reader_left: bool,
    /// The signal that ended the run.
    pub(crate) signal: Option<u8>,
}

/// How a stage counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It did what it should.
    Fine,
    /// It was told that no more was wanted, by a successor that succeeded.
    Forgiven,
    /// By its own doing: as a shell shows it.
    Failed(u8),
    /// Something broke elsewhere, and it was ended for that; or it never began.
    Consequence,
    /// The agent, its host or the way there was lost.
    Trouble,
}

impl StageOutcome {
    /// How its command ended, if that is known.
    pub(crate) fn status(&self) -> Option<Status> {
        let reported = self.report.as_ref().and_then(|report| report.status);
        reported.or(self.ended)
    }
}

impl PipelineOutcome {
    /// How each stage counts.
    pub(crate) fn verdicts(&self) -> Vec<Verdict> {
        let mut verdicts = vec![Verdict::Fine; self.stages.len()];
        let mut successor_is_fine = !self.own_output_failed();
        for (index, stage) in self.stages.iter().enumerate().rev() {
            let verdict = self.verdict(index, stage, successor_is_fine);
            successor_is_fine = matches!(verdict, Verdict::Fine | Verdict::Forgiven);
            verdicts[index] = verdict;
        }
        verdicts
    }

    fn verdict(&self, index: usize, stage: &StageOutcome, successor_is_fine: bool) -> Verdict {
        let fault = self.causes_at(Site::Stage(index)).next();
        match fault {
            Some(cause) if cause.is_trouble => return Verdict::Trouble,
            Some(cause) => match cause.fault.kind {
                FaultKind::Local if stage.is_file => return Verdict::Failed(1),
                FaultKind::Local | FaultKind::Edge => return Verdict::Trouble,
                // Its command may have failed before it was told that something did.
                FaultKind::PeerAborted | FaultKind::Ordered => {
                    match stage.ended.map(shell_status) {
                        None | Some(0 | SIGPIPE_STATUS) => return Verdict::Consequence,
                        Some(code) => return Verdict::Failed(code),
                    }
                }
            },
            None => {}
        }
        let Some(status) = stage.status() else {
            return Verdict::Consequence;
        };
        let stopped = stage.report.as_ref().is_some_and(|r| r.output_stopped);
        match shell_status(status) {
            0 => Verdict::Fine,
            SIGPIPE_STATUS if stopped && successor_is_fine => Verdict::Forgiven,
            code => Verdict::Failed(code),
        }
    }

    fn causes_at(&self, site: Site) -> impl Iterator<Item = &PipelineFault> {
        self.causes.iter().filter(move |cause| cause.site == site)
    }

    fn own_output_failed(&self) -> bool {
        self.causes_at(Site::Output).next().is_some()
    }

    /// The number that rdpipe exits with.
    pub(crate) fn exit(&self) -> u8 {
        if let Some(signal) = self.signal {
            return signal.saturating_add(128);
        }
        let verdicts = self.verdicts();
        let own = |cause: &PipelineFault| matches!(cause.site, Site::Input | Site::Output);
        let lost = |cause: &PipelineFault| {
            cause.is_trouble || (own(cause) && cause.fault.kind == FaultKind::Edge)
        };
        if verdicts.contains(&Verdict::Trouble) || self.causes.iter().any(lost) {
            return TROUBLE;
        }
        let failed = verdicts.iter().rev().find_map(|verdict| match verdict {
            Verdict::Failed(code) => Some(*code),
            _ => None,
        });
        let here = |cause: &PipelineFault| own(cause) && cause.fault.kind == FaultKind::Local;
        if let Some(code) = failed {
            code
        } else if self.causes.iter().any(here) {
            1
        } else if !self.causes.is_empty() || verdicts.contains(&Verdict::Consequence) {
            TROUBLE
        } else if self.reader_left {
            SIGPIPE_STATUS
        } else {
            0
        }
    }

    /// The causes, the nearest to the beginning of it all first.
    pub(crate) fn ranked(&self) -> Vec<&PipelineFault> {
        let mut causes: Vec<_> = self.causes.iter().collect();
        // Stable: among equals the one that came to be known first.
        causes.sort_by_key(|cause| cause.fault.kind);
        causes
    }

    /// Whether there is nothing to tell about how it went.
    pub(crate) fn is_success(&self) -> bool {
        self.exit() == 0 || (self.exit() == SIGPIPE_STATUS && self.reader_left)
    }
}

/// The status that a shell gives.
pub(crate) fn shell_status(status: Status) -> u8 {
    match status {
        Status::Exited(code) => code,
        Status::Signaled(number) => number.saturating_add(128),
    }
}

/// In words, as in "stage 2 (h2) exited with 3".
pub(crate) fn describe(status: Status) -> String {
    match status {
        Status::Exited(127) => "exited with 127 (command not found)".to_owned(),
        Status::Exited(126) => "exited with 126 (cannot be run)".to_owned(),
        Status::Exited(code @ 129..=192) => {
            format!("exited with {code}, as after {}", signal(code - 128))
        }
        Status::Exited(code) => format!("exited with {code}"),
        Status::Signaled(number) => format!("was killed by {}", signal(number)),
    }
}

/// How ssh shows its own failures.
const TROUBLE: u8 = 255;

/// 128 and SIGPIPE's 13, as shells show it.
pub(crate) const SIGPIPE_STATUS: u8 = 141;
