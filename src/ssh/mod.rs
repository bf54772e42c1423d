//! Pipelines: the controller that runs them, the agents that run their stages, and ssh between the two.

pub(crate) mod agent;
#[allow(
    dead_code,
    reason = "the controller and the agent come with the next commits"
)]
mod protocol;
