//! Programs between guests with real RDMA. `scripts/guests cargo test --test guests -- --test-threads 1` runs these
//! tests beside the guests, not in one.
#![cfg(all(feature = "cli", feature = "rdma"))]

#[path = "../support/capture.rs"]
mod capture;
mod copy;
mod forward;
mod networks;
#[path = "../support/on_path.rs"]
#[allow(dead_code, reason = "the tests of encryption use all of it")]
mod on_path;
mod perf;
mod pipeline;
#[path = "../programs/forwarded_programs/programs/mod.rs"]
mod programs;
mod rdsh;
#[path = "../support/mod.rs"]
mod support;
#[path = "../programs/copies/trees.rs"]
#[allow(dead_code, reason = "the tests of copies use all of it")]
mod trees;
mod verbs;
