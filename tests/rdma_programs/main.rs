//! The programs and the examples over RDMA, where there is a device: every byte, every death, every failure.
#![cfg(all(feature = "cli", feature = "rdma"))]

mod copies;
mod deaths;
mod examples;
mod failures;
mod rdcat;
#[path = "../support/mod.rs"]
mod support;
