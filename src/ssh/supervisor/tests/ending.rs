//! How stages proceed, fail and end.

use std::time::Duration;

use super::{
    super::{Action, Event, Notice},
    OK, Rig, edge, killed, proceed, report, send, stage_report,
};
use crate::ssh::{
    local_edge::{LocalEdgeEnd, LocalEdgeEvent},
    plan::Plan,
    protocol::{AgentReport, FaultKind, FromAgent, Payload, ToAgent, WorkFault},
    session::SessionEnd,
    stage::{FromStage, StageReport, Status},
};

#[test]
fn unreadable_files_are_reported_and_the_status_is_that_of_the_agent() {
    let mut rig = Rig::of(
        Plan::files(&["a:x".into(), "a:y".into()])
            .unwrap()
            .remove(0),
        |_| {},
    );
    rig.up(1, false);
    let path = b"x\xff".to_vec();
    let why = "No such file".to_owned();
    let told = Notice::Unreadable(0, "x\u{fffd}: No such file".to_owned());
    let actions = rig.stage(0, &FromStage::Unreadable { path, why });
    assert_eq!(actions, [Action::Notify(told)]);
    rig.stage(0, &FromStage::Ended(Status::Exited(1)));
    rig.local_ended(edge(1));
    rig.report(0, Status::Exited(1));
    assert!(rig.closed(0).contains(&Action::Done));
    assert_eq!(rig.exit(), 1);
    assert!(rig.machine.summary().outcome.causes.is_empty());
}

#[test]
fn a_pipeline_ends_when_all_agents_have_reported_and_all_sessions_have_closed() {
    let mut rig = Rig::new(&["a:x", "b:y"], true);
    rig.up(2, true);
    rig.local_ended(edge(0));
    for stage in 0..2 {
        assert_eq!(rig.stage(stage, &FromStage::Ended(OK)), []);
        assert_eq!(rig.report(stage, OK), []);
        assert_eq!(rig.closed(stage), []);
    }
    assert_eq!(rig.local_ended(edge(2)), [Action::Done]);
    assert_eq!(rig.exit(), 0);
    assert_eq!(rig.machine.work().bytes(), 7);
}

#[test]
fn a_file_is_committed_only_when_all_earlier_stages_have_succeeded() {
    let mut rig = Rig::new(&["a:x", "b:y", "c:> f"], false);
    rig.up(3, false);
    assert_eq!(rig.stage(2, &FromStage::InputComplete), []);
    assert_eq!(rig.stage(0, &FromStage::Ended(OK)), []);
    let actions = rig.stage(1, &FromStage::Ended(OK));
    assert_eq!(actions, [proceed(2)]);
    assert_eq!(rig.report(1, OK), [], "it is told once");

    let mut rig = Rig::new(&["a:x", "b:y", "c:> f"], false);
    rig.up(3, false);
    rig.stage(0, &FromStage::Ended(Status::Exited(3)));
    rig.stage(1, &FromStage::Ended(OK));
    let actions = rig.stage(2, &FromStage::InputComplete);
    let reason = "stage 1 (a) exited with 3".to_owned();
    assert_eq!(actions, [send(2, ToAgent::Kill { reason })]);
    rig.report(0, Status::Exited(3));
    rig.report(1, OK);
    rig.faulty(2, FaultKind::Ordered, "told to end");
    assert_eq!(rig.exit(), 3);

    let mut rig = Rig::new(&["a:> f"], false);
    rig.up(1, false);
    assert_eq!(
        rig.stage(0, &FromStage::InputComplete),
        [proceed(0)],
        "no stage is before it"
    );
}

#[test]
fn a_stage_that_ended_after_a_stop_does_not_keep_a_file_from_its_commit() {
    let mut rig = Rig::new(&["a:yes", "b:head -1", "c:> f"], false);
    rig.up(3, false);
    rig.stage(0, &FromStage::Ended(Status::Signaled(13)));
    rig.stage(1, &FromStage::Ended(OK));
    assert_eq!(
        rig.stage(2, &FromStage::InputComplete),
        [],
        "why the first ended is not known yet"
    );
    let stopped = StageReport {
        output_stopped: true,
        ..stage_report(Status::Signaled(13))
    };
    let actions = rig.says(0, report(&stopped));
    assert_eq!(actions, [proceed(2)]);

    let mut rig = Rig::new(&["a:yes", "b:head -1", "c:> f"], false);
    rig.up(3, false);
    rig.stage(1, &FromStage::Ended(OK));
    rig.stage(2, &FromStage::InputComplete);
    rig.stage(0, &FromStage::Ended(Status::Signaled(13)));
    let actions = rig.report(0, Status::Signaled(13));
    assert_eq!(killed(&actions), [2], "no stage had told it to stop");
}

#[test]
fn a_session_that_cannot_be_opened_ends_the_pipeline() {
    let mut rig = Rig::new(&["a:x", "b:y", "c:z"], true);
    rig.hello(0, "m1");
    let actions = rig.closed(1);
    assert_eq!(killed(&actions), [0]);
    assert!(
        actions.contains(&Action::CutSession(2)),
        "it has not even begun: {actions:?}"
    );
    for edge in [edge(0), edge(3)] {
        let gave_up = |action: &Action| matches!(action, Action::Abort(at, _) if *at == edge);
        assert!(actions.iter().any(gave_up), "{actions:?}");
    }
    rig.faulty(0, FaultKind::Ordered, "told to end");
    rig.closed(0);
    rig.closed(2);
    rig.local_ended(edge(0));
    assert_eq!(rig.local_ended(edge(3)), [Action::Done]);
    let outcome = rig.machine.summary().outcome;
    assert_eq!(outcome.ranked()[0].fault.text, "lost host1");
    assert_eq!(outcome.exit(), 255);
}

