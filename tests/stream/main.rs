//! What a stream promises, over every data path: its own promises, what users of tokio's traits expect, and both on
//! connections that are damaged.

#[macro_use]
#[path = "../support/mod.rs"]
mod support;

mod blocked_threads;
#[cfg(feature = "fault-injection")]
mod broken_on_purpose;
mod damaged_connections;
mod promises;
/// Where there is a device: all names with `rdma::` in them are run there, and nowhere else.
#[cfg(feature = "rdma")]
mod rdma;
mod tokio_traits;
