//! What rdperf does beyond streams and agents: measures what hosts and the network between them can do.
//!
//! | module | holds | I/O |
//! |---|---|---|
//! | [`messages`] | what rdperf and its agents send each other: tasks, results, facts about a host | none |
//! | [`histogram`] | how often each latency occurred | none |
//! | [`facts`] | what an agent finds out about its host | files of the kernel |
//! | [`measure`] | the measurements, each with two ends | streams, sockets, verbs, files |
//! | [`job`] | the agent: carries out tasks | messages |
//! | [`supervised`] | a host as the supervisor runs it | none |
//! | [`check`] | what is wrong with hosts and networks, and how to repair it | none |
//! | [`picture`] | charts of a report, as SVG | none |
//! | [`report`] | the report of a run: series, their medians and spreads, and how two reports differ | none |

pub(crate) mod check;
pub(crate) mod facts;
#[cfg(fuzzing)]
pub(crate) mod fuzzing;
pub(crate) mod histogram;
pub(crate) mod job;
pub(crate) mod measure;
pub(crate) mod messages;
pub(crate) mod picture;
pub(crate) mod report;
pub(crate) mod supervised;
