//! What rdperf does beyond streams and agents: measures what hosts and the network between them can do.
//!
//! | module | holds | I/O |
//! |---|---|---|
//! | [`messages`] | what rdperf and its agents send each other: tasks, results, facts about a host | none |
//! | [`histogram`] | how often each latency occurred | none |
//! | [`facts`] | what an agent finds out about its host | procfs, sysfs, device files |
//! | [`check`] | what is wrong with hosts and pairs of hosts, how to repair it, and what limits them | none |
//! | [`measure`] | the measurements, each with two ends | streams, sockets, verbs, files |

pub(crate) mod check;
pub(crate) mod facts;
pub(crate) mod histogram;
pub(crate) mod measure;
pub(crate) mod messages;
