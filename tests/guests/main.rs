//! Programs between guests with real RDMA. `scripts/guests cargo test --test guests -- --test-threads 1` runs these
//! tests beside the guests, not in one.
#![cfg(all(feature = "cli", feature = "rdma"))]

mod copy;
mod forward;
mod perf;
mod pipeline;
#[path = "../programs/forwarded_programs/programs/mod.rs"]
mod programs;
#[path = "../support/mod.rs"]
mod support;
#[path = "../programs/copies/trees.rs"]
#[allow(dead_code, reason = "the tests of copies use all of it")]
mod trees;
mod verbs;
