//! Agents that do not keep to the protocol: a compromised host must not fill the controller's memory.

use super::{OK, Rig, edge, report, stage_report};
use crate::ssh::{
    protocol::{FaultKind, FromAgent, Payload},
    stage::Status,
};

#[test]
fn an_agent_that_gives_up_again_and_again_is_not_listened_to() {
    let mut rig = Rig::new(&["a:x", "b:y"], false);
    rig.hello(0, "m1");
    rig.hello(1, "m2");
    for _ in 0..3000 {
        for stage in 0..2 {
            let (edge, tried) = (edge(1), Vec::new());
            rig.says(stage, FromAgent::Unreachable { edge, tried });
        }
    }
    let text = &rig.machine.summary().outcome.causes[0].fault.text;
    assert_eq!(text.matches("; from ").count(), 2, "{text}");
    assert_eq!(rig.machine.summary().outcome.causes.len(), 1);
}

#[test]
fn an_agent_that_fails_again_and_again_takes_no_memory() {
    let mut rig = Rig::new(&["a:x", "b:y"], false);
    rig.up(2, false);
    for _ in 0..3000 {
        let nonsense = Payload::encode(&(77_u8, 77_u8)).unwrap();
        rig.says(0, FromAgent::Application(nonsense));
    }
    rig.faulty(0, FaultKind::Edge, "broken");
    // The fault of another stage is still recorded.
    rig.faulty(1, FaultKind::Local, "it fails too");
    let causes = rig.machine.summary().outcome.causes;
    assert!(causes.len() < 10, "{} causes", causes.len());
    assert!(
        causes
            .iter()
            .any(|cause| cause.fault.text == "it fails too")
    );
}

#[test]
fn a_report_that_is_taken_back_is_no_success() {
    let mut rig = Rig::new(&["a:x"], false);
    rig.up(1, false);
    rig.says(0, report(&stage_report(Status::Exited(3))));
    rig.says(0, report(&stage_report(OK)));
    rig.closed(0);
    assert_eq!(rig.exit(), 3);
}
