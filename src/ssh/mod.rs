//! Pipelines: the controller that runs them, the agents that run their stages, and ssh between the two.

#[allow(
    dead_code,
    reason = "the controller and the agent come with the next commits"
)]
mod protocol;