#[test]
fn a_late_hello_is_not_answered_after_a_failure() {
    let mut rig = Rig::new(&["a:x", "b:y"], false);
    rig.closed(0);
    assert_eq!(rig.hello(1, "m2"), []);
}

#[test]
fn agents_that_do_not_end_are_cut_after_five_seconds() {
    let mut rig = Rig::new(&["a:x", "b:y"], false);
    rig.up(2, false);
    let actions = rig.faulty(0, FaultKind::Local, "no such file");
    assert_eq!(killed(&actions), [1]);
    rig.closed(0);
    assert_eq!(rig.machine.deadline(), Some(Duration::from_secs(5)));
    rig.now = Duration::from_secs(5);
    let actions = rig.event(Event::Tick);
    assert!(actions.contains(&Action::CutSession(1)), "{actions:?}");
    rig.now = Duration::from_secs(6);
    assert_eq!(rig.event(Event::Tick), [Action::Done], "whatever is left");
}

#[test]
fn a_session_that_stays_after_its_report_is_cut() {
    let mut rig = Rig::new(&["a:x"], false);
    rig.up(1, false);
    rig.report(0, OK);
    rig.local_ended(edge(1));
    let deadline = rig.machine.deadline().unwrap();
    rig.now = deadline;
    assert_eq!(rig.event(Event::Tick)[0], Action::CutSession(0));
    assert_eq!(rig.closed(0), [Action::Done]);
    assert_eq!(rig.exit(), 0);
}

#[test]
fn an_interrupt_ends_the_pipeline_within_two_seconds() {
    let mut rig = Rig::new(&["a:x", "b:y"], false);
    rig.up(2, false);
    let (number, name) = (2, "SIGINT");
    let actions = rig.event(Event::Signal { number, name });
    assert_eq!(killed(&actions), [0, 1]);
    assert_eq!(rig.machine.deadline(), Some(Duration::from_secs(2)));
    assert_eq!(rig.exit(), 130);
    let mut rig = Rig::new(&["a:x"], false);
    rig.up(1, false);
    rig.faulty(0, FaultKind::Local, "x");
    rig.event(Event::Signal { number, name });
    assert_eq!(rig.machine.deadline(), Some(Duration::from_secs(2)));
}

#[test]
fn the_first_cause_is_found_behind_its_consequences() {
    let mut rig = Rig::new(&["a:x", "b:> f", "c:z"], false);
    rig.up(3, false);
    rig.faulty(0, FaultKind::PeerAborted, "stage 2 gave up");
    rig.faulty(2, FaultKind::Edge, "the other end died");
    rig.faulty(1, FaultKind::Local, "no space left on device");
    let outcome = rig.machine.summary().outcome;
    assert_eq!(outcome.ranked()[0].fault.text, "no space left on device");
}

#[test]
fn the_message_names_the_signal_that_killed_a_guard() {
    let mut rig = Rig::new(&["a:x"], false);
    rig.up(1, false);
    rig.faulty(0, FaultKind::Local, "the agent was ended by SIGTERM");
    let why = "the agent on a was killed by signal 9 (SIGKILL)".to_owned();
    let killed = true;
    rig.event(Event::Closed(0, SessionEnd { why, killed }));
    let text = &rig.machine.summary().outcome.causes[0].fault.text;
    assert!(text.starts_with("the agent on a was killed"), "{text}");
}

#[test]
fn a_fault_before_all_edges_are_connected_counts_as_infrastructure() {
    let mut rig = Rig::new(&["a:> f"], false);
    rig.hello(0, "m1");
    rig.faulty(0, FaultKind::Local, "cannot listen");
    assert_eq!(rig.exit(), 255);
    let mut rig = Rig::new(&["a:> f"], false);
    rig.up(1, false);
    rig.faulty(0, FaultKind::Local, "no space left on device");
    assert_eq!(rig.exit(), 1);
}

#[test]
fn a_failure_of_rdpipes_own_output_ends_the_pipeline() {
    let mut rig = Rig::new(&["a:x"], false);
    rig.up(1, false);
    let fault = Some(WorkFault {
        kind: FaultKind::Local,
        text: "cannot write standard output".to_owned(),
    });
    let ended = LocalEdgeEnd {
        fault,
        ..LocalEdgeEnd::default()
    };
    let actions = rig.local(edge(1), LocalEdgeEvent::Ended(ended));
    assert_eq!(killed(&actions), [0]);
    rig.faulty(0, FaultKind::PeerAborted, "rdpipe gave up");
    assert_eq!(rig.closed(0), [Action::Done]);
    assert_eq!(rig.exit(), 1);
}

#[test]
fn a_message_that_is_not_one_of_a_stage_ends_the_pipeline() {
    let nonsense = Payload::encode(&(u8::MAX, "?")).unwrap();
    let mut rig = Rig::new(&["a:x", "b:y"], false);
    rig.up(2, false);
    let actions = rig.says(0, FromAgent::Application(nonsense.clone()));
    assert_eq!(killed(&actions), [0, 1]);
    assert_eq!(rig.exit(), 255);

    let mut rig = Rig::new(&["a:x", "b:y"], false);
    rig.up(2, false);
    let report = AgentReport {
        fault: None,
        result: Some(nonsense),
    };
    let actions = rig.says(0, FromAgent::Report(report));
    assert_eq!(killed(&actions), [1]);
    assert_eq!(rig.exit(), 255);
}
