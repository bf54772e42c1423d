//! How a pipeline ended: the statuses of its stages, the first cause, the exit status. Pure, no I/O.
//!
//! - A stage's status is its command's if that is not 0; else that of the first adopted descendant that failed
//!   (`tee >(exit 3)` is 3), where a death by SIGPIPE or a 141 is no failure; else 0. A stage of files has the status
//!   0, or 1 if one of them failed.
//! - A stage that ended by SIGPIPE or with 141 is *forgiven* if the next stage sent Stop and is fine itself. This is
//!   decided from right to left; rdpipe's own output counts as the last stage.
//! - rdpipe exits with the first of these that applies: 128+n after a signal; 255 after trouble: a session, an agent,
//!   or an edge that broke by itself; the status of the rightmost stage that failed; 1 if its own input or output
//!   failed; 255 if only consequences are known; 141 if the reader of its output left; else 0.
//!
//! Each stage keeps its first failure and sends the reason to its peers. A peer passes on the reason that it received,
//! so all stages name the same one. The controller ranks the faults by kind, then by the order in which it received
//! them. An `Edge` is shown if it is the first; `PeerAborted` and `Ordered` are shown with `-v`, or if there is no
//! better one. A status other than 0 without a fault is shown as it is: `stage 2 (h2) exited with 3`.

use super::{
    explain::signal,
    protocol::{FaultKind, WorkFault},
    stage::{StageReport, StageWork, Status, TargetFile},
};

/// The place where a fault of a run occurred.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Site {
    /// At this agent, counted from 0: that of a stage, say.
    Agent(usize),
    /// At the controller's own input, which feeds the first stage.
    Input,
    /// At the controller's own output, which receives the output of the last stage.
    Output,
    /// Between two ends, while edge `.0` was being connected.
    Edge(usize),
}

/// A fault of a run on several hosts, as an agent, a session or one of the controller's own edges reported it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RunFault {
    /// The place of the fault.
    pub(crate) site: Site,
    /// What broke.
    pub(crate) fault: WorkFault,
    /// True if ssh, the network or an agent failed; false if the user's own command or file did.
    pub(crate) is_infrastructure: bool,
}

/// The final state of one stage, as far as the controller knows it.
#[derive(Debug, Clone, Default)]
pub(crate) struct StageOutcome {
    /// The status from [`FromStage::Ended`](super::stage::FromStage::Ended). The stage had no fault before it.
    pub(crate) ended: Option<Status>,
    /// The stage's own report, if its agent has sent one.
    pub(crate) report: Option<StageReport>,
    /// What broke in the stage, from its agent's report.
    pub(crate) fault: Option<WorkFault>,
    /// Whether the stage reads or writes files and runs no command.
    pub(crate) is_file: bool,
}

/// The final state of a whole pipeline, as far as the controller knows it.
#[derive(Debug, Clone, Default)]
pub(crate) struct PipelineOutcome {
    /// Every stage, in order.
    pub(crate) stages: Vec<StageOutcome>,
    /// Every fault, in the order in which the controller received them.
    pub(crate) causes: Vec<RunFault>,
    /// Whether the reader of the controller's output closed it before the end.
    pub(crate) reader_left: bool,
    /// The signal that ended the run.
    pub(crate) signal: Option<u8>,
}

/// How a stage counts for the exit status of the pipeline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The stage succeeded.
    Fine,
    /// The stage ended by SIGPIPE after the next stage, which succeeded, had stopped reading.
    ExpectedSigpipe,
    /// The stage itself failed, with this status as a shell shows it.
    Failed(u8),
    /// The stage was ended because of a fault elsewhere, or it never began.
    Consequence,
    /// The agent, its host or the connection to it was lost.
    Infrastructure,
}

impl StageOutcome {
    /// Returns how the command of the stage ended, if that is known.
    pub(crate) fn status(&self) -> Option<Status> {
        let reported = self.report.as_ref().and_then(|report| report.status);
        reported.or(self.ended)
    }

