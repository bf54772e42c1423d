//! Turns bytes into frames and back. A data path carries the frames, over TCP or RDMA.
//!
//! | file | what it has, in the order in which a byte passes through |
//! |---|---|
//! | [`slots`] | slots that users hold: filled in place, lent to be sent, received and kept |
//! | [`send_half`] | writes, flush, FIN: what the program asks of the sending direction |
//! | [`send_lane`] | the queue from filled slots to posted frames: header, digest, credit |
//! | [`frame`] | the header of a frame, the chain of digests, the rule of credits |
//! | [`path`] | the traits that a data path implements, which moves frames between slots |
//! | [`tcp`] | the data path over a TCP connection |
//! | [`pace`] | how much is queued on a slow link |
//! | [`recv_lane`] | the queue from frames that arrive to verified chunks, and the credits for their slots |
//! | [`recv_half`] | reads: what the program asks of the receiving direction |
//! | [`shared`] | what both halves and the tasks of a stream hold together |
//! | [`steward`] | the task that drives a half while its user does not |
//! | `renewal` | what the renewal of an RDMA link asks of the lanes |

pub(crate) mod frame;
pub(crate) mod pace;
pub(crate) mod path;
#[cfg(fuzzing)]
mod queues;
pub(crate) mod recv_half;
pub(crate) mod recv_lane;
#[cfg(feature = "rdma")]
pub(crate) mod renewal;
pub(crate) mod send_half;
pub(crate) mod send_lane;
pub(crate) mod shared;
pub(crate) mod slots;
pub(crate) mod steward;
pub(crate) mod tcp;
