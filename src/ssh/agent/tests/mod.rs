//! Agents as processes of their own, told what to do by a small controller.

mod controller;
mod deaths;
mod edges;
mod files;
mod pipelines;
// The integration tests have the same limits.
#[path = "../../../../tests/support/limits.rs"]
mod limits;

use std::{env, process::Command};

/// What makes the test program play a part: the variable that [`plays_a_part`] looks at.
const PART: &str = "RDPIPE_TEST_PART";

/// The test program as an agent. It is run again by the tests below, with [`PART`] set; on its own it
/// does nothing.
#[test]
fn plays_a_part() {
    let code = match env::var(PART).as_deref() {
        Ok("guard") => crate::ssh::agent::process::guard::guard(&mut part("worker")),
        Ok("worker") => super::worker::run(),
        _ => return,
    };
    std::process::exit(code.into());
}

/// This program in another part. The lines that it prints first are a profile's, for the controller.
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
