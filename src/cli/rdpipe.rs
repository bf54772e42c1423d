//! The program rdpipe: so far the agent only.

use std::process::ExitCode;

/// Runs the agent.
#[must_use]
pub fn main() -> ExitCode {
    match std::env::args().nth(1).as_deref() {
        Some("--agent") => crate::ssh::agent::guard_main(),
        Some("--agent=worker") => crate::ssh::agent::worker_main(),
        _ => ExitCode::from(2),
    }
}
