//! Measurements with verbs: two queue pairs, and no stream. They show what the network and the devices can do.
//!
//! Both ends have a control connection. Over it they exchange the addresses of their queue pairs, and at the end the
//! number of operations. In between it is idle, so that it does not disturb what is measured.
//!
//! | file | what it has |
//! |---|---|
//! | `task` | a measurement from the first message to the last one |
//! | `proof` | a message over each pair of ports |
//! | `bandwidth` | as many operations as possible |
//! | `pingpong` | one operation there, and one back |
//! | `run` | the steps of all measurements: connect, measure, exchange what was counted |
//! | `endpoint` | a queue pair, its memory and its counts |
//! | `exchange` | the messages of the control connection |
//! | `absent` | stands in for all of them in a build without RDMA |

#[cfg(not(feature = "rdma"))]
mod absent;
#[cfg(feature = "rdma")]
mod bandwidth;
#[cfg(feature = "rdma")]
mod endpoint;
#[cfg(feature = "rdma")]
mod exchange;
#[cfg(feature = "rdma")]
mod pingpong;
#[cfg(feature = "rdma")]
mod proof;
#[cfg(feature = "rdma")]
mod run;
#[cfg(feature = "rdma")]
mod task;
#[cfg(all(test, feature = "rdma"))]
mod tests;

#[cfg(not(feature = "rdma"))]
pub(crate) use absent::{measure_verbs, prove_ports};
#[cfg(feature = "rdma")]
pub(crate) use {proof::prove_ports, task::measure_verbs};
