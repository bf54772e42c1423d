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
