//! The programs over RDMA, on a machine with an RDMA device: copies, killed processes and failures.
#![cfg(all(feature = "cli", feature = "rdma"))]

mod copies;
mod failures;
#[path = "../support/mod.rs"]
mod support;
mod verbs;
