//! From bytes to frames and back, whatever carries the frames.
//!
//! | file | what it has, in the order in which a byte meets it |
//! |---|---|
//! | [`fill_slots`] | the trait through which the loop under every program fills slots in place |
//! | [`send_half`] | writes, flush, FIN: what the program asks of the sending direction |
//! | [`lent_slot`] | a slot of the sending pool that the program fills itself |
//! | [`send_lane`] | the queue from filled slots to posted frames: header, digest, credit |
//! | [`frame`] | the header of a frame, the chain of digests, the rule of credits |
//! | [`path`] | the traits that a data path implements: it knows frames and slots only |
//! | [`tcp`] | the data path over a TCP connection |
//! | [`recv_lane`] | the queue from frames that arrive to verified chunks, and the credits for their slots |
//! | [`readable`] | a verified chunk, or what the reader has left of it |
//! | [`lending`] | received chunks that the program keeps, and their return |
//! | [`recv_half`] | reads: what the program asks of the receiving direction |
//! | [`shared`] | what both halves and the tasks of a stream hold together |
//! | [`steward`] | the task that drives a half while its user does not |
//! | `renewal` | what the renewal of an RDMA link asks of the lanes |

pub(crate) mod fill_slots;
pub(crate) mod frame;
pub(crate) mod lending;
pub(crate) mod lent_slot;
pub(crate) mod path;
pub(crate) mod readable;
pub(crate) mod recv_half;
pub(crate) mod recv_lane;
#[cfg(feature = "rdma")]
pub(crate) mod renewal;
pub(crate) mod send_half;
pub(crate) mod send_lane;
pub(crate) mod shared;
pub(crate) mod steward;
pub(crate) mod tcp;
