//! What rdperf does beyond streams and agents: measures what hosts and the network between them can do.
//!
//! rdperf starts a [`job`] on each host, and sends it tasks ([`messages`]). The job reports [`facts`] about its host,
//! and carries out each task with the job of another host ([`measure`]). From what they have found come findings
//! ([`check`]), the [`report`] and its [`picture`]: those three are pure and do no I/O.

pub(crate) mod check;
pub(crate) mod facts;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzing;
pub(crate) mod histogram;
pub(crate) mod job;
pub(crate) mod measure;
pub(crate) mod messages;
pub(crate) mod picture;
pub(crate) mod report;
