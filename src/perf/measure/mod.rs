//! The measurements, each with two ends: the end that dials and the end that listens run the same module.
//!
//! | module | holds |
//! |---|---|
//! | [`task`] | one end of a task, from its order to its result |
//! | [`pending_streams`] | how the two ends of a task connect the streams of the task |
//! | [`clock`] | the time, the processor time and the network's counters of a measurement |
//! | [`round_trips`] | the times of messages there and back |
//! | [`counters`] | counters of the kernel that show lost packets |
//! | [`stream_bandwidth`], [`stream_latency`], [`connects`] | streams of this crate |
//! | [`sockets`], [`socket_bandwidth`], [`socket_latency`] | TCP sockets, without this crate's protocol |
//! | [`verbs`] | RDMA without a stream |
//! | [`path`] | the largest packets that arrive |
//! | [`storage`] | files of one host |

mod clock;
mod connects;
pub(crate) mod counters;
pub(crate) mod path;
mod pending_streams;
mod round_trips;
mod socket_bandwidth;
mod socket_latency;
mod sockets;
pub(crate) mod storage;
mod stream_bandwidth;
mod stream_latency;
pub(crate) mod task;
pub(crate) mod verbs;
