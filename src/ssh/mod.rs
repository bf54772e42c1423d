//! Pipelines: the controller that runs them, the agents that run their stages, and ssh between the two.

pub(crate) mod agent;
pub(crate) mod explain;
mod frames;
#[cfg(fuzzing)]
pub(crate) mod fuzzing;
mod greeting;
pub(crate) mod outcome;
pub(crate) mod own;
pub(crate) mod plan;
pub(crate) mod protocol;
pub(crate) mod quote;
mod session;
pub(crate) mod supervisor;
