//! What is known about a pair of hosts. Pure, no I/O.

use crate::perf::messages::{HostFacts, PathResult, PortPairProof, TaskFault};

/// One host of a pair.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PairEnd<'a> {
    /// The name of the host as the user gave it: `fs1`.
    pub(crate) name: &'a str,
    /// What its agent has found out.
    pub(crate) facts: &'a HostFacts,
}

/// What is known about a pair of hosts. Each task has a result, or none if it was not carried out.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PairFacts<'a> {
    /// The end that dials.
    pub(crate) dialer: PairEnd<'a>,
    /// The end that listens.
    pub(crate) listener: PairEnd<'a>,
    /// The address at which the end that dials has reached the end that listens, or why it has not.
    pub(crate) reached: Option<Result<&'a str, &'a TaskFault>>,
    /// The address at which the end that listens has reached the end that dials, or why it has not.
    pub(crate) reached_back: Option<Result<&'a str, &'a TaskFault>>,
    /// The packets from the end that dials to the end that listens.
    pub(crate) path: Option<&'a PathResult>,
    /// The packets from the end that listens to the end that dials.
    pub(crate) path_back: Option<&'a PathResult>,
    /// The pairs of RDMA ports, the best first, or why none was tried.
    pub(crate) proofs: Option<Result<&'a [PortPairProof], &'a TaskFault>>,
    /// The first and the last port to listen on, if the user gave them.
    pub(crate) ports: Option<(u16, u16)>,
    /// How far the clock of the end that listens is ahead, in milliseconds.
    pub(crate) clock_difference_ms: Option<i64>,
}

impl PairFacts<'_> {
    /// Returns the name of the pair: `fs1 to fs2`.
    pub(super) fn subject(&self) -> String {
        subject(self.dialer, self.listener)
    }
}

/// Returns the name of a direction: `fs1 to fs2`.
pub(super) fn subject(from: PairEnd<'_>, to: PairEnd<'_>) -> String {
    format!("{} to {}", from.name, to.name)
}
