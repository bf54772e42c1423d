//! Tests of a stream over every data path: its own promises, the rules of tokio's traits, and its behaviour on damaged
//! connections.

#[macro_use]
#[path = "../support/mod.rs"]
mod support;

#[cfg(feature = "fault-injection")]
mod broken_on_purpose;
mod control_task;
mod damaged_connections;
mod forged_data;
mod listener;
mod promises;
/// Tests of `RdmaStream`. `scripts/test` runs every test with `rdma::` in its name where there is an RDMA device, and
/// nowhere else.
#[cfg(feature = "rdma")]
mod rdma;
mod tokio_traits;
mod tracing_events;