    /// Returns what is under the name of a file of `>` that the stage with this work has not written.
    pub(crate) fn kept_file(&self, work: &StageWork) -> Option<String> {
        let StageWork::Write { path, .. } = work else {
            return None;
        };
        let path = String::from_utf8_lossy(path);
        match self.report.as_ref()?.file {
            TargetFile::New => None,
            TargetFile::Old => Some(format!("{path} is as it was before")),
            TargetFile::Missing => Some(format!("{path} was not made")),
        }
    }
}

impl PipelineOutcome {
    /// Returns how each stage counts for the exit status, in order.
    pub(crate) fn verdicts(&self) -> Vec<Verdict> {
        let mut verdicts = vec![Verdict::Fine; self.stages.len()];
        let mut successor_is_fine = !self.own_output_failed();
        for (index, stage) in self.stages.iter().enumerate().rev() {
            let verdict = self.verdict(index, stage, successor_is_fine);
            successor_is_fine = matches!(verdict, Verdict::Fine | Verdict::ExpectedSigpipe);
            verdicts[index] = verdict;
        }
        verdicts
    }

    fn verdict(&self, index: usize, stage: &StageOutcome, successor_is_fine: bool) -> Verdict {
        let fault = self.causes_at(Site::Agent(index)).next();
        match fault {
            Some(cause) if cause.is_infrastructure => return Verdict::Infrastructure,
            Some(cause) => match cause.fault.kind {
                FaultKind::Local if stage.is_file => return Verdict::Failed(1),
                FaultKind::Edge if self.follows_failure(cause) => return Verdict::Consequence,
                FaultKind::Local | FaultKind::Edge => return Verdict::Infrastructure,
                // The command may have failed by itself before the agent was told of the other fault.
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
            SIGPIPE_STATUS if stopped && successor_is_fine => Verdict::ExpectedSigpipe,
            code => Verdict::Failed(code),
        }
    }

    fn causes_at(&self, site: Site) -> impl Iterator<Item = &RunFault> {
        self.causes.iter().filter(move |cause| cause.site == site)
    }

    /// Returns true if a file or a command had failed elsewhere before this fault was received. All agents are then
    /// told to end, and one that ends without a goodbye looks like a lost edge to its neighbours.
    fn follows_failure(&self, cause: &RunFault) -> bool {
        let mut earlier = self
            .causes
            .iter()
            .take_while(|other| !std::ptr::eq(*other, cause));
        let is_failure = |other: &RunFault| {
            other.fault.kind == FaultKind::Local
                && !other.is_infrastructure
                && other.site != cause.site
        };
        earlier.any(is_failure)
    }

    fn own_output_failed(&self) -> bool {
        self.causes_at(Site::Output).next().is_some()
    }

    /// Returns the exit status of rdpipe.
    pub(crate) fn exit(&self) -> u8 {
        if let Some(signal) = self.signal {
            return signal.saturating_add(128);
        }
        let verdicts = self.verdicts();
        let own = |cause: &RunFault| matches!(cause.site, Site::Input | Site::Output);
        let lost = |cause: &RunFault| {
            let is_lost_edge = own(cause) && cause.fault.kind == FaultKind::Edge;
            cause.is_infrastructure || (is_lost_edge && !self.follows_failure(cause))
        };
        if verdicts.contains(&Verdict::Infrastructure) || self.causes.iter().any(lost) {
            return TROUBLE;
        }
        let failed = verdicts.iter().rev().find_map(|verdict| match verdict {
            Verdict::Failed(code) => Some(*code),
            _ => None,
        });
        let here = |cause: &RunFault| own(cause) && cause.fault.kind == FaultKind::Local;
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

    /// Returns the faults, the most probable first cause first.
    pub(crate) fn ranked(&self) -> Vec<&RunFault> {
        ranked(&self.causes)
    }

    /// Returns true if there is no failure to report: every stage succeeded, or the reader of the output closed it.
    pub(crate) fn is_success(&self) -> bool {
        self.exit() == 0 || (self.exit() == SIGPIPE_STATUS && self.reader_left)
    }
}

/// Returns faults, the most probable first cause first.
pub(crate) fn ranked(causes: &[RunFault]) -> Vec<&RunFault> {
    let mut causes: Vec<_> = causes.iter().collect();
    // The sort is stable: faults of one kind stay in the order in which they were received.
    causes.sort_by_key(|cause| cause.fault.kind);
    causes
}

/// Returns the status as a shell shows it: 128 and the number of the signal, for a command that a signal killed.
pub(crate) fn shell_status(status: Status) -> u8 {
    match status {
        Status::Exited(code) => code,
        Status::Signaled(number) => number.saturating_add(128),
    }
}

/// Describes a status in words that follow the name of a stage: "stage 2 (h2)" "exited with 3".
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

/// The exit status for a lost session, agent or edge: the one that ssh uses for its own failures.
const TROUBLE: u8 = 255;

/// The status that shells show for a death by SIGPIPE: 128 and the number 13 of the signal.
pub(crate) const SIGPIPE_STATUS: u8 = 141;

#[cfg(test)]
mod tests {
    use super::{
        Verdict::{ExpectedSigpipe, Fine},
        *,
    };

    fn stage(status: Status) -> StageOutcome {
        StageOutcome {
            ended: Some(status),
            report: Some(report(status)),
            ..StageOutcome::default()
        }
    }

    fn report(status: Status) -> StageReport {
        StageReport {
            status: Some(status),
            ..StageReport::default()
        }
    }

    fn stopped(status: Status) -> StageOutcome {
        let mut stage = stage(status);
        stage.report.as_mut().unwrap().output_stopped = true;
        stage
    }

    fn cause(site: Site, kind: FaultKind) -> RunFault {
        let text = format!("{kind:?}");
        RunFault {
            site,
            fault: WorkFault { kind, text },
            is_infrastructure: false,
        }
    }

    fn ends(stages: impl IntoIterator<Item = StageOutcome>) -> PipelineOutcome {
        PipelineOutcome {
            stages: stages.into_iter().collect(),
            ..PipelineOutcome::default()
        }
    }

    const OK: Status = Status::Exited(0);
    const PIPE: Status = Status::Signaled(13);

    #[test]
    fn the_rightmost_failure_counts() {
        let of = |codes: [u8; 3]| ends(codes.map(|code| stage(Status::Exited(code)))).exit();
        assert_eq!(of([0, 0, 0]), 0);
        assert_eq!(of([3, 0, 0]), 3);
        assert_eq!(of([3, 4, 0]), 4);
        assert_eq!(of([3, 0, 5]), 5);
        assert_eq!(ends([stage(Status::Signaled(9)), stage(OK)]).exit(), 137);
        assert_eq!(ends([stage(Status::Exited(127)), stage(OK)]).exit(), 127);
    }

    #[test]
    fn a_stage_that_ends_by_sigpipe_after_a_stop_is_forgiven_and_so_are_those_before_it() {
        for status in [PIPE, Status::Exited(141)] {
            let fine = ends([stopped(status), stopped(status), stage(OK)]);
            assert_eq!(fine.verdicts(), [ExpectedSigpipe, ExpectedSigpipe, Fine]);
            assert_eq!(fine.exit(), 0);
            assert!(fine.is_success());
        }
        let failed = ends([stopped(PIPE), stopped(PIPE), stage(Status::Exited(2))]);
        assert_eq!(failed.exit(), 2);
        let alone = ends([stage(PIPE), stage(OK)]);
        assert_eq!(alone.exit(), 141, "no stage had told it to stop");
        let other = ends([stopped(Status::Signaled(9)), stage(OK)]);
        assert_eq!(other.exit(), 137);
    }

    #[test]
    fn a_reader_that_leaves_ends_rdpipe_as_sigpipe_would() {
        let mut ends = ends([stopped(PIPE)]);
        ends.reader_left = true;
        assert_eq!(ends.exit(), 141);
        assert!(ends.is_success());
        ends.stages[0] = stopped(Status::Exited(3));
        assert_eq!(ends.exit(), 3);
        assert!(!ends.is_success());
    }

    #[test]
    fn the_exit_status_is_that_of_the_cause_and_not_of_its_consequences() {
        // An agent that reports a fault sends no status of the command that it then killed.
        let ended_by_agent = StageOutcome {
            ended: None,
            ..stage(Status::Signaled(15))
        };
        let mut killed = ends([stage(Status::Signaled(9)), ended_by_agent, stage(OK)]);
        killed.causes = vec![
            cause(Site::Agent(1), FaultKind::PeerAborted),
            cause(Site::Agent(2), FaultKind::Ordered),
        ];
        assert_eq!(killed.exit(), 137);
        killed.stages.remove(0);
        killed.causes[0].site = Site::Agent(0);
        killed.causes[1].site = Site::Agent(1);
        assert_eq!(killed.exit(), 255, "the cause is unknown");
    }

    #[test]
    fn a_failure_counts_even_if_the_next_stage_then_gave_up() {
        let mut refused = ends([stage(Status::Exited(3)), StageOutcome::default()]);
        refused.causes = vec![
            cause(Site::Agent(1), FaultKind::Ordered),
            cause(Site::Agent(0), FaultKind::PeerAborted),
        ];
        assert_eq!(refused.exit(), 3);
    }

    #[test]
    fn a_lost_agent_is_255_whatever_the_stages_exited_with() {
        let mut ends = ends([stage(Status::Exited(3)), StageOutcome::default()]);
        assert_eq!(ends.exit(), 3, "the second never began");
        ends.causes = vec![RunFault {
            is_infrastructure: true,
            ..cause(Site::Agent(1), FaultKind::Local)
        }];
        assert_eq!(ends.verdicts()[1], Verdict::Infrastructure);
        assert_eq!(ends.exit(), 255);
        ends.causes = vec![cause(Site::Output, FaultKind::Edge)];
        assert_eq!(ends.exit(), 255);
        ends.signal = Some(2);
        assert_eq!(ends.exit(), 130);
    }

    #[test]
    fn a_file_that_fails_is_status_1() {
        let mut ends = ends([stage(OK), stage(OK)]);
        ends.stages[1].is_file = true;
        ends.causes = vec![cause(Site::Agent(1), FaultKind::Local)];
        assert_eq!(ends.exit(), 1);
        ends.causes = vec![cause(Site::Input, FaultKind::Local)];
        assert_eq!(ends.exit(), 1);
        ends.stages[1].is_file = false;
        ends.causes = vec![cause(Site::Agent(1), FaultKind::Local)];
        assert_eq!(ends.exit(), 255, "the shell of a command cannot be run");
    }

    #[test]
    fn an_edge_that_breaks_after_a_failure_elsewhere_is_a_consequence() {
        let mut ends = ends([StageOutcome::default(), StageOutcome::default()]);
        ends.stages[0].is_file = true;
        let failure = cause(Site::Agent(0), FaultKind::Local);
        for site in [Site::Output, Site::Agent(1)] {
            ends.causes = vec![failure.clone(), cause(site, FaultKind::Edge)];
            assert_eq!(ends.exit(), 1, "{site:?}");
            assert_eq!(ends.verdicts()[1], Verdict::Consequence);
            // An edge that breaks first is a failure of its own.
            ends.causes.reverse();
            assert_eq!(ends.exit(), 255, "{site:?}");
        }
    }

    #[test]
    fn faults_are_ranked_by_how_near_they_are_to_the_first_cause() {
        let mut ends = ends([]);
        ends.causes = vec![
            cause(Site::Agent(0), FaultKind::PeerAborted),
            cause(Site::Agent(1), FaultKind::Edge),
            cause(Site::Agent(2), FaultKind::Local),
            cause(Site::Agent(3), FaultKind::Local),
        ];
        let sites: Vec<_> = ends.ranked().iter().map(|cause| cause.site).collect();
        assert_eq!(sites, [2, 3, 1, 0].map(Site::Agent));
    }

    #[test]
    fn statuses_are_described_in_words() {
        assert_eq!(describe(Status::Exited(3)), "exited with 3");
        assert_eq!(
            describe(Status::Signaled(9)),
            "was killed by signal 9 (SIGKILL)"
        );
        assert!(describe(Status::Exited(127)).contains("not found"));
        assert_eq!(
            describe(Status::Exited(137)),
            "exited with 137, as after signal 9 (SIGKILL)"
        );
    }
}
