//! The measurements, each with two ends: the end that dials and the end that listens run the same module.
//!
//! | module | holds |
//! |---|---|
//! | [`task`] | one end of a task, from its order to its result |
//! | [`pending_streams`] | how the two ends of a task connect the streams of the task |
//! | [`clock`] | the time, the processor time and the network's counters of a measurement |
//! | [`counters`] | counters of the kernel that show lost packets |
//! | [`stream_bandwidth`], [`connects`] | streams of this crate |
//! | [`sockets`], [`socket_bandwidth`] | TCP sockets, without this crate's protocol |
//! | [`verbs`] | RDMA without a stream |
//! | [`path`] | the largest packets that arrive |
//! | [`storage`] | files of one host |
//!
//! A task makes its own streams: their number, direction and transport are what is measured. Each task has a fresh key,
//! from which each of its streams has one of its own (SHA-256), so all streams of a task share one port. Sockets
//! without the protocol begin with a proof of the task's key in both directions. Verbs use threads that poll, beside a
//! control connection over TCP that is idle while they run. The peer's key to write or read memory is given out only
//! here: it belongs to a region that has nothing but the measurement's bytes.

mod clock;
mod connects;
pub(crate) mod counters;
mod latency;
pub(crate) mod path;
mod pending_streams;
mod socket_bandwidth;
mod sockets;
pub(crate) mod storage;
mod stream_bandwidth;
pub(crate) mod task;
pub(crate) mod verbs;
