//! Turns bytes into frames and back. A data path carries the frames, over TCP or RDMA ([`slots`]).
//!
//! What a program writes through [`send`] fills a slot ([`slots`]); [`frame_sender`] seals it and gives
//! it to the data path. At the other end [`receive`] verifies what its data path has read into a slot, lends it to the
//! program, and grants the slot again when it was read. The [`steward`] drives a half while its user does not. Where a
//! stream has several rails, the stewards of the others than the first drive them all the time, each on a thread of its
//! own; the user and they meet in [`handover`].

pub(crate) mod frame;
pub(crate) mod frame_sender;
pub(crate) mod handover;
pub(crate) mod pace;
pub(crate) mod receive;
pub(crate) mod send;
pub(crate) mod slots;
pub(crate) mod steward;
pub(crate) mod tcp;
