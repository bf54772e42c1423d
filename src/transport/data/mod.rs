//! The data path: frames, the lanes that fill and verify them, lent slots, and the frames over TCP.

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
