//! The agent that every program which uses other hosts can run as.

use std::process::ExitCode;

use crate::{
    cli::args::Agent,
    copy::job::CopyJob,
    forward::job::ForwardJob,
    perf::job::PerfJob,
    ssh::agent::{guard_main, job::Applications, worker_main},
};

/// The applications of the agents, beside the stages.
struct ProgramApplications;

impl Applications for ProgramApplications {
    type Copy = CopyJob;
    type Measure = PerfJob;
    type Forward = ForwardJob;
}

/// Runs a process of an agent to its end, and returns the exit code. The agent of every program carries out the orders
/// of every program.
pub(crate) fn main(agent: Agent) -> ExitCode {
    match agent {
        Agent::Guard => guard_main(),
        Agent::Worker => worker_main::<ProgramApplications>(),
    }
}
