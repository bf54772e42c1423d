//! The programs and the examples over RDMA, on a machine with an RDMA device: copies, killed processes and failures.
#![cfg(all(feature = "cli", feature = "rdma"))]

mod copies;
mod deaths;
mod examples;
mod failures;
mod rdcat;
#[path = "../support/mod.rs"]
mod support;
mod verbs;
