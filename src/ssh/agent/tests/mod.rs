//! Agents as processes of their own, driven by a small controller in the test.

mod controller;
mod deaths;
mod edges;
mod files;
mod pipelines;
// These limits are shared with the integration tests.
#[path = "../../../../tests/support/limits.rs"]
mod limits;

use std::{env, process::Command};

/// The environment variable that makes the test program an agent: [`plays_a_part`] reads it.
const PART: &str = "RDPIPE_TEST_PART";

/// Runs the test program as a guard or a worker, if [`PART`] is set. The tests start the test program again to run
/// this. Without the variable it does nothing.
#[test]
fn plays_a_part() {
    let code = match env::var(PART).as_deref() {
        Ok("guard") => crate::ssh::agent::process::guard::guard(&mut part("worker")),
        Ok("worker") => super::worker::run::<OnlyStages>(),
        _ => return,
    };
    std::process::exit(code.into());
}

/// No applications beside the stages: every other order is read as one for a stage.
struct OnlyStages;

impl super::job::Applications for OnlyStages {
    type Copy = super::stage::StageJob;
    type Measure = super::stage::StageJob;
    type Forward = super::stage::StageJob;
}

/// Returns a command that runs this program as a guard or a worker. The controller skips the lines that the test
/// harness prints first, as it skips those of a shell profile.
fn part(name: &str) -> Command {
    let mut command = Command::new(env::current_exe().unwrap());
    command.args([
        "--exact",
        "ssh::agent::tests::plays_a_part",
        "--nocapture",
        "--test-threads=1",
    ]);
    command.env(PART, name);
    command
}
