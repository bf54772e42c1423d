//! Measurements with verbs: two queue pairs, and no stream. They show what the network and the devices can do.
//!
//! Both ends have a control connection. Over it they exchange the addresses of their queue pairs, and at the end the
//! number of operations. In between it is idle, so that it does not disturb what is measured.

#[cfg(not(feature = "rdma"))]
mod absent;
#[cfg(feature = "rdma")]
mod endpoint;
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
